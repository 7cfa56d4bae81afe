"""Jobs in SQL. A state changes only through `place` and `record`, which also write the history."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.exc import IntegrityError

from retarget.core.errors import Conflict, NotFound
from retarget.core.jobs import Attempt, Job, Move
from retarget.core.states import LIVE, Event, JobState, advance
from retarget.core.tracking import (
    ACTIVE,
    LEFT_OPEN,
    Experiment,
    Run,
    RunStatus,
    address_below,
    artifact_path,
)
from retarget.store.artifacts import below
from retarget.store.engine import reading, writing
from retarget.store.experiments import ensure_in
from retarget.store.runs import create_in
from retarget.store.schema import (
    artifacts,
    attempts,
    history,
    jobs,
    logged_models,
    metrics,
    model_versions,
    params,
    runs,
    targets,
)


class AttemptChange(TypedDict, total=False):
    """The columns of an attempt to change; those left out stay as they are."""

    confirmed: int
    heard: float | None
    exit_code: int | None
    reason: str
    started: float | None
    ended: float | None
    handle: str | None
    resumes: int


class Jobs:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def add(self, job: Job) -> None:
        """Keep a new job, or raise Conflict if its name is taken."""
        spec = job.spec
        searched = {
            "spec": spec.model_dump(mode="json"),
            "target": spec.target,
            "experiment": spec.experiment,
            "priority": spec.priority,
            "snapshot": spec.snapshot,
        }
        try:
            with writing(self.engine) as db:
                db.execute(insert(jobs).values(job.model_dump(exclude={"spec"}) | searched))
                _remember(db, job, Event.SUBMITTED)
                _open_run(db, job)
        except IntegrityError as error:
            raise Conflict(
                f"a job named {job.name!r} exists already; choose another name or delete it"
            ) from error

    def find(self, name_or_id: str) -> Job:
        """Return the job with this name or, if there is none, with this id."""
        query = select(jobs).where(or_(jobs.c.name == name_or_id, jobs.c.id == name_or_id))
        with reading(self.engine) as db:
            found = [_job(row) for row in db.execute(query).mappings()]
        if not found:
            raise _no_job(name_or_id)
        return next((job for job in found if job.name == name_or_id), found[0])

    def read(self, job_id: str) -> Job:
        with reading(self.engine) as db:
            row = db.execute(select(jobs).where(jobs.c.id == job_id)).mappings().one_or_none()
        if row is None:
            raise _no_job(job_id)
        return _job(row)

    def counts(self, target: str | None = None) -> dict[JobState, int]:
        """Tell how many jobs are in each state, zeros included; of one target or of all."""
        query = select(jobs.c.state, func.count()).group_by(jobs.c.state)
        if target is not None:
            query = query.where(jobs.c.target == target)
        with reading(self.engine) as db:
            counted = {state: number for state, number in db.execute(query)}
        return {state: counted.get(state, 0) for state in JobState}

    def queued(self, target: str, *, most: int | None = None) -> list[Job]:
        """Return the jobs that wait for a target, in placing order: priority first, then age."""
        waiting = (jobs.c.target == target) & (jobs.c.state == JobState.QUEUED)
        query = select(jobs).where(waiting).limit(most)
        with reading(self.engine) as db:
            rows = db.execute(query.order_by(jobs.c.priority.desc(), jobs.c.id)).mappings()
            return [_job(row) for row in rows]

    def live(self) -> list[tuple[Job, Attempt]]:
        """Return the jobs that are on a target, each with its present attempt."""
        present = (attempts.c.job_id == jobs.c.id) & (attempts.c.number == jobs.c.attempt)
        query = select(jobs, attempts).join(attempts, present).where(jobs.c.state.in_(LIVE))
        with reading(self.engine) as db:
            return [(_job(row), _attempt(row)) for row in db.execute(query).mappings()]

    def place(self, job: Job, attempt: Attempt, *, reason: str, now: float, seen: int) -> Job:
        """Give a queued job's next attempt to a target that has had `seen` placements.

        Raise Conflict, with nothing changed, if the job has moved or if something else was placed
        on the target since.
        """
        placed = _after(job, Event.PLACED, reason=reason, now=now)
        placed = placed.model_copy(update={"attempt": attempt.number})
        room = (targets.c.name == attempt.target) & (targets.c.placements == seen)
        with writing(self.engine) as db:
            claim = update(targets).where(room).values(placements=seen + 1)
            if db.execute(claim).rowcount == 0:
                raise Conflict(f"something else was placed on target {attempt.target!r} meanwhile")
            _move(db, job, placed, Event.PLACED)
            db.execute(insert(attempts).values(attempt.model_dump()))
        return placed

    def record(  # noqa: PLR0913  one move is one write: all of it is told at once
        self,
        job: Job,
        event: Event,
        *,
        reason: str,
        now: float,
        exit_code: int | None = None,
        attempt: AttemptChange | None = None,
    ) -> Job:
        """Apply `event` to the job as it was when read; raise Conflict if it has moved since.

        `attempt` changes its present attempt in the same transaction. A retried job starts clean:
        the exit code and the start of the last try stay with that attempt.
        """
        change = attempt or AttemptChange()
        moved = _after(job, event, reason=reason, now=now)
        if exit_code is not None and event is not Event.RETRIED:
            moved = moved.model_copy(update={"exit_code": exit_code})
        if moved.state is JobState.RUNNING:
            moved = moved.model_copy(update={"started": change.get("started") or now})
        with writing(self.engine) as db:
            _move(db, job, moved, event)
            _follow(db, moved)
            present = (attempts.c.job_id == job.id) & (attempts.c.number == job.attempt)
            _change(db, present, change)
        return moved

    def explain(self, job: Job, reason: str) -> Job:
        """Tell why a job stays where it is. Nothing happens if it has moved since.

        The version changes, so that whoever follows the job sees it; the history does not.
        """
        if reason == job.reason:
            return job
        told = job.model_copy(update={"reason": reason, "version": job.version + 1})
        with writing(self.engine) as db:
            return told if _replace(db, job, told) else job

    def attempt(self, key: str) -> Attempt:
        with reading(self.engine) as db:
            row = db.execute(select(attempts).where(attempts.c.key == key)).mappings().one_or_none()
        if row is None:
            raise _no_attempt(key)
        return _attempt(row)

    def attempts(self, job_id: str) -> list[Attempt]:
        """Return all tries at a job, the first one first."""
        query = select(attempts).where(attempts.c.job_id == job_id).order_by(attempts.c.number)
        with reading(self.engine) as db:
            return [_attempt(row) for row in db.execute(query).mappings()]

    def change_attempt(self, key: str, change: AttemptChange) -> None:
        """Change an attempt and leave its job where it is."""
        with writing(self.engine) as db:
            if change and not _change(db, attempts.c.key == key, change):
                raise _no_attempt(key)

    def history(self, job_id: str) -> list[Move]:
        """Return every move of a job, the first one first."""
        columns = [history.c[name] for name in Move.model_fields]
        query = select(*columns).where(history.c.job_id == job_id).order_by(history.c.version)
        with reading(self.engine) as db:
            return [Move.model_validate(dict(row)) for row in db.execute(query).mappings()]

    def join(self, job: Job, experiment: Experiment) -> bool:
        """Put a job and its run into an experiment. False if something was logged already."""
        with writing(self.engine) as db:
            if _has_logged(db, job.id):
                return False
            spec = job.spec.model_copy(update={"experiment": experiment.name})
            moved = job.model_copy(update={"spec": spec, "version": job.version + 1})
            if not _replace(db, job, moved):
                raise Conflict(f"job {job.name!r} has moved on meanwhile; look at it again")
            changed = {"spec": spec.model_dump(mode="json"), "experiment": experiment.name}
            db.execute(update(jobs).where(jobs.c.id == job.id).values(**changed))
            place = {"experiment_id": int(experiment.id), "location": _folder(experiment, job)}
            db.execute(update(runs).where(runs.c.id == job.id).values(**place))
        return True

    def delete(self, job: Job) -> None:
        """Remove an ended job with all that is known about it. One that is gone is fine."""
        if not job.state.is_final:
            raise Conflict(f"job {job.name!r} is {job.state.value}; cancel it first")
        with writing(self.engine) as db:
            db.execute(delete(jobs).where(jobs.c.id == job.id))  # the rest of its rows cascade
            db.execute(delete(runs).where(or_(runs.c.id == job.id, runs.c.job_id == job.id)))
            kept = select(model_versions.c.model_id).where(model_versions.c.model_id.is_not(None))
            mine = (logged_models.c.job_id == job.id) & logged_models.c.id.not_in(kept)
            db.execute(delete(logged_models).where(mine))

    def ended_with_handle(self) -> list[Attempt]:
        """Return the attempts that have ended and left something on their target."""
        left = attempts.c.handle.is_not(None) & attempts.c.ended.is_not(None)
        with reading(self.engine) as db:
            return [_attempt(row) for row in db.execute(select(attempts).where(left)).mappings()]

    def snapshots(self) -> set[str]:
        """Return the manifest of every job's code."""
        code = select(jobs.c.snapshot).where(jobs.c.snapshot.is_not(None)).distinct()
        with reading(self.engine) as db:
            return set(db.scalars(code))

    # last in the class: below it, `list` would not mean a list any more
    def list(
        self,
        *,
        states: Sequence[JobState] = (),
        target: str | None = None,
        experiment: str | None = None,
        limit: int = 100,
        before: str | None = None,
    ) -> list[Job]:
        """Return jobs, newest first; to see more, pass the last one's id as `before`."""
        wanted: list[ColumnElement[bool]] = []
        if target is not None:
            wanted.append(jobs.c.target == target)
        if experiment is not None:
            wanted.append(jobs.c.experiment == experiment)
        if before is not None:
            wanted.append(jobs.c.id < before)
        if len(states) > 1:
            # a walk per state, each as long as the limit at most: no database sorts all of them
            walks = [
                select(jobs.c.id).where(*wanted, jobs.c.state == state) for state in set(states)
            ]
            newest = [walk.order_by(jobs.c.id.desc()).limit(limit).subquery() for walk in walks]
            wanted = [jobs.c.id.in_(union_all(*(select(walk) for walk in newest)))]
        elif states:
            wanted.append(jobs.c.state == states[0])
        query = select(jobs).where(*wanted).order_by(jobs.c.id.desc()).limit(limit)
        with reading(self.engine) as db:
            return [_job(row) for row in db.execute(query).mappings()]


