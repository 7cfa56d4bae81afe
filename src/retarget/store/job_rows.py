"""The rows of jobs, attempts and their history: read, and written in an open transaction."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypedDict

from sqlalchemy import Connection, Update, bindparam, insert, select, update

from retarget.core.errors import Conflict
from retarget.core.events import job_changed
from retarget.core.jobs import Attempt, Job
from retarget.core.leases import Lease
from retarget.core.states import Event
from retarget.store.changes import note
from retarget.store.leases import holds_lease, lease_parameters
from retarget.store.schema import attempts, history, jobs


class AttemptChange(TypedDict, total=False):
    """The columns of an attempt to change; columns not named keep their values."""

    events_acked: int
    last_seen_at: float | None
    exit_code: int | None
    reason: str
    launched_at: float
    preparing_at: float
    starting_at: float
    started_at: float | None
    first_output_at: float
    exited_at: float
    ended_at: float | None
    handle: str | None
    resumes: int
    lock: str


class AppliedEvent(NamedTuple):
    """An event, and the job after it."""

    event: Event
    job: Job


# Built once: building these statements costs more than running them.
_IMMUTABLE = ("id", "name", "spec", "created_at")  # columns that never change
_REPLACE = (
    update(jobs)
    .where(jobs.c.id == bindparam("the_id"), jobs.c.version == bindparam("the_version"))
    .values({name: bindparam(name) for name in Job.model_fields if name not in _IMMUTABLE})
)
_REPLACE_UNDER_LEASE = _REPLACE.where(holds_lease())
_INSERT_HISTORY = insert(history)
_JOB_COLUMNS = [jobs.c[name] for name in Job.model_fields]
_ATTEMPT_COLUMNS = [attempts.c[name] for name in Attempt.model_fields]
SELECT_JOB = select(*_JOB_COLUMNS)
SELECT_ATTEMPT = select(*_ATTEMPT_COLUMNS)
SELECT_JOB_AND_ATTEMPT = select(*_JOB_COLUMNS, *_ATTEMPT_COLUMNS).select_from(jobs)
UPDATE_ATTEMPT = update(attempts).where(attempts.c.key == bindparam("the_key"))
UPDATE_ATTEMPT_UNDER_LEASE = UPDATE_ATTEMPT.where(holds_lease())
UPDATE_CURRENT_ATTEMPT = update(attempts).where(
    attempts.c.job_id == bindparam("of_job"), attempts.c.number == bindparam("attempt_number")
)


def job_row(job: Job) -> dict[str, Any]:
    spec = job.spec
    return job.model_dump(exclude={"spec"}) | {
        "spec": spec.model_dump(mode="json"),
        "target": spec.target,
        "experiment": spec.experiment,
        "priority": spec.priority,
        "snapshot": spec.snapshot,
    }


def apply_events(
    db: Connection, before: Job, applied: Sequence[AppliedEvent], lease: Lease | None = None
) -> None:
    if not replace_job(db, before, applied[-1].job, lease):
        raise job_has_changed(before)
    write_history(db, applied)


def rewrite_spec(db: Connection, job: Job, change: Mapping[str, Any]) -> Job:
    """Change the spec of a job, or raise Conflict if the job has changed since."""
    spec = job.spec.model_copy(update=change)
    rewritten = job.model_copy(update={"spec": spec, "version": job.version + 1})
    if not replace_job(db, job, rewritten):
        raise job_has_changed(job)
    values = {"spec": spec.model_dump(mode="json")}
    db.execute(update(jobs).where(jobs.c.id == job.id).values(**values))
    return rewritten


def replace_job(db: Connection, before: Job, after: Job, lease: Lease | None = None) -> bool:
    values = after.model_dump(exclude=set(_IMMUTABLE))
    values |= {"the_id": before.id, "the_version": before.version, **lease_parameters(lease)}
    statement = _REPLACE_UNDER_LEASE if lease else _REPLACE
    is_replaced = db.execute(statement, values).rowcount == 1
    if is_replaced:
        note(db, job_changed(after.id, after.version))
    return is_replaced


def write_history(db: Connection, applied: Sequence[AppliedEvent]) -> None:
    rows = [
        {
            "job_id": job.id,
            "version": job.version,
            "event": event,
            "state": job.state,
            "reason": job.reason,
            "at": job.changed_at,
        }
        for event, job in applied
    ]
    db.execute(_INSERT_HISTORY, rows)


def update_attempt(
    db: Connection, statement: Update, at: dict[str, Any], change: AttemptChange
) -> bool:
    if not change:
        return False
    values = {f"new_{name}": value for name, value in change.items()}
    return db.execute(_attempt_update(statement, tuple(change)), at | values).rowcount == 1


@cache
def _attempt_update(statement: Update, names: tuple[str, ...]) -> Update:
    return statement.values({name: bindparam(f"new_{name}") for name in names})


def read_job(row: Sequence[Any]) -> Job:
    return Job.model_validate(dict(zip(Job.model_fields, row, strict=True)))


def read_attempt(row: Sequence[Any]) -> Attempt:
    return Attempt.model_validate(dict(zip(Attempt.model_fields, row, strict=True)))


def read_job_and_attempt(row: Sequence[Any]) -> tuple[Job, Attempt]:
    return read_job(row[: len(_JOB_COLUMNS)]), read_attempt(row[len(_JOB_COLUMNS) :])


def job_has_changed(job: Job) -> Conflict:
    return Conflict(f"job {job.name!r} has changed meanwhile; read it again")
