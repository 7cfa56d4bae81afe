"""The contract between the control plane and one kind of compute."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, ClassVar, NewType, Protocol, runtime_checkable

from pydantic import BaseModel

from retarget.core.conda import to_pypi
from retarget.core.environments import Environment
from retarget.core.targets import Facts, Share
from retarget.core.values import Value

Handle = NewType("Handle", str)  # what a driver needs to find its work again; stored, never read

_GPUS = "CUDA_VISIBLE_DEVICES"


class Launch(Value):
    """One attempt, fully resolved: nothing in it needs the store."""

    key: str  # unique per attempt; makes launch() idempotent
    job: str  # the job's id
    name: str  # the job's name, for people
    experiment_id: str = ""  # where runs go that the script makes with MLflow, beside its own
    command: tuple[str, ...]
    env: dict[str, str] = {}
    snapshot: str | None = None  # digest of the manifest of the code
    environment: Environment = Environment()
    cpus: float = 1
    memory: int | None = None
    shares: tuple[Share, ...] = ()  # what it was given on each node
    nodes: int = 1
    processes_per_node: int = 1
    timeout: float | None = None  # seconds the script may run
    grace: float = 10.0  # seconds between TERM and KILL
    fence: float | None = None  # seconds without the server after which the runner ends it
    url: str = ""  # where the runner reports; empty: nowhere, everything stays on its disk
    token: str = ""  # opens this attempt's door only

    def for_runner(self, node: int = 0) -> dict[str, Any]:
        """Return the launch as the runner on one of its nodes reads it.

        With it comes what PyPI has of a conda environment.
        """
        told = self.model_dump(mode="json", exclude={"url", "token"})
        if node and self.env.get(_GPUS) == ",".join(self.shares[0].gpus):
            told["env"][_GPUS] = ",".join(self.shares[node].gpus)
        mapped = to_pypi(self.environment.conda)
        told["environment"] |= {
            "digest": self.environment.digest,
            "pypi": list(mapped.requirements),
            "dropped": list(mapped.dropped),
        }
        return told


class Phase(StrEnum):
    PENDING = "pending"  # the target has it, and has not started its runner
    RUNNING = "running"  # its runner is alive
    DEAD = "dead"  # its runner ended before its work was done: launch again and it goes on
    EXITED = "exited"  # its runner did all it had to
    GONE = "gone"  # the target has no trace of it
    SILENT = "silent"  # where it is cannot be asked now: it may go on there


class Observation(Value):
    phase: Phase
    exit_code: int | None = None
    reason: str = ""


class Driver(Protocol):
    """Runs launches on one kind of compute.

    A driver keeps no state of its own: after a server restart a new instance must work from the
    stored Handle alone. Every method may be called twice, and from several threads at once.
    """

    Config: ClassVar[type[BaseModel]]

    def __init__(self, config: Any) -> None: ...

    def check(self) -> Facts:
        """Tell what the target has, or raise TargetUnreachable with what to do about it."""
        ...

    def plan(self, launch: Launch) -> dict[str, Any]:
        """Return the native request for `launch`. Pure: no I/O, so it can be shown and diffed."""
        ...

    def launch(self, launch: Launch) -> Handle:
        """Make sure a runner works on `launch`, and return at once.

        The same key gives the same Handle and starts the user's command at most once. Launching
        a DEAD launch again starts a runner that takes up what the last one left; launching one
        that is alive tells it the present `url` and `token`.
        """
        ...

    def poll(self, handles: Sequence[Handle]) -> list[Observation]:
        """Observe many launches in one round trip, in the order given."""
        ...

    def cancel(self, handle: Handle) -> None:
        """Ask for a stop of the whole process tree and return at once. Unknown is fine."""
        ...

    def forget(self, handle: Handle) -> None:
        """Remove what an ended launch left behind."""
        ...

    def diagnose(self, handle: Handle) -> str:
        """Say what the target itself knows about a runner that never reported."""
        ...


@runtime_checkable
class Screens(Protocol):
    """Optional: a target that can tell at submit that an environment will never work on it."""

    def screen(self, environment: Environment) -> None:
        """Raise Invalid, with the sentence why, if no job could use `environment` here."""
        ...


@runtime_checkable
class Settles(Protocol):
    """Optional: a target that learns something when it is checked which is kept from then on."""

    def settle(self) -> dict[str, Any]:
        """Return the settings to keep beside those given. Only after `check`."""
        ...


@runtime_checkable
class Caches(Protocol):
    """Optional: a target that keeps built environments for later jobs."""

    def environments(self) -> list[dict[str, Any]]:
        """List the environments built there, each with its digest, how, size and python."""
        ...

    def remove_environment(self, digest: str) -> bool:
        """Remove one; False when there is none. Raise Conflict while a job uses it."""
        ...


@runtime_checkable
class Releases(Protocol):
    """Optional: a driver that holds something open between calls, such as connections."""

    def release(self) -> None:
        """Close what is held open for this target: it is detached, or has other settings now.

        Whatever is needed again, by a job that goes on, is opened again.
        """
        ...
