"""The dependencies of the control functions, created once by the composition root."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from retarget.blobs.files import Files
from retarget.control.links import TargetLinks
from retarget.core.conda_policy import AUTO
from retarget.core.driver import Driver
from retarget.core.events import Change
from retarget.core.kept import DEFAULT_KEEP_LIMIT
from retarget.core.leases import Lease
from retarget.store.store import Store


class Bus(Protocol):
    def publish(self, changes: Sequence[Change]) -> None:
        """Announce changes. Rows announce their own; these are the bytes of logs."""
        ...

    def wake(self) -> None:
        """Wake the loop: there is something to do."""
        ...


@dataclass(frozen=True)
class ControlSettings:
    """What the server is configured with, as far as control depends on it."""

    url: str  # the address of this server for runners
    secret: bytes  # the key that the credentials of attempts are derived from
    conda_policy: str = AUTO  # whether PyPI may replace conda channels
    keep_limit: int = DEFAULT_KEEP_LIMIT  # bytes that a job may keep outside of outputs/
    # settings that the server sets itself, by the name of the target that it creates itself
    managed_settings: Mapping[str, frozenset[str]] = field(
        default_factory=dict[str, frozenset[str]]
    )


@dataclass(frozen=True)
class Context:
    store: Store
    files: Files
    links: TargetLinks
    bus: Bus
    clock: Callable[[], float]
    settings: ControlSettings

    def driver(self, target: str) -> Driver:
        return self.links.connect(self.store.targets.find(target))

    def under(self, lease: Lease) -> "Context":
        """Return the context of what is decided under this lease.

        Its writes fail, and hosts refuse its requests, once another server has taken the lease.
        """
        return replace(self, store=self.store.under(lease), links=self.links.under(lease))
