from collections.abc import Callable

import pytest

from retarget.control.attempt_table import AttemptPhase
from retarget.control.jobs import cancel
from retarget.control.launcher import Launcher
from retarget.control.placer import Placer
from retarget.core.errors import (
    LaunchRejected,
    NothingStarted,
    NotReady,
    TargetUnreachable,
)
from retarget.core.jobs import Job
from retarget.core.states import JobState
from retarget.core.targets import Inventory, Target
from tests.control.jobs import inventory
from tests.control.world import GONE, PREEMPTED, StubDriver, World, one_node

Round = Callable[[], list[str]]


@pytest.fixture
def launcher(world: World) -> Launcher:
    return Launcher(
        world.table,
        executors=world.executors,
        targets=world.targets,
        checks=world.checks,
        retry_seconds=1.0,
    )


@pytest.fixture
def begin(world: World, launcher: Launcher) -> Callable[[], None]:
    """Place what fits, and begin to launch what is due: the work waits for a thread."""
    placer = Placer(world.context, world.table, world.targets)

    def begin_launches() -> None:
        live, _ = placer.place(world.targets.refresh(), explain=True)
        launcher.launch(live)

    return begin_launches


@pytest.fixture
def play(world: World, begin: Callable[[], None]) -> Round:
    """Play one round, and return the keys of the work that was done."""

    def play_round() -> list[str]:
        begin()
        return world.executors.run()

    return play_round


@pytest.fixture
def driver(world: World) -> StubDriver:
    return world.attach("t")


def phase(world: World, job: Job) -> AttemptPhase | None:
    entry = world.table.get(world.attempt(job).key)
    return entry and entry.phase


def test_a_launch_stores_its_handle(world: World, driver: StubDriver, play: Round) -> None:
    job = world.submit("t")
    play()
    attempt = world.attempt(job)
    assert attempt.handle == f"handle of {attempt.key}"
    assert attempt.launched_at == world.clock()
    assert phase(world, job) is AttemptPhase.WATCHED
    assert play() == []  # it is launched once


def test_an_attempt_that_waits_for_a_thread_is_not_launched_again(
    world: World, driver: StubDriver, begin: Callable[[], None]
) -> None:
    job = world.submit("t")
    begin()
    begin()
    assert phase(world, job) is AttemptPhase.LAUNCHING
    assert len(world.executors.run()) == 1
    assert driver.count("launch") == 1


def test_a_failed_launch_is_tried_again_later_and_no_thread_sleeps(
    world: World, driver: StubDriver, play: Round
) -> None:
    driver.launch_error = TargetUnreachable("no route to host")
    job = world.submit("t")
    play()
    assert world.job(job).reason == ("the job cannot be launched yet: no route to host; retrying")
    assert phase(world, job) is AttemptPhase.UNCONFIRMED
    assert world.table.next_launch() == world.clock() + 1.0
    assert play() == []
    world.clock.time += 0.99
    assert play() == []
    world.clock.time += 0.01
    driver.launch_error = None
    assert len(play()) == 1
    assert phase(world, job) is AttemptPhase.WATCHED


def test_a_launch_that_never_reaches_its_target_fails_its_job(
    world: World, driver: StubDriver, play: Round
) -> None:
    driver.launch_error = TargetUnreachable("no route to host")
    job = world.submit("t")
    play()
    world.clock.time += 599
    play()
    assert world.job(job).state is JobState.LAUNCHING
    world.clock.time += 2
    play()
    assert world.job(job).state is JobState.FAILED
    assert world.job(job).reason == (
        "the job could not be launched within 10m 0s: no route to host"
    )
    assert play() == []


def test_an_image_may_take_longer_than_any_limit(
    world: World, driver: StubDriver, play: Round
) -> None:
    driver.launch_error = NotReady("pulling the image: 3 of 9 GB")
    job = world.submit("t")
    play()
    world.clock.time += 100_000
    play()
    assert world.job(job).state is JobState.LAUNCHING
    assert world.job(job).reason == "pulling the image: 3 of 9 GB"
    assert driver.count("check") == 0  # it answers, so it is not unavailable
    assert phase(world, job) is AttemptPhase.PLACED


