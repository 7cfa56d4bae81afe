"""Servers and leases in SQL. Whether a server is alive is decided by the clock of the database."""

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Float,
    bindparam,
    delete,
    exists,
    insert,
    literal_column,
    or_,
    select,
    true,
    update,
)

from retarget.core.errors import Conflict
from retarget.core.leases import LEASE_SECONDS, FreeTarget, Lease, ServerRecord, next_epoch
from retarget.store.engine import insert_new, reading, writing
from retarget.store.schema import leases, servers, target_locks, targets

MayTake = Callable[[FreeTarget], bool]


class Leases:
    """`expire` is False for a database that only one server can use at a time: it has a lock."""

    def __init__(self, engine: Engine, *, expire: bool = True) -> None:
        self.engine = engine
        self.expire = expire

    def register(self, server: ServerRecord) -> None:
        """Announce a server, which has locked its folder: an earlier one with its id has ended.

        Raise Conflict if a living server of the database has another home or another secret.
        """
        with writing(self.engine) as db:
            has_ended = servers.c.id == server.id if self.expire else true()
            db.execute(delete(servers).where(has_ended))
            _remove_expired(db)
            _check_same_home(db, server)
            row = server.model_dump() | {"started_at": _now(db), "expires_at": self._expiry(db)}
            db.execute(insert(servers), row)

    def unregister(self, incarnation: str) -> None:
        """Give up all leases of a server at once."""
        with writing(self.engine) as db:
            db.execute(delete(servers).where(servers.c.incarnation == incarnation))

    def renew(self, incarnation: str) -> bool:
        """Stay alive, and remove servers that are not. Return False if this one was removed."""
        with writing(self.engine) as db:
            is_own = servers.c.incarnation == incarnation
            renewed = db.execute(update(servers).where(is_own).values(expires_at=self._expiry(db)))
            _remove_expired(db)
            return renewed.rowcount == 1

    def is_current(self, server: ServerRecord) -> bool:
        """Return whether no other process has registered with the id of this server."""
        query = select(servers.c.incarnation).where(servers.c.id == server.id)
        with reading(self.engine) as db:
            return db.scalar(query) in (None, server.incarnation)

    def held(self, incarnation: str) -> dict[str, Lease]:
        """Return the leases of a server, by target."""
        query = select(leases.c.target, leases.c.epoch).where(leases.c.server == incarnation)
        with reading(self.engine) as db:
            return {name: Lease(target=name, epoch=epoch) for name, epoch in db.execute(query)}

    def free(self) -> list[FreeTarget]:
        """Return the targets that no living server looks after."""
        with reading(self.engine) as db:
            return [FreeTarget.model_validate(dict(row)) for row in db.execute(_FREE).mappings()]

    def take(
        self, server: ServerRecord, free: FreeTarget, *, host: str | None = None
    ) -> Lease | None:
        """Take the lease of a target that was free; None if another server was faster.

        `host` is the machine whose servers alone may have it.
        """
        with writing(self.engine) as db:
            lease = Lease(target=free.target, epoch=next_epoch(free.epoch, _now(db)))
            row = {
                "server": server.incarnation,
                "holder": server.id,
                "epoch": lease.epoch,
                "host": host,
            }
            if not db.scalar(select(exists().where(servers.c.incarnation == server.incarnation))):
                return None
            if free.epoch is None:
                insert_new(db, leases, [{"target": free.target, **row}])
            else:
                is_free = leases.c.server.not_in(select(servers.c.incarnation))
                is_unchanged = (leases.c.target == free.target) & (leases.c.epoch == free.epoch)
                db.execute(update(leases).where(is_unchanged, is_free).values(row))
            is_taken = (leases.c.target == free.target) & (leases.c.epoch == lease.epoch)
            is_own = leases.c.server == server.incarnation
            return lease if db.scalar(select(exists().where(is_taken, is_own))) else None

    def last(self, target: str) -> FreeTarget:
        """Return the last lease of a target, which may not exist yet."""
        query = select(leases.c.epoch, leases.c.host, leases.c.holder)
        with reading(self.engine) as db:
            row = db.execute(query.where(leases.c.target == target)).mappings().first()
        return FreeTarget(target=target, **(dict(row) if row else {}))

    def free_one(self, target: str) -> None:
        """Make the lease of a target free. Its next one has a higher epoch."""
        with writing(self.engine) as db:
            db.execute(update(leases).where(leases.c.target == target).values(server="", host=None))

    def elsewhere(self, host: str) -> dict[str, str]:
        """Return the targets that belong to other machines, with the address of their server.

        It is empty while no server runs there.
        """
        query = (
            select(leases.c.target, servers.c.url)
            .join(servers, servers.c.incarnation == leases.c.server, isouter=True)
            .where(leases.c.host.is_not(None), leases.c.host != host)
        )
        with reading(self.engine) as db:
            return {target: url or "" for target, url in db.execute(query)}

    def servers(self) -> list[dict[str, Any]]:
        """Return the living servers, oldest first, with the targets that each looks after."""
        with reading(self.engine) as db:
            rows = db.execute(select(servers).order_by(servers.c.started_at)).mappings().all()
            held = db.execute(select(leases.c.server, leases.c.target).order_by(leases.c.target))
            targets_by_server: dict[str, list[str]] = {}
            for incarnation, target in held:
                targets_by_server.setdefault(incarnation, []).append(target)
            now = _now(db)
        return [
            {**row, "targets": targets_by_server.get(row["incarnation"], [])}
            for row in rows
            if row["expires_at"] is None or row["expires_at"] > now
        ]

    def others(self, server: ServerRecord) -> int:
        """Return how many other servers of the database are alive."""
        return sum(row["incarnation"] != server.incarnation for row in self.servers())

    def _expiry(self, db: Connection) -> float | None:
        return _now(db) + LEASE_SECONDS if self.expire else None


