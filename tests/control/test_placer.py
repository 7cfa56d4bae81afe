import pytest

from retarget.control.attempt_table import AttemptPhase
from retarget.control.placer import Placer
from retarget.core.states import Event, JobState
from retarget.core.targets import Target
from tests.control.jobs import inventory
from tests.control.world import World, one_node


@pytest.fixture
def placer(world: World) -> Placer:
    return Placer(world.context, world.table, world.targets)


def test_a_job_that_fits_becomes_an_attempt_that_nothing_was_sent_of(
    world: World, placer: Placer
) -> None:
    world.attach("t")
    job = world.submit("t")
    live, reasons = placer.place(world.targets.refresh(), explain=False)
    assert [attempt.job_id for _, attempt in live] == [job.id]
    assert not reasons
    entry = world.table.get(live[0][1].key)
    assert entry is not None
    assert entry.phase is AttemptPhase.PLACED
    assert world.job(job).state is JobState.LAUNCHING


def test_an_attempt_that_was_placed_before_may_have_been_sent(world: World, placer: Placer) -> None:
    world.attach("t")
    job = world.submit("t")
    placer.place(world.targets.refresh(), explain=False)
    world.table.keep([])  # what a new server knows
    placer.place(world.targets.refresh(), explain=False)
    entry = world.table.get(world.attempt(job).key)
    assert entry is not None
    assert entry.phase is AttemptPhase.UNCONFIRMED


@pytest.mark.parametrize(
    ("retries", "number", "limit"),
    [(0, 1, None), (1, 1, 300.0), (1, 2, None), (2, 2, 300.0), (2, 3, None)],
)
def test_an_attempt_has_a_limit_only_if_a_retry_is_left_after_it(
    world: World, placer: Placer, retries: int, number: int, limit: float | None
) -> None:
    """Decision 011: an attempt that cannot be tried elsewhere waits for its host."""
    world.attach("t", one_node().model_copy(update={"lost_after_seconds": 300.0}))
    job = world.submit("t", retries=retries)
    for done in range(number):
        if done:
            _end(world, job.id, Event.RETRIED)
        placer.place(world.targets.refresh(), explain=False)
    attempt = world.attempt(job)
    assert (attempt.number, attempt.lost_after_seconds) == (number, limit)


def test_an_attempt_after_a_preemption_has_as_many_retries_left(
    world: World, placer: Placer
) -> None:
    world.attach("t", one_node().model_copy(update={"lost_after_seconds": 300.0}))
    job = world.submit("t", retries=1)
    placer.place(world.targets.refresh(), explain=False)
    _end(world, job.id, Event.PREEMPTED)
    placer.place(world.targets.refresh(), explain=False)
    attempt = world.attempt(job)
    assert (attempt.number, attempt.lost_after_seconds) == (2, 300.0)


def test_few_jobs_are_placed_in_a_round_between_two_polls_and_the_next_round_comes_at_once(
    world: World, placer: Placer
) -> None:
    world.attach("t")
    for _ in range(5):
        world.submit("t")
    live, reasons = placer.place(world.targets.refresh(), explain=False)
    assert (len(live), reasons, world.work_available.is_set()) == (2, [], True)
    live, _ = placer.place(world.targets.refresh(), explain=True)
    assert len(live) == 5


def test_a_job_waits_for_a_target_that_cannot_be_used(world: World, placer: Placer) -> None:
    world.attach("t")
    world.context.store.targets.save(
        Target(name="t", kind="stub", inventory=one_node(), reason="no route to host")
    )
    job = world.submit("t")
    live, reasons = placer.place(world.targets.refresh(), explain=False)
    assert not live
    assert reasons == [(job, "target 't' cannot be used: no route to host")]


def test_nothing_is_placed_on_a_target_that_is_being_changed(world: World, placer: Placer) -> None:
    world.attach("t")
    world.submit("t")
    with world.context.store.target_locks.hold("t"):
        assert placer.place(world.targets.refresh(), explain=True) == ([], [])


def test_a_job_that_changed_meanwhile_is_placed_in_the_next_round(
    world: World, placer: Placer
) -> None:
    world.attach("t")
    job, other = world.submit("t"), world.submit("t")
    targets = world.targets.refresh()
    world.targets.count_placement("t")  # as if another server had placed an attempt
    assert placer.place(targets, explain=False) == ([], [])
    live, _ = placer.place(world.targets.refresh(), explain=False)
    assert [attempt.job_id for _, attempt in live] == [job.id, other.id]


def test_the_rest_of_the_queue_is_explained_only_between_polls(
    world: World, placer: Placer
) -> None:
    world.attach("t", inventory(cpus=1))
    first, *others = [world.submit("t") for _ in range(6)]
    live, _ = placer.place(world.targets.refresh(), explain=False)
    assert [attempt.job_id for _, attempt in live] == [first.id]
    _, reasons = placer.place(world.targets.refresh(), explain=True)
    assert [job.id for job, _ in reasons] == [job.id for job in others]
    assert reasons[0][1].startswith("waiting for 1 CPU (0 of 1 free); held by")


def test_an_unknown_inventory_is_waited_for(world: World, placer: Placer) -> None:
    world.attach("t")
    world.context.store.targets.save(Target(name="t", kind="stub", inventory=None, reason="is new"))
    world.submit("t")
    live, reasons = placer.place(world.targets.refresh(), explain=False)
    assert not live
    assert len(reasons) == 1


def _end(world: World, job_id: str, event: Event) -> None:
    job = world.context.store.jobs.read(job_id)
    now = world.clock()
    world.context.store.jobs.record(job, event, reason="again", now=now, attempt={"ended_at": now})
