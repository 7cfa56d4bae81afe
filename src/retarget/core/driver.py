"""The contract between the control plane and the driver of one kind of target."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, NewType, Protocol, runtime_checkable

from pydantic import BaseModel

from retarget.core.conda_policy import AUTO, substitute_for
from retarget.core.environments import Environment
from retarget.core.kept import KEEP_NONE
from retarget.core.links import Links
from retarget.core.locks import Lock
from retarget.core.own_packages import OwnPackage
from retarget.core.targets import Allocation, Inventory
from retarget.core.values import Value

if TYPE_CHECKING:
    import socket

Handle = NewType("Handle", str)  # what a driver needs to find its work again; stored, never parsed

_GPU_VARIABLE = "CUDA_VISIBLE_DEVICES"
CREDENTIALS = frozenset({"runner_key", "script_token"})  # of a launch: never shown
_NOT_IN_LAUNCH = {*CREDENTIALS, "url", "locks", "conda_policy"}


class Launch(Value):
    """One attempt, fully resolved: it can be run without the store."""

    key: str  # unique per attempt; makes launch() idempotent
    job: str  # the job's id
    name: str  # the job's name, only displayed
    experiment_id: str = ""  # for further runs that the script creates with MLflow
    command: tuple[str, ...]
    variables: dict[str, str] = {}
    snapshot: str | None = None  # digest of the manifest of the code
    environment: Environment = Environment()
    cpus: float = 1
    memory: int | None = None
    allocations: tuple[Allocation, ...] = ()  # one per node
    nodes: int = 1
    processes_per_node: int = 1
    timeout: float | None = None  # seconds that the script may run
    grace_seconds: float = 10.0  # seconds between TERM and KILL
    lost_after_seconds: float | None = None  # without contact: then the runner stops it
    secrets: tuple[str, ...] = ()  # names of variables: the runner fetches their values
    own_packages: tuple[OwnPackage, ...] = ()
    required_packages: tuple[str, ...] = ()  # the missing ones are installed for the job alone
    allow_pip: bool = False  # whether a user-managed interpreter may be changed
    url: str = ""  # where the runner reports; empty: it keeps everything on disk
    runner_key: str = ""  # proves runner and server to each other; never sent
    script_token: str = ""  # opens tracking, for this attempt only
    locks: tuple[Lock, ...] = ()  # of the environment, for all platforms
    conda_policy: str = AUTO  # whether PyPI may replace conda channels: core/conda_policy
    # what to keep of the files outside of outputs/: `none`, `all`, patterns, or () for all files
    # within the limit (in bytes, of all nodes together)
    keep: tuple[str, ...] = (KEEP_NONE,)
    keep_limit: int = 0
    split_stderr: bool = False  # whether stdout and stderr of the script are two streams
    # how many events of each node's runner the server has; empty if nobody counts them
    events_acked: tuple[int, ...] = ()

    def for_runner(self, node: int = 0) -> dict[str, Any]:
        """Return the content of launch.json for the runner on one node.

        It includes the PyPI equivalents of conda packages.
        """
        content = self.model_dump(mode="json", exclude=_NOT_IN_LAUNCH)
        if node and self.variables.get(_GPU_VARIABLE) == ",".join(self.allocations[0].gpus):
            content["variables"][_GPU_VARIABLE] = ",".join(self.allocations[node].gpus)
        substitute = substitute_for(self.environment, self.conda_policy)
        content["keep_limit"] = self.keep_limit // self.nodes
        content["events_acked"] = self.events_acked[node] if self.events_acked else None
        content["environment"] |= {
            "digest": self.environment.digest,
            "pypi": list(substitute.requirements),
            "dropped": list(substitute.dropped),
            "pypi_refusal": substitute.refusal,
            "locks": [{**lock.model_dump(mode="json"), "id": lock.id} for lock in self.locks],
        }
        return content

    def contact(self) -> dict[str, Any]:
        """Return how the runner reaches the server: the `contact` of launch.json."""
        return {
            "url": self.url,
            "path": f"/api/attempts/{self.key}",
            "runner_key": self.runner_key,
            "script_token": self.script_token,
        }


class Phase(StrEnum):
    PENDING = "pending"  # the target has accepted it and not started the runner yet
    RUNNING = "running"  # the runner is alive
    DEAD = "dead"  # the runner died too early: launching again continues its work
    EXITED = "exited"  # the runner finished its work
    GONE = "gone"  # the target does not know it
    SILENT = "silent"  # its host does not answer now: it may still be running
    # the target took its node away, through no fault of the job: nothing of it runs any more
    PREEMPTED = "preempted"


class Observation(Value):
    phase: Phase
    exit_code: int | None = None
    reason: str = ""


class Driver(Protocol):
    """Runs launches on one kind of target.

    A driver keeps no state: after a server restart a new instance must work from the
    stored Handle alone. Every method may be called twice, and from several threads at once.
    """

    Config: ClassVar[type[BaseModel]]

    def __init__(self, config: Any, links: Links) -> None:
        """Make the driver of one target for one request. What must stay open belongs to `links`."""
        ...

    def check(self) -> Inventory:
        """Return what the target has, or raise TargetUnreachable with what to do about it."""
        ...

    def plan(self, launch: Launch) -> dict[str, Any]:
        """Return the native request for `launch`. Pure: no I/O, so that it can be previewed."""
        ...

    def launch(self, launch: Launch) -> Handle:
        """Make sure that a runner works on `launch`, and return at once.

        The same key gives the same Handle and starts the user's command at most once. For a
        DEAD launch, a new runner starts and continues where the last one stopped. A live runner
        gets the current `url` and credentials.
        """
        ...

    def poll(self, handles: Sequence[Handle]) -> list[Observation]:
        """Observe many launches in one round trip; return them in the order of `handles`."""
        ...

    def cancel(self, handle: Handle) -> None:
        """Ask for a stop and return at once. An unknown handle is not an error."""
        ...

    def forget(self, handle: Handle) -> None:
        """Remove the files and processes of an ended launch from the target."""
        ...

    def diagnose(self, handle: Handle) -> str:
        """Describe what the target itself knows about a runner that never reported."""
        ...


@runtime_checkable
class ValidatesEnvironments(Protocol):
    """Optional: a driver that rejects environments at submit that can never work on its target."""

    def validate_environment(self, environment: Environment) -> None:
        """Raise Invalid, with the reason, if no job could use `environment` on this target."""
        ...


@runtime_checkable
class UsesCondaChannels(Protocol):
    """Optional: a driver that knows at submit whether its target can use conda channels."""

    def conda_obstacle(self, environment: Environment) -> str:
        """Return why `environment` cannot be built from its channels; empty if it can, or if that
        is known only when it is built.
        """
        ...


@runtime_checkable
class Settles(Protocol):
    """Optional: a driver that learns settings during a check which are stored from then on."""

    def settle(self) -> dict[str, Any]:
        """Return the settings to store besides those of the user. Call `check` first."""
        ...


@runtime_checkable
class Caches(Protocol):
    """Optional: a driver whose target keeps built environments for later jobs."""

    def environments(self) -> list[dict[str, Any]]:
        """List the environments built on the target, each with its digest, how, size and python."""
        ...

    def remove_environment(self, digest: str) -> bool:
        """Remove one; return False if it does not exist. Raise Conflict while a job uses it."""
        ...


@dataclass(frozen=True)
class ActingLease:
    """Shows a host that a request was decided under the newest lease of a target."""

    name: str  # of the target's leases: several servers may have targets on one host
    epoch: int
    check: Callable[[], None]  # raises LeaseLost once this server must not act any more


def show_lease(lease: ActingLease | None) -> dict[str, Any] | None:
    """Return what a host must see, right before it is sent; None without a lease.

    Raise LeaseLost if this server must not act any more.
    """
    if lease is None:
        return None
    lease.check()
    return {"name": lease.name, "epoch": lease.epoch}


@runtime_checkable
class ActsUnderLease(Protocol):
    """Optional: a driver whose hosts refuse a server after another one has taken its lease."""

    def act_under(self, lease: ActingLease) -> None:
        """Send this with each launch, cancel and forget. A host refuses a lower epoch than it has
        seen with the same name.
        """
        ...


@runtime_checkable
class MayBeLocal(Protocol):
    """Optional: a driver whose target may belong to the machine that the server runs on."""

    def is_local(self) -> bool:
        """Whether it is: only servers of this machine can look after it."""
        ...


@runtime_checkable
class Executes(Protocol):
    """Optional: a driver that reaches its runners, so that commands can run beside a script."""

    def open_exec(self, handle: Handle, node: int) -> "socket.socket":
        """Connect to the runner on one node of a launch, which then runs one command.

        Raise Conflict, with the reason, if its script is not running.
        """
        ...


@runtime_checkable
class Releases(Protocol):
    """Optional: a driver that holds something open between calls, such as connections."""

    def release(self) -> None:
        """Close what is open for this target: it was detached, or its settings changed.

        A job that is still running opens again what it needs.
        """
        ...
