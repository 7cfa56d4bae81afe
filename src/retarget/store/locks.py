"""Locks in SQL: their content by id, and which one an environment has for a platform and Python."""

from collections.abc import Collection

from sqlalchemy import Engine, select

from retarget.core.locks import Lock
from retarget.store.engine import reading, upsert, writing
from retarget.store.schema import environment_locks, locks


class Locks:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def add(self, environment: str, lock: Lock, now: float) -> str:
        """Store a lock and return its id.

        It becomes the lock of this environment for its platform, Python and source, unless there
        is one already.
        """
        lock_row = {"id": lock.id, "content": lock.model_dump(mode="json"), "created_at": now}
        environment_row = {
            "digest": environment,
            "platform": lock.platform,
            "python": lock.python_minor,
            "source": lock.source,
            "lock_id": lock.id,
            "created_at": now,
        }
        with writing(self.engine) as db:
            upsert(db, locks, lock_row)
            upsert(db, environment_locks, environment_row)
        return lock.id

    def of(self, environment: str) -> list[Lock]:
        """Return the locks of an environment, oldest first."""
        query = (
            select(locks.c.content)
            .join(environment_locks, environment_locks.c.lock_id == locks.c.id)
            .where(environment_locks.c.digest == environment)
            .order_by(environment_locks.c.created_at, locks.c.id)
        )
        with reading(self.engine) as db:
            return [Lock.model_validate(content) for content in db.scalars(query)]

    def read(self, ids: Collection[str]) -> dict[str, Lock]:
        """Return locks by their ids. Unknown ids are skipped."""
        if not ids:
            return {}
        query = select(locks.c.id, locks.c.content).where(locks.c.id.in_(ids))
        with reading(self.engine) as db:
            return {row.id: Lock.model_validate(row.content) for row in db.execute(query)}