def _open_run(db: Connection, job: Job) -> None:
    """Give a job its run: whatever it logs goes there."""
    now = int(job.created * 1000)
    experiment = ensure_in(db, job.spec.experiment, now=now)
    if experiment.stage != ACTIVE:
        raise Conflict(f"experiment {experiment.name!r} is deleted; choose another or restore it")
    run = Run(
        id=job.id,
        experiment_id=experiment.id,
        job_id=job.id,
        name=job.name,
        user="",
        status=RunStatus.SCHEDULED,
        started=now,
        location=_folder(experiment, job),
        tags={
            "mlflow.source.name": shlex.join(job.spec.command)[:1000],
            "mlflow.source.type": "JOB",
        },
    )
    create_in(db, run)


def _has_logged(db: Connection, run_id: str) -> bool:
    """Tell whether a run has anything that its experiment's place is a part of, or a value."""
    location = db.scalar(select(runs.c.location).where(runs.c.id == run_id)) or ""
    files = below(artifacts.c.path, artifact_path(location) or run_id)
    marks = [select(literal(1)).where(table.c.run_id == run_id) for table in (params, metrics)]
    return (
        db.execute(union_all(*marks, select(literal(1)).where(files)).limit(1)).first() is not None
    )


def _folder(experiment: Experiment, job: Job) -> str:
    return address_below(experiment.location, f"{job.id}/artifacts")


