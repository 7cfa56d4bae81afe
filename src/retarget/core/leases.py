"""Leases: which server looks after which target. The rules, without I/O.

A server is alive as long as its row has not expired by the clock of the database. It holds a lease
until another server has removed its row and taken the lease with a higher epoch.
"""

import hashlib

from retarget.core.values import Value

LEASE_SECONDS = 10.0  # how long a server that does not renew counts as alive
RENEWAL_SECONDS = 2.0  # between two renewals
# A server stops acting this long before its leases expire: a decision made just before still has
# to reach the target, and no two clocks run equally fast.
MARGIN_SECONDS = 2.0


class Lease(Value):
    """The right of one server to look after a target.

    An epoch is never used twice, and a later lease of the same target has a higher one.
    """

    target: str
    epoch: int


class ServerRecord(Value):
    """A server as the others on its database see it."""

    id: str  # the name of its folder in `servers/`
    incarnation: str  # another one for each process, and after each expiry
    host: str  # identifies the machine
    host_name: str  # only displayed
    pid: int
    url: str
    version: str
    identity: str  # of home and secret: servers of one database share both
    home: str  # only displayed


class FreeTarget(Value):
    """A target that no living server looks after."""

    target: str
    epoch: int | None = None  # of the last lease; None: there was none
    host: str | None = None  # the only machine whose servers may take it; None: any may
    holder: str | None = None  # the id of the server that had the last lease


def may_take(free: FreeTarget, server: ServerRecord) -> bool:
    """Return whether a server may take the lease of a target that no living server looks after.

    Only the servers of its machine may take a target that belongs to one machine, and the server
    with the id of its last holder: that has the same home, perhaps on a new machine.
    """
    return free.host is None or free.host == server.host or free.holder == server.id


def next_epoch(last: int | None, now: float) -> int:
    """Return the epoch of the next lease. It includes the time, so that it also rises after the
    database was restored from a backup.
    """
    return max((last or 0) + 1, int(now * 1000))


class Validity:
    """Until when a server may act, by a clock that also runs while the server is paused."""

    def __init__(self) -> None:
        self._ends_at = float("-inf")

    def renew(self, *, sent_at: float) -> None:
        """Note that a renewal sent at this time has succeeded."""
        self._ends_at = sent_at + LEASE_SECONDS - MARGIN_SECONDS

    def is_over(self, now: float) -> bool:
        return now >= self._ends_at


def lease_name(secret: bytes, target: str) -> str:
    """Name the leases of a target on its hosts, where other servers may have targets as well."""
    return hashlib.blake2b(target.encode(), key=secret[:64], digest_size=12).hexdigest()
