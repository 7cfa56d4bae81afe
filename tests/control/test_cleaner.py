from collections.abc import Callable

import pytest

from retarget.control import attempts as attempts_module
from retarget.control.attempts import cancel_and_forget, forget, forget_on, forget_soon
from retarget.control.cleaner import Cleaner
from retarget.core.errors import TargetUnreachable
from retarget.core.jobs import Attempt
from retarget.core.states import Event
from tests.control.world import EXITED, GONE, RUNNING, StubDriver, World


@pytest.fixture
def cleaner(world: World) -> Cleaner:
    return Cleaner(world.context, world.table, world.executors, world.targets)


@pytest.fixture
def end(world: World) -> Callable[..., Attempt]:
    """Return an attempt that ended now and still has something on its target."""

    def end_one(target: str = "t") -> Attempt:
        job, jobs, now = world.submit(target), world.context.store.jobs, world.clock()
        attempt = Attempt(key=f"{job.id}-1", job_id=job.id, number=1, target=target)
        placements = world.context.store.targets.placements(target)
        placed = jobs.place(job, attempt, reason="", now=now, placements=placements)
        jobs.change_attempt(attempt.key, {"handle": attempt.key})
        jobs.record(placed, Event.FAILED, reason="it failed", now=now, attempt={"ended_at": now})
        return world.attempt(job)

    return end_one


@pytest.fixture
def driver(world: World) -> StubDriver:
    driver = world.attach("t")
    driver.observation = EXITED
    return driver


def remaining(world: World) -> list[str]:
    return [attempt.key for attempt in world.context.store.jobs.ended_with_handle()]


def test_ended_attempts_are_removed_from_their_targets(
    world: World, driver: StubDriver, cleaner: Cleaner, end: Callable[..., Attempt]
) -> None:
    world.attach("u").observation = GONE
    for target in ("t", "u", "t"):
        end(target)
    cleaner.clean(idle=True)
    assert world.executors.run() == ["forget t", "forget u"]
    assert driver.count("forget") == 2
    assert remaining(world) == []


def test_while_jobs_wait_attempts_that_ended_a_moment_ago_are_skipped(
    world: World, driver: StubDriver, cleaner: Cleaner, end: Callable[..., Attempt]
) -> None:
    end()
    world.clock.time += 9
    late = end()
    world.clock.time += 2
    cleaner.clean(idle=False)
    world.executors.run()
    assert remaining(world) == [late.key]
    cleaner.clean(idle=True)
    world.executors.run()
    assert remaining(world) == []


def test_a_runner_that_is_still_running_is_left_alone(
    world: World, driver: StubDriver, end: Callable[..., Attempt]
) -> None:
    ended, running = end(), end()
    driver.observations[running.key] = RUNNING
    assert forget(world.context, [ended, running]) == [running]
    assert remaining(world) == [running.key]
    assert driver.count("forget") == 1


def test_what_was_reported_is_on_disk_before_it_is_removed_from_the_target(
    world: World, driver: StubDriver, end: Callable[..., Attempt]
) -> None:
    object.__setattr__(world.context.files, "sync", lambda: driver.calls.append(("sync", "")))
    attempt = end()
    forget_on(world.context, driver, [attempt])
    assert [call for call, _ in driver.calls] == ["sync", "poll", "forget"]


def test_of_a_target_that_does_not_answer_nothing_is_removed(
    world: World, driver: StubDriver, end: Callable[..., Attempt]
) -> None:
    driver.poll_error = TargetUnreachable("no route to host")
    attempt = end()
    assert forget(world.context, [attempt]) == [attempt]
    assert remaining(world) == [attempt.key]


def test_what_was_removed_before_a_target_failed_is_recorded(
    world: World, driver: StubDriver, end: Callable[..., Attempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = end(), end()

    def fail_on_second(handle: str) -> None:
        if handle == second.key:
            raise TargetUnreachable("no route to host")

    monkeypatch.setattr(driver, "forget", fail_on_second)
    forget(world.context, [first, second])
    assert remaining(world) == [second.key]


def test_nothing_remains_on_a_target_that_was_detached(
    world: World, driver: StubDriver, end: Callable[..., Attempt]
) -> None:
    attempt = end()
    world.context.store.targets.remove("t", reason="detached", now=world.clock(), force=True)
    assert forget(world.context, [attempt]) == []
    assert remaining(world) == []


def test_a_target_that_is_being_changed_is_left_alone(
    world: World, driver: StubDriver, end: Callable[..., Attempt]
) -> None:
    attempt = end()
    with world.context.store.target_locks.hold("t"):
        assert forget(world.context, [attempt]) == [attempt]
    assert driver.calls == []


def test_a_runner_gets_a_moment_to_exit(
    world: World, driver: StubDriver, end: Callable[..., Attempt]
) -> None:
    attempt, polls = end(), list[int]()
    driver.observation = RUNNING

    def forget_once(ended: object) -> list[Attempt]:
        polls.append(1)
        if len(polls) == 3:
            driver.observation = EXITED
        return forget(world.context, [attempt])

    assert forget_soon([attempt], forget_once) == []
    assert len(polls) == 3


def test_a_runner_that_does_not_stop_is_left(
    world: World,
    driver: StubDriver,
    end: Callable[..., Attempt],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempts_module, "RUNNER_EXIT_SECONDS", 0.1)
    driver.observation = RUNNING
    attempt = end()
    cancel_and_forget(world.context, driver, attempt)
    assert (driver.count("cancel"), driver.count("forget")) == (1, 0)
    assert remaining(world) == [attempt.key]


def test_abandoned_uploads_are_searched_once_an_hour(
    world: World, cleaner: Cleaner, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[float] = []

    def search(*, before: float) -> None:
        searches.append(before)

    monkeypatch.setattr(world.context.files.uploads, "remove_old", search)
    for seconds in (0, 3599, 1):
        world.clock.time += seconds
        cleaner.clean(idle=True)
    assert searches == [1_000.0 - 86_400, 4_600.0 - 86_400]