def _follow(db: Connection, job: Job) -> None:
    """Have a job's run begin when its script does, and end if its client has left it open."""
    mine = update(runs).where(runs.c.id == job.id)
    if job.state is JobState.RUNNING:
        started = int((job.started or job.changed) * 1000)
        db.execute(mine.values(status=RunStatus.RUNNING, started=started, ended=None))
    if job.state in LEFT_OPEN:
        is_open = runs.c.status.in_((RunStatus.RUNNING, RunStatus.SCHEDULED))
        ended = {"status": LEFT_OPEN[job.state], "ended": int(job.changed * 1000)}
        db.execute(mine.where(is_open).values(**ended))


def _after(job: Job, event: Event, *, reason: str, now: float) -> Job:
    state = advance(job.state, event)
    change: dict[str, Any] = {"state": state, "reason": reason, "changed": now}
    if state.is_final:
        change["ended"] = now
    if event is Event.RETRIED:
        change |= {"started": None, "exit_code": None}
    return job.model_copy(update=change | {"version": job.version + 1})


def _move(db: Connection, before: Job, after: Job, event: Event) -> None:
    if not _replace(db, before, after):
        raise Conflict(f"job {before.name!r} has moved on meanwhile; look at it again")
    _remember(db, after, event)


def _replace(db: Connection, before: Job, after: Job) -> bool:
    guard = (jobs.c.id == before.id) & (jobs.c.version == before.version)
    values = after.model_dump(exclude={"id", "name", "spec", "created"})
    return db.execute(update(jobs).where(guard).values(values)).rowcount == 1


def _remember(db: Connection, job: Job, event: Event) -> None:
    row = {"version": job.version, "state": job.state, "reason": job.reason, "at": job.changed}
    db.execute(insert(history).values(job_id=job.id, event=event, **row))


def _change(db: Connection, which: ColumnElement[bool], change: AttemptChange) -> bool:
    return bool(change) and db.execute(update(attempts).where(which).values(**change)).rowcount == 1


def _job(row: Mapping[Any, Any]) -> Job:
    return Job.model_validate({name: row[jobs.c[name]] for name in Job.model_fields})


def _attempt(row: Mapping[Any, Any]) -> Attempt:
    return Attempt.model_validate({name: row[attempts.c[name]] for name in Attempt.model_fields})


def _no_job(name_or_id: str) -> NotFound:
    return NotFound(f"no job named {name_or_id!r}; `retarget job list` shows them")


def _no_attempt(key: str) -> NotFound:
    return NotFound(f"no attempt {key!r}; its job may have been deleted")
