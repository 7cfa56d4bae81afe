"""Work on a target that does not answer keeps no thread from another target."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from retarget.control.jobs import cancel
from retarget.control.reconcile import Loop
from retarget.core.driver import Handle, Launch, Observation
from retarget.core.jobs import Attempt, Job
from retarget.core.states import Event
from retarget.core.targets import Inventory
from tests.control.world import EXITED, StubDriver, World

_ATTEMPTS = 40
_PATIENCE_SECONDS = 20.0  # the healthy target needs about 0.05 s


class DeadHost(StubDriver):
    """A driver in which every call waits, as a connection to a dead host does."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def _wait(self, call: str) -> None:
        self.calls.append((call, ""))
        self.released.wait()

    def check(self) -> Inventory:
        self._wait("check")
        return self.inventory

    def launch(self, launch: Launch) -> Handle:
        self._wait("launch")
        return super().launch(launch)

    def poll(self, handles: Sequence[Handle]) -> list[Observation]:
        self._wait("poll")
        return super().poll(handles)

    def cancel(self, handle: Handle) -> None:
        self._wait("cancel")

    def forget(self, handle: Handle) -> None:
        self._wait("forget")


@pytest.fixture
def dead(world: World) -> DeadHost:
    world.attach("dead")
    driver = world.drivers["dead"] = DeadHost()
    return driver


@pytest.fixture
def start(world: World, dead: DeadHost) -> Iterator[Callable[[], None]]:
    """Start the loop. At the end, the dead host answers, and the loop stops."""
    object.__setattr__(world.context, "clock", time.time)
    loop = Loop(world.context, world.work_available, interval_seconds=0.05)
    yield loop.start
    dead.released.set()
    loop.stop()


@pytest.fixture
def place(world: World) -> Callable[..., Job]:
    """Place a job as an earlier server did; with a handle if that server launched it."""

    def place_one(target: str, *, handle: bool = False) -> Job:
        job, context = world.submit(target), world.context
        attempt = Attempt(key=f"{job.id}-1", job_id=job.id, number=1, target=target)
        placements = context.store.targets.placements(target)
        placed = context.store.jobs.place(
            job, attempt, reason="", now=time.time(), placements=placements
        )
        if handle:
            context.store.jobs.change_attempt(attempt.key, {"handle": f"handle of {attempt.key}"})
        return placed

    return place_one


def test_launches_on_a_dead_target_do_not_delay_another(
    world: World, dead: DeadHost, start: Callable[[], None], place: Callable[..., Job]
) -> None:
    for _ in range(_ATTEMPTS):
        place("dead")
    healthy = world.attach("healthy")
    start()
    _wait(lambda: dead.count("launch") >= 16)
    job = world.submit("healthy")
    world.context.bus.wake()
    _wait(lambda: healthy.count("launch") == 1)
    _wait(lambda: world.attempt(job).handle is not None)


def test_polls_cancels_and_forgets_on_a_dead_target_do_not_delay_another(
    world: World, dead: DeadHost, start: Callable[[], None], place: Callable[..., Job]
) -> None:
    healthy = world.attach("healthy")
    for _ in range(_ATTEMPTS):
        cancel(world.context, place("dead", handle=True).id)
        _end(world, place("dead", handle=True))
    canceled, ended = place("healthy", handle=True), place("healthy", handle=True)
    start()
    _wait(lambda: dead.count("poll") >= 16)
    cancel(world.context, canceled.id)
    _end(world, ended)
    healthy.observations[f"handle of {ended.id}-1"] = EXITED
    world.context.bus.wake()
    _wait(lambda: healthy.count("cancel") >= 1)
    _wait(lambda: healthy.count("forget") == 1)
    _wait(lambda: world.attempt(ended).handle is None)


def test_launches_do_not_delay_a_poll_or_a_cancel_of_their_own_target(
    world: World, dead: DeadHost, start: Callable[[], None], place: Callable[..., Job]
) -> None:
    slow = world.attach("slow")
    job = place("slow", handle=True)
    start()
    _wait(lambda: slow.count("poll") > 1)
    slow.on_launch = lambda launch: _block(dead.released)
    for _ in range(_ATTEMPTS):
        world.submit("slow")
    world.context.bus.wake()
    _wait(lambda: slow.count("launch") > 16)
    polls = slow.count("poll")
    cancel(world.context, job.id)
    _wait(lambda: slow.count("cancel") >= 1)
    _wait(lambda: slow.count("poll") > polls)


def _block(released: threading.Event) -> None:
    released.wait()


def _end(world: World, job: Job) -> None:
    now = time.time()
    world.context.store.jobs.record(
        job, Event.FAILED, reason="it failed", now=now, attempt={"ended_at": now - 60}
    )


def _wait(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not is_true():
        assert time.monotonic() < deadline, "it waits for the dead target"
        time.sleep(0.01)
