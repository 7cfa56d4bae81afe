"""Secrets in SQL: encrypted values by name, and the values that belong to a job or an attempt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, delete, insert, select

from retarget.core.errors import NotFound
from retarget.store.engine import insert_new, reading, upsert, writing
from retarget.store.schema import job_secrets, secrets

_OF_THE_JOB = ""  # instead of the key of an attempt


@dataclass(frozen=True, slots=True)
class StoredSecret:
    name: str
    created_at: float
    updated_at: float


class Secrets:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def put(self, name: str, sealed: str, now: float) -> StoredSecret:
        """Store a value, or replace it."""
        row = {"name": name, "sealed": sealed, "created_at": now, "updated_at": now}
        with writing(self.engine) as db:
            upsert(db, secrets, row, replace=("sealed", "updated_at"))
        return next(stored for stored in self.list() if stored.name == name)

    def list(self) -> list[StoredSecret]:
        """Return all secrets by name, without their values."""
        query = select(secrets.c.name, secrets.c.created_at, secrets.c.updated_at)
        with reading(self.engine) as db:
            return [StoredSecret(*row) for row in db.execute(query.order_by(secrets.c.name))]

    def sealed(self, names: Sequence[str]) -> dict[str, str]:
        """Return the encrypted values of these secrets. Those that do not exist are omitted."""
        query = select(secrets.c.name, secrets.c.sealed).where(secrets.c.name.in_(names))
        with reading(self.engine) as db:
            return {name: sealed for name, sealed in db.execute(query)}

    def delete(self, name: str) -> None:
        with writing(self.engine) as db:
            deleted = db.execute(delete(secrets).where(secrets.c.name == name))
        if deleted.rowcount == 0:
            raise no_secret(name)

    def of_job(self, job_id: str) -> dict[str, str]:
        """Return the encrypted values that were submitted with a job."""
        return self._read(job_id, _OF_THE_JOB)

    def of_attempt(self, job_id: str, key: str) -> dict[str, str]:
        """Return the encrypted values that an attempt has taken."""
        return self._read(job_id, key)

    def take(self, job_id: str, key: str, sealed: Mapping[str, str]) -> None:
        """Store the values that an attempt takes, unless one of its nodes has done so."""
        with writing(self.engine) as db:
            insert_new(db, job_secrets, _rows(job_id, key, sealed))

    def _read(self, job_id: str, key: str) -> dict[str, str]:
        columns = select(job_secrets.c.name, job_secrets.c.sealed)
        query = columns.where(job_secrets.c.job_id == job_id, job_secrets.c.attempt == key)
        with reading(self.engine) as db:
            return {name: sealed for name, sealed in db.execute(query)}


def add_in(db: Connection, sealed_by_job: Mapping[str, Mapping[str, str]]) -> None:
    """Store the encrypted values that are submitted with jobs, by the id of the job."""
    rows = [row for job, sealed in sealed_by_job.items() for row in _rows(job, _OF_THE_JOB, sealed)]
    if rows:
        db.execute(insert(job_secrets), rows)


def release_in(db: Connection, keys: Sequence[str]) -> None:
    """Remove the values that these attempts have taken."""
    db.execute(delete(job_secrets).where(job_secrets.c.attempt.in_(keys)))


def no_secret(name: str) -> NotFound:
    return NotFound(f"no secret named {name!r}; store one with `retarget secret set {name}`")


def _rows(job_id: str, key: str, sealed: Mapping[str, str]) -> list[dict[str, str]]:
    return [
        {"job_id": job_id, "attempt": key, "name": name, "sealed": value}
        for name, value in sealed.items()
    ]
