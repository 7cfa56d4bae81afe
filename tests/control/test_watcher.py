from collections.abc import Callable

import pytest

from retarget.control.attempt_table import AttemptEvent, AttemptPhase
from retarget.control.decide import MAX_RESUMES
from retarget.control.jobs import cancel
from retarget.control.placer import Placer
from retarget.control.watcher import Watcher
from retarget.core.driver import Observation
from retarget.core.errors import TargetUnreachable
from retarget.core.jobs import Job
from retarget.core.states import Event, JobState
from tests.control.world import (
    DEAD,
    EXITED,
    GONE,
    PREEMPTED,
    RUNNING,
    SILENT,
    StubDriver,
    World,
    one_node,
)


@pytest.fixture
def watcher(world: World) -> Watcher:
    return Watcher(world.table, world.executors, world.targets)


@pytest.fixture
def driver(world: World) -> StubDriver:
    return world.attach("t", one_node().model_copy(update={"lost_after_seconds": 300.0}))


@pytest.fixture
def launch(world: World) -> Callable[..., Job]:
    """Return a job whose script runs, as this server launched it."""

    def launch_one(target: str = "t", **spec: object) -> Job:
        job = world.submit(target, **spec)
        placer = Placer(world.context, world.table, world.targets)
        placer.place(world.targets.refresh(), explain=True)
        attempt = world.attempt(job)
        entry = world.table.get(attempt.key)
        assert entry is not None
        entry = world.table.apply(entry, AttemptEvent.LAUNCH_STARTED) or entry
        world.table.apply(entry, AttemptEvent.LAUNCHED)
        world.context.store.jobs.change_attempt(attempt.key, {"handle": attempt.key})
        for event in (Event.PREPARING, Event.STARTED):
            now = world.clock()
            world.context.store.jobs.record(world.job(job), event, reason="it runs", now=now)
        return world.job(job)

    return launch_one


def poll(world: World, watcher: Watcher) -> list[str]:
    watcher.poll(world.context.store.jobs.live())
    return world.executors.run()


def phase(world: World, job: Job) -> AttemptPhase | None:
    entry = world.table.get(world.attempt(job).key)
    return entry and entry.phase


def test_all_launches_of_a_target_are_polled_in_one_call(
    world: World, driver: StubDriver, watcher: Watcher, launch: Callable[..., Job]
) -> None:
    world.attach("u")
    for target in ("t", "u", "t", "u", "t"):
        launch(target)
    assert poll(world, watcher) == ["poll t", "poll u"]
    assert driver.count("poll") == 3


def test_a_launch_that_this_server_has_not_adopted_is_not_polled(
    world: World, driver: StubDriver, watcher: Watcher, launch: Callable[..., Job]
) -> None:
    job = launch()
    world.table.keep([])
    world.table.keep([world.attempt(job)])  # a new server
    assert poll(world, watcher) == []


def test_a_silent_host_is_explained_and_so_is_its_answer(
    world: World, driver: StubDriver, watcher: Watcher, launch: Callable[..., Job]
) -> None:
    job = launch()
    driver.observation = SILENT
    poll(world, watcher)
    assert phase(world, job) is AttemptPhase.SILENT
    assert world.table.silent_targets() == {"t"}
    assert world.job(job).reason == (
        "host h does not answer; the job continues there, and its result is reported once the "
        "host answers"
    )
    version = world.job(job).version
    poll(world, watcher)
    assert world.job(job).version == version  # written once
    driver.observation = RUNNING
    poll(world, watcher)
    assert phase(world, job) is AttemptPhase.WATCHED
    assert world.job(job).reason == "the script is running"


def test_a_silent_host_is_waited_for_as_long_as_it_takes(
    world: World, driver: StubDriver, watcher: Watcher, launch: Callable[..., Job]
) -> None:
    """Decision 011: without a retry, an attempt has no limit."""
    job = launch(retries=0)
    driver.observation = SILENT
    world.clock.time += 1_000_000
    poll(world, watcher)
    assert world.job(job).state is JobState.RUNNING


def test_a_silent_launch_is_retried_after_its_limit(
    world: World, driver: StubDriver, watcher: Watcher, launch: Callable[..., Job]
) -> None:
    job = launch(retries=1)
    driver.observation = SILENT
    world.clock.time += 300 + 10 + 60
    poll(world, watcher)
    assert world.job(job).state is JobState.RUNNING
    world.clock.time += 1
    poll(world, watcher)
    assert world.job(job).state is JobState.QUEUED
    assert world.work_available.is_set()