def holds_lease() -> ColumnElement[bool]:
    """Return the condition that a lease has not been taken over, for a guarded write."""
    return exists().where(
        leases.c.target == bindparam("lease_target"), leases.c.epoch == bindparam("lease_epoch")
    )


def lease_parameters(lease: Lease | None) -> Mapping[str, Any]:
    """Return the values for `holds_lease`."""
    return {} if lease is None else {"lease_target": lease.target, "lease_epoch": lease.epoch}


_HAS_LIVING_SERVER = exists().where(servers.c.incarnation == leases.c.server)
_FREE = (
    select(targets.c.name.label("target"), leases.c.epoch, leases.c.host, leases.c.holder)
    .join(leases, leases.c.target == targets.c.name, isouter=True)
    .where(or_(leases.c.target.is_(None), ~_HAS_LIVING_SERVER))
    .order_by(targets.c.name)
)
_CLOCKS = {
    "postgresql": "extract(epoch from clock_timestamp())::double precision",
    "sqlite": "(julianday('now') - 2440587.5) * 86400.0",
}


def _now(db: Connection) -> float:
    """Return the time by the clock of the database, which all servers share."""
    clock: ColumnElement[float] = literal_column(_CLOCKS[db.dialect.name], Float)
    return float(db.scalar(select(clock)) or 0.0)


def _remove_expired(db: Connection) -> None:
    db.execute(delete(servers).where(servers.c.expires_at <= _now(db)))
    db.execute(delete(target_locks).where(target_locks.c.server.not_in(_LIVING)))


_LIVING = select(servers.c.incarnation)


def _check_same_home(db: Connection, server: ServerRecord) -> None:
    other = db.execute(select(servers).where(servers.c.identity != server.identity)).first()
    if other is not None:
        raise Conflict(
            f"the server {other.id!r} on {other.host_name} uses this database with another home or "
            f"another secret: {other.home} there, {server.home} here; servers of one database must "
            "share one home folder; stop that server, or set RETARGET_HOME to its home"
        )
