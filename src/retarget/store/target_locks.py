"""Locks on targets in SQL: one request at a time attaches, changes or detaches a target."""

import secrets
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from sqlalchemy import Engine, delete, select

from retarget.store.engine import insert_new, reading, writing
from retarget.store.schema import servers, target_locks

_RETRY_SECONDS = 0.05


class TargetLocks:
    """While a target is locked, nothing is placed on it and nothing is removed from it.

    The locks of a server that has ended do not count.
    """

    def __init__(self, engine: Engine, *, server: Callable[[], str]) -> None:
        self.engine = engine
        self._server = server  # returns the incarnation of this server
        self.changes = 0  # how many this object has made; caches of targets compare it

    def held(self) -> set[str]:
        """Return the names of the locked targets."""
        is_living = target_locks.c.server.in_(select(servers.c.incarnation))
        with reading(self.engine) as db:
            return set(db.scalars(select(target_locks.c.target).where(is_living)))

    @contextmanager
    def hold(self, target: str) -> Generator[None]:
        """Wait for the lock on this target, and hold it."""
        token = secrets.token_hex(8)
        while not self._take(target, token):
            time.sleep(_RETRY_SECONDS)
        self.changes += 1
        try:
            yield
        finally:
            with writing(self.engine) as db:
                db.execute(delete(target_locks).where(target_locks.c.token == token))
            self.changes += 1

    def _take(self, target: str, token: str) -> bool:
        is_dead = target_locks.c.server.not_in(select(servers.c.incarnation))
        row = {"target": target, "server": self._server(), "token": token}
        with writing(self.engine) as db:
            db.execute(delete(target_locks).where(target_locks.c.target == target, is_dead))
            insert_new(db, target_locks, [row])
            is_target = target_locks.c.target == target
            return db.scalar(select(target_locks.c.token).where(is_target)) == token
