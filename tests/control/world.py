"""The control functions over a real store, with a stub driver, simulated time and no threads."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel
from sqlalchemy import Engine

from retarget.blobs.files import Files
from retarget.control.attempt_table import AttemptTable
from retarget.control.context import Context, ControlSettings
from retarget.control.executors import Lane, TargetExecutors
from retarget.control.known_targets import KnownTargets
from retarget.control.leases import LeaseKeeper
from retarget.control.links import TargetLinks
from retarget.control.target_checks import TargetChecks
from retarget.core.driver import Driver, Handle, Launch, Observation, Phase
from retarget.core.home import Home
from retarget.core.jobs import Attempt, Job, JobSpec
from retarget.core.leases import ServerRecord
from retarget.core.links import Links
from retarget.core.names import new_id
from retarget.core.states import JobState
from retarget.core.targets import Inventory, Node, Target
from retarget.server.event_bus import EventBus
from retarget.store.leases import Leases
from retarget.store.store import Store
from retarget.store.targets import Targets

RUNNING = Observation(phase=Phase.RUNNING)
SILENT = Observation(phase=Phase.SILENT, reason="host h does not answer")
DEAD = Observation(phase=Phase.DEAD)
GONE = Observation(phase=Phase.GONE)
EXITED = Observation(phase=Phase.EXITED)
PREEMPTED = Observation(phase=Phase.PREEMPTED, reason="the provider needs the node")


def one_node(name: str = "n0", *, unavailable: str = "") -> Inventory:
    return Inventory(nodes=(Node(name=name, cpus=64, memory=2**40, unavailable=unavailable),))


class StubDriver:
    """Accepts every launch at once, unless the test says otherwise, and counts the calls."""

    Config: ClassVar[type[BaseModel]] = BaseModel

    def __init__(self, config: Any = None, links: Links | None = None) -> None:
        self.calls: list[tuple[str, str]] = []
        self.inventory = one_node()
        self.check_error: Exception | None = None
        self.launch_error: Exception | None = None
        self.on_launch: Callable[[Launch], None] = lambda launch: None
        self.poll_error: Exception | None = None
        self.observation = RUNNING  # of launches that `observations` does not name
        self.observations: dict[str, Observation] = {}

    def count(self, call: str) -> int:
        return sum(name == call for name, _ in self.calls)

    def check(self) -> Inventory:
        self.calls.append(("check", ""))
        if self.check_error is not None:
            raise self.check_error
        return self.inventory

    def plan(self, launch: Launch) -> dict[str, Any]:
        return {}

    def launch(self, launch: Launch) -> Handle:
        self.calls.append(("launch", launch.key))
        self.on_launch(launch)
        if self.launch_error is not None:
            raise self.launch_error
        return Handle(f"handle of {launch.key}")

    def poll(self, handles: Sequence[Handle]) -> list[Observation]:
        self.calls += [("poll", handle) for handle in handles]
        if self.poll_error is not None:
            raise self.poll_error
        return [self.observations.get(handle, self.observation) for handle in handles]

    def cancel(self, handle: Handle) -> None:
        self.calls.append(("cancel", handle))

    def forget(self, handle: Handle) -> None:
        self.calls.append(("forget", handle))

    def diagnose(self, handle: Handle) -> str:
        return "nothing is known"


class QueuedExecutors(TargetExecutors):
    """Keeps work until the test runs it, in its own thread."""

    def __init__(self) -> None:
        super().__init__()
        self.work: dict[str, Callable[[], object]] = {}

    def submit(self, target: str, lane: Lane, key: str, work: Callable[[], object]) -> bool:
        if key in self.work:
            return False
        self.work[key] = work
        return True

    def run(self) -> list[str]:
        """Run all work, and return its keys."""
        work, self.work = self.work, {}
        for item in work.values():
            item()
        return list(work)


@dataclass
class Clock:
    """Both clocks of the control functions: they show the same time."""

    time: float = 1_000.0

    def __call__(self) -> float:
        return self.time


@dataclass
class World:
    context: Context
    clock: Clock
    drivers: dict[str, StubDriver]
    work_available: threading.Event
    executors: QueuedExecutors = field(default_factory=QueuedExecutors)
    numbers: Any = field(default_factory=count)

    def __post_init__(self) -> None:
        self.table = AttemptTable(clock=self.clock)
        self.targets = KnownTargets(self.context, self.table, interval_seconds=1.0)
        self.checks = TargetChecks(self.table, self.executors, self.targets)

    def attach(self, name: str, inventory: Inventory | None = None) -> StubDriver:
        """Store a target that was checked, and return its driver."""
        driver = self.drivers[name] = StubDriver()
        driver.inventory = inventory or driver.inventory
        target = Target(name=name, kind="stub", inventory=driver.inventory)
        self.context.links.leases.claim(target)
        self.context.store.targets.save(target)
        self.targets.refresh()
        return driver

    def submit(self, target: str, **spec: Any) -> Job:
        now = self.clock()
        number = next(self.numbers)
        job = Job(
            id=new_id(now + number),
            name=f"job-{number}",
            state=JobState.QUEUED,
            reason=f"waiting in the queue of {target}",
            version=0,
            spec=JobSpec.model_validate({"command": ("true",), "target": target, **spec}),
            created_at=now,
            changed_at=now,
        )
        self.context.store.jobs.add(job)
        return job

    def job(self, job: Job) -> Job:
        return self.context.store.jobs.read(job.id)

    def attempt(self, job: Job) -> Attempt:
        return self.context.store.jobs.attempts(job.id)[-1]


def make_keeper(engine: Engine, server_id: str = "main", *, expire: bool = False) -> LeaseKeeper:
    """Return the leases of a server on this machine."""
    server = ServerRecord(
        id=server_id,
        incarnation=f"{server_id}-1",
        host="host",
        host_name="host",
        pid=1,
        url=f"http://{server_id}",
        version="1",
        identity="home",
        home="/home",
    )
    return LeaseKeeper(
        Leases(engine, expire=expire), Targets(engine), server, is_local=lambda _: False
    )


class UnsyncedFiles(Files):
    """Leaves the disk alone: syncing it takes long while other tests write."""

    def sync(self) -> None:
        pass


def make_context(
    engine: Engine,
    folder: Path,
    *,
    connect: Callable[[Target], Driver],
    bus: EventBus,
    clock: Callable[[], float],
) -> Context:
    leases = make_keeper(engine)
    leases.register()
    return Context(
        store=Store(engine, server=lambda: leases.server.incarnation),
        files=UnsyncedFiles(Home(folder)),
        links=TargetLinks(leases, b"secret", connect),
        bus=bus,
        clock=clock,
        settings=ControlSettings(url="http://127.0.0.1:1", secret=b"secret"),
    )