def test_a_canceled_launch_on_a_silent_host_ends_soon(
    world: World, driver: StubDriver, watcher: Watcher, launch: Callable[..., Job]
) -> None:
    job = launch()
    driver.observation = SILENT
    cancel(world.context, job.id)
    world.clock.time += 31
    poll(world, watcher)
    assert world.job(job).state is JobState.CANCELED


def test_a_runner_that_died_is_launched_again(
    world: World, driver: StubDriver, watcher: Watcher, launch: Callable[..., Job]
) -> None:
    job = launch()
    driver.observation = DEAD
    world.work_available.clear()
    poll(world, watcher)
    assert phase(world, job) is AttemptPhase.UNCONFIRMED
    assert world.table.next_launch() < world.clock()  # at once
    assert world.work_available.is_set()
    assert world.attempt(job).resumes == 1
    assert poll(world, watcher) == []  # not before it was launched again


def test_a_runner_that_dies_too_often_fails_its_job(
    world: World, driver: StubDriver, watcher: Watcher, launch: Callable[..., Job]
) -> None:
    job = launch()
    world.context.store.jobs.change_attempt(world.attempt(job).key, {"resumes": MAX_RESUMES})
    driver.observation = DEAD
    poll(world, watcher)
    assert world.job(job).state is JobState.FAILED
    assert world.job(job).reason == f"the runner died {MAX_RESUMES} times: nothing is known"


@pytest.mark.parametrize(
    ("observation", "reason"),
    [
        (GONE, "the launch no longer exists on the target"),
        (EXITED, "the runner exited without reporting a result"),
    ],
)
def test_a_launch_that_cannot_report_any_more_fails_its_job(
    world: World,
    driver: StubDriver,
    watcher: Watcher,
    launch: Callable[..., Job],
    observation: Observation,
    reason: str,
) -> None:
    job = launch()
    driver.observations[world.attempt(job).key] = observation
    poll(world, watcher)
    assert (world.job(job).state, world.job(job).reason) == (JobState.FAILED, reason)


def test_a_preempted_launch_returns_to_the_queue_and_costs_no_retry(
    world: World, driver: StubDriver, watcher: Watcher, launch: Callable[..., Job]
) -> None:
    job = launch(retries=0)
    driver.observation = PREEMPTED
    poll(world, watcher)
    queued = world.job(job)
    assert (queued.state, queued.started_at) == (JobState.QUEUED, None)
    assert queued.reason == (
        "its node was preempted: the provider needs the node; the job starts again, without using "
        "up a retry"
    )
    assert (queued.attempt, queued.failures, queued.preemptions) == (1, 0, 1)
    attempt = world.attempt(job)
    assert attempt.reason == "its node was preempted: the provider needs the node"
    assert attempt.ended_at is not None
    assert world.work_available.is_set()


def test_a_canceled_job_whose_node_is_preempted_is_canceled(
    world: World, driver: StubDriver, watcher: Watcher, launch: Callable[..., Job]
) -> None:
    job = launch(retries=1)
    cancel(world.context, job.id)
    driver.observation = PREEMPTED
    poll(world, watcher)
    canceled = world.job(job)
    assert (canceled.state, canceled.failures, canceled.preemptions) == (JobState.CANCELED, 0, 0)


def test_what_was_observed_before_a_launch_was_looked_up_again_counts_no_more(
    world: World, driver: StubDriver, watcher: Watcher, launch: Callable[..., Job]
) -> None:
    job = launch()
    driver.observation = GONE  # with the old settings
    watcher.poll(world.context.store.jobs.live())
    world.table.change_settings({"t"})
    world.executors.run()
    assert world.job(job).state is JobState.RUNNING


def test_only_what_must_stop_is_asked_to_stop(
    world: World, driver: StubDriver, watcher: Watcher, launch: Callable[..., Job]
) -> None:
    canceled, _ = launch(), launch()
    cancel(world.context, canceled.id)
    watcher.cancel(world.context.store.jobs.live())
    watcher.cancel(world.context.store.jobs.live())
    key = world.attempt(canceled).key
    assert world.executors.run() == [f"cancel {key}"]
    assert driver.calls == [("cancel", key)]


def test_a_host_that_cannot_be_asked_to_stop_is_asked_again(
    world: World,
    driver: StubDriver,
    watcher: Watcher,
    launch: Callable[..., Job],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: object) -> None:
        raise TargetUnreachable("no route to host")

    job = launch()
    cancel(world.context, job.id)
    monkeypatch.setattr(driver, "cancel", fail)
    for _ in range(2):
        watcher.cancel(world.context.store.jobs.live())
        assert len(world.executors.run()) == 1
    assert world.job(job).state is JobState.CANCELING