def test_a_job_that_is_canceled_while_its_target_gets_ready_ends_at_once(
    world: World, driver: StubDriver, play: Round
) -> None:
    driver.launch_error = NotReady("pulling the image")
    job = world.submit("t")
    play()
    cancel(world.context, job.id)
    assert len(play()) == 1  # although the next launch is due only in a second
    assert world.job(job).state is JobState.CANCELED
    assert driver.count("launch") == 1


def test_an_image_of_an_earlier_server_is_canceled_too(
    world: World, driver: StubDriver, play: Round
) -> None:
    driver.launch_error = NotReady("pulling the image")
    job = world.submit("t")
    play()
    world.table.keep([])  # a new server
    cancel(world.context, job.id)
    play()
    assert world.job(job).state is JobState.CANCELED


def test_a_job_that_is_canceled_before_its_launch_is_not_launched(
    world: World, driver: StubDriver, begin: Callable[[], None]
) -> None:
    job = world.submit("t")
    begin()
    cancel(world.context, job.id)
    world.clock.time += 1  # it waited for a thread, so it is read again
    world.executors.run()
    assert world.job(job).state is JobState.CANCELED
    assert driver.count("launch") == 0


def test_a_job_that_is_canceled_during_its_launch_has_a_handle_to_cancel(
    world: World, driver: StubDriver, begin: Callable[[], None]
) -> None:
    job = world.submit("t")
    driver.on_launch = lambda launch: cancel(world.context, job.id) and None
    begin()
    world.executors.run()
    assert world.job(job).state is JobState.CANCELING
    assert world.attempt(job).handle is not None


def test_a_canceled_job_may_have_reached_its_target(
    world: World, driver: StubDriver, play: Round
) -> None:
    """It may be running there, so only its runner or the silence of its host ends it."""
    driver.launch_error = TargetUnreachable("the connection was lost")
    job = world.submit("t")
    play()
    cancel(world.context, job.id)
    world.clock.time += 1
    play()
    assert world.job(job).state is JobState.CANCELING
    world.clock.time += 30
    play()
    assert world.job(job).state is JobState.CANCELED


def test_a_placement_on_a_node_that_is_unavailable_is_undone(
    world: World, driver: StubDriver, play: Round
) -> None:
    driver.launch_error = NothingStarted("n0 does not answer")
    driver.inventory = one_node(unavailable="n0 does not answer")
    job = world.submit("t")
    play()
    queued = world.job(job)
    assert (queued.state, queued.attempt) == (JobState.QUEUED, 0)
    assert "nothing was started, and the job waits for another node" in queued.reason
    driver.launch_error, driver.inventory = None, one_node("n1")
    world.context.store.targets.save(Target(name="t", kind="stub", inventory=one_node("n1")))
    play()
    assert world.attempt(job).allocations[0].node == "n1"
    assert phase(world, job) is AttemptPhase.WATCHED


def test_a_placement_on_a_dead_target_is_undone(
    world: World, driver: StubDriver, play: Round
) -> None:
    driver.launch_error = NothingStarted("no route to host")
    driver.check_error = TargetUnreachable("no route to host")
    job = world.submit("t")
    play()
    assert world.job(job).state is JobState.QUEUED


def test_launches_that_fail_together_share_one_check(
    world: World, driver: StubDriver, play: Round
) -> None:
    driver.launch_error = NothingStarted("no route to host")
    driver.check_error = TargetUnreachable("no route to host")
    jobs = [world.submit("t") for _ in range(10)]
    play()
    assert {world.job(job).state for job in jobs} == {JobState.QUEUED}
    assert driver.count("check") == 1


def test_a_placement_on_a_node_that_answers_stays(
    world: World, driver: StubDriver, play: Round
) -> None:
    driver.launch_error = NothingStarted("the connection was refused once")
    job = world.submit("t")
    play()
    assert world.job(job).state is JobState.LAUNCHING
    assert phase(world, job) is AttemptPhase.PLACED


def test_a_launch_that_an_earlier_server_may_have_sent_is_not_undone(
    world: World, driver: StubDriver, play: Round
) -> None:
    driver.launch_error = NotReady("not yet")
    job = world.submit("t")
    play()
    world.table.keep([])  # a new server
    driver.launch_error = NothingStarted("no route to host")
    driver.check_error = TargetUnreachable("no route to host")
    play()
    assert world.job(job).state is JobState.LAUNCHING
    assert phase(world, job) is AttemptPhase.UNCONFIRMED


