"""Keeps this server alive for the others on its database, and takes leases that nobody holds."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import Any

from retarget.core.errors import Conflict, DatabaseUnreachable, LeaseLost, RetargetError
from retarget.core.leases import (
    RENEWAL_SECONDS,
    FreeTarget,
    Lease,
    ServerRecord,
    Validity,
    may_take,
)
from retarget.core.targets import Target
from retarget.store.leases import Leases
from retarget.store.targets import Targets

_log = logging.getLogger("retarget")


def time_since_boot() -> float:
    """Return a time that also passes while this process, or this machine, sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class LeaseKeeper:
    """The leases of this server.

    They last while this server runs, if only one server can use the database. Otherwise they
    expire: this server renews them, and does not act once it could not for too long.
    """

    def __init__(
        self,
        leases: Leases,
        targets: Targets,
        server: ServerRecord,
        *,
        is_local: Callable[[Target], bool],
        clock: Callable[[], float] = time_since_boot,
    ) -> None:
        self._leases = leases
        self._targets = targets
        self._server = server
        self._is_local = is_local  # whether a target belongs to this machine
        self._clock = clock
        self._validity = Validity()
        self._held: Mapping[str, Lease] = {}
        self._elsewhere: Mapping[str, str] = {}
        self._lock = threading.Lock()  # held by `renew`
        self._stopping = threading.Event()
        self._on_change: Callable[[], None] = _ignore
        self._on_replaced: Callable[[], None] = _ignore

    @property
    def server(self) -> ServerRecord:
        return self._server

    def servers(self) -> list[dict[str, Any]]:
        """Return the living servers of the database, with the targets that each looks after."""
        return self._leases.servers()

    def is_alone(self) -> bool:
        """Whether no other server of the database is alive."""
        return not self._leases.others(self._server)

    def register(self) -> None:
        """Announce this server, and take all leases that are free.

        Raise Conflict if a living server of the database has another home or secret.
        """
        self._leases.register(self._server)
        self.renew()

    def start(self, *, on_change: Callable[[], None], on_replaced: Callable[[], None]) -> None:
        """Renew the leases in a thread of their own.

        `on_change` is called when this server has other leases than before, and `on_replaced` when
        another process has taken its id.
        """
        self._on_change, self._on_replaced = on_change, on_replaced
        if self._leases.expire:
            threading.Thread(target=self._run, name="leases", daemon=True).start()

    def stop(self) -> None:
        """Give up all leases. Others can take them at once."""
        self._stopping.set()
        with self._lock:
            self._held = {}
            with suppress(RetargetError):  # then they expire
                self._leases.unregister(self._server.incarnation)

    def held(self) -> Mapping[str, Lease]:
        """Return the leases by target. There are none while this server must not act."""
        return {} if self._may_not_act() else self._held

    def check(self, lease: Lease) -> None:
        """Raise LeaseLost unless this server may still act under this lease."""
        if self.held().get(lease.target) != lease:
            raise LeaseLost(f"another server looks after target {lease.target!r} now")

    def elsewhere(self, target: str) -> str | None:
        """Return the address of the server on this target's machine; None if any server will do."""
        return self._elsewhere.get(target)

    def claim(self, target: Target) -> None:
        """Take the lease of a target that this server attaches.

        The server that looked after an earlier target with this name has it until then: it may
        still have to stop something that it was launching when the target was detached.
        """
        with self._lock:
            self._leases.free_one(target.name)
            self._take(self._leases.last(target.name), is_local=self._is_local(target))
        self.renew()

    def rebind(self, target: Target) -> None:
        """Give a target whose settings have changed to servers that can look after it."""
        if (self._leases.last(target.name).host is not None) != self._is_local(target):
            self.claim(target)

    def renew(self) -> None:
        """Renew all leases, take those that are free, and learn which ones were lost."""
        with self._lock:
            if self._stopping.is_set():
                return
            sent_at, before = self._clock(), self._held
            if self._leases.expire and not self._leases.renew(self._server.incarnation):
                self._register_again()
            self._take_all(self._leases.free())
            self._held = self._leases.held(self._server.incarnation)
            self._elsewhere = self._leases.elsewhere(self._server.host)
            self._validity.renew(sent_at=sent_at)
        if self._held != before:
            _log_changes(before, self._held)
            self._on_change()

    def _run(self) -> None:
        while not self._stopping.wait(RENEWAL_SECONDS):
            try:
                self.renew()
            except DatabaseUnreachable:
                pass  # is logged where it was detected
            except Conflict as error:
                _log.error("%s; stopping", error)
                self._on_replaced()
                return
            except Exception:  # noqa: BLE001 - the edge of the thread: it must continue
                _log.exception("the leases could not be renewed")

    def _register_again(self) -> None:
        """Register again: this server failed to renew for so long that others removed it."""
        if not self._leases.is_current(self._server):
            raise Conflict(
                f"another server with the id {self._server.id!r} uses this database, "
                "with a copy of this home"
            )
        self._held = {}
        self._server = self._server.model_copy(update={"incarnation": token_hex(16)})
        self._leases.register(self._server)

    def _take_all(self, free_targets: Sequence[FreeTarget]) -> None:
        for free in free_targets:
            if may_take(free, self._server):
                self._take(free, is_local=self._is_part_of_a_machine(free))

    def _is_part_of_a_machine(self, free: FreeTarget) -> bool:
        if free.epoch is not None:
            return free.host is not None  # known without loading its driver
        targets = [target for target in self._targets.list() if target.name == free.target]
        return any(map(self._is_local, targets))

    def _take(self, free: FreeTarget, *, is_local: bool) -> None:
        host = self._server.host if is_local else None
        self._leases.take(self._server, free, host=host)

    def _may_not_act(self) -> bool:
        return self._leases.expire and self._validity.is_over(self._clock())


def _ignore() -> None:
    """Do nothing: the keeper has not started."""


def _log_changes(before: Mapping[str, Lease], after: Mapping[str, Lease]) -> None:
    lost = [name for name, lease in before.items() if after.get(name) != lease]
    new = [name for name, lease in after.items() if before.get(name) != lease]
    if lost:
        _log.info("another server looks after %s, or it was detached", ", ".join(lost))
    if new:
        _log.info("looking after %s", ", ".join(new))