def test_a_rejected_launch_fails_its_job_and_shows_why(
    world: World, driver: StubDriver, play: Round
) -> None:
    driver.launch_error = LaunchRejected("the image cannot be built", log="step 3 failed\n")
    job = world.submit("t")
    play()
    assert world.job(job).state is JobState.FAILED
    assert world.job(job).reason == "the image cannot be built"
    log = world.context.files.streams.path(world.attempt(job).key, "prepare")
    assert log.read_text() == "step 3 failed\n"


def test_a_launch_that_its_target_has_lost_is_not_started_a_second_time(
    world: World, driver: StubDriver, play: Round
) -> None:
    job = world.submit("t")
    play()
    world.table.keep([])  # a new server
    driver.observation = GONE
    play()
    assert world.job(job).state is JobState.FAILED
    assert world.job(job).reason == "the launch no longer exists on the target"
    assert driver.count("launch") == 1


def test_a_launch_that_was_preempted_while_no_server_ran_is_placed_again(
    world: World, driver: StubDriver, play: Round
) -> None:
    job = world.submit("t")
    play()
    world.table.keep([])  # a new server
    driver.observation = PREEMPTED
    play()
    assert (world.job(job).state, world.job(job).preemptions) == (JobState.QUEUED, 1)
    assert driver.count("launch") == 1


def test_a_new_server_tells_every_runner_its_address(
    world: World, driver: StubDriver, play: Round
) -> None:
    jobs = [world.submit("t") for _ in range(3)]
    play()
    world.table.keep([])
    play()
    assert driver.count("launch") == 6
    assert {phase(world, job) for job in jobs} == {AttemptPhase.WATCHED}


def test_after_a_change_of_settings_launches_are_looked_up_again(
    world: World, driver: StubDriver, play: Round
) -> None:
    world.submit("t")
    play()
    changed = Target(name="t", kind="stub", config={"host": "h2"}, inventory=one_node())
    world.context.store.targets.save(changed)
    assert len(play()) == 1
    assert driver.count("launch") == 2


def test_a_target_that_was_detached_meanwhile_keeps_nothing_running(
    world: World, driver: StubDriver, begin: Callable[[], None]
) -> None:
    job = world.submit("t")
    begin()

    def detach(_: object) -> None:
        world.context.store.targets.remove("t", reason="detached", now=world.clock(), force=True)
        driver.observation = GONE

    driver.on_launch = detach
    world.executors.run()
    assert world.job(job).state is JobState.FAILED
    assert (driver.count("cancel"), driver.count("forget")) == (1, 1)
    assert world.attempt(job).handle is None


def test_a_job_that_ended_while_it_waited_for_a_thread_is_not_launched(
    world: World, driver: StubDriver, begin: Callable[[], None]
) -> None:
    world.submit("t")
    begin()
    world.context.store.targets.remove("t", reason="detached", now=world.clock(), force=True)
    world.clock.time += 1
    world.executors.run()
    assert driver.count("launch") == 0


def test_a_job_says_when_its_host_answers_again(
    world: World, driver: StubDriver, play: Round
) -> None:
    job = world.submit("t")
    play()
    world.table.keep([])  # a new server, which cannot reach the host yet
    driver.launch_error = TargetUnreachable("no route to host")
    play()
    assert world.job(job).reason == "no route to host"
    driver.launch_error = None
    world.clock.time += 1
    play()
    assert world.job(job).reason == "the job is launching"


def test_an_unexpected_error_leaves_the_attempt_launchable(
    world: World, driver: StubDriver, play: Round
) -> None:
    driver.launch_error = ValueError("a bug in a driver")
    job = world.submit("t")
    with pytest.raises(ValueError, match="a bug"):
        play()
    assert phase(world, job) is AttemptPhase.UNCONFIRMED
    driver.launch_error = None
    world.clock.time += 1
    play()
    assert phase(world, job) is AttemptPhase.WATCHED


def test_a_pool_of_nodes_is_written_to_disk_before_its_launches(world: World, play: Round) -> None:
    synced: list[str] = []
    object.__setattr__(world.context.files, "sync", lambda: synced.append("sync"))
    world.attach("pool", inventory(nodes=2))
    world.attach("one", Inventory(nodes=one_node().nodes))
    world.submit("one")
    play()
    assert synced == []
    world.submit("pool")
    play()
    assert synced == ["sync"]
