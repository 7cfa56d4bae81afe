"""Jobs in SQL. A state changes only through `place` and `record`, which also write the history."""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, TypedDict

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Update,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.exc import IntegrityError

from retarget.core.errors import Conflict, NotFound
from retarget.core.jobs import Attempt, Job, Move
from retarget.core.states import LIVE, Event, JobState
from retarget.core.targets import no_target
from retarget.core.tracking import Experiment
from retarget.store.engine import reading, writing
from retarget.store.job_runs import folder_of, follow, has_logged, open_runs
from retarget.store.schema import (
    attempts,
    history,
    jobs,
    logged_models,
    model_versions,
    runs,
    targets,
)


class AttemptChange(TypedDict, total=False):
    """The columns of an attempt to change; those left out stay as they are."""

    confirmed: int
    heard: float | None
    exit_code: int | None
    reason: str
    launched: float
    preparing: float
    starting: float
    started: float | None
    output: float
    exited: float
    ended: float | None
    handle: str | None
    resumes: int


class Moved(NamedTuple):
    """An event, and the job as it left it."""

    event: Event
    job: Job


class Jobs:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def add(self, *new: Job) -> None:
        """Keep new jobs, all of them, or raise Conflict if a name is taken and keep none.

        Raise NotFound if the target of one is gone: nobody would ever place it.
        """
        try:
            with writing(self.engine) as db:
                _need_targets(db, {job.spec.target for job in new})
                db.execute(_INSERT_JOB, [_row(job) for job in new])
                _remember(db, [Moved(Event.SUBMITTED, job) for job in new])
                open_runs(db, new)
        except IntegrityError as error:
            taken = self.taken([job.name for job in new]) or {new[0].name}
            raise Conflict(
                f"a job named {min(taken)!r} exists already; choose another name or delete it"
            ) from error

    def taken(self, names: Sequence[str]) -> set[str]:
        """Return those of these names that jobs have already."""
        with reading(self.engine) as db:
            return set(db.scalars(select(jobs.c.name).where(jobs.c.name.in_(names))))

    def find(self, name_or_id: str) -> Job:
        """Return the job with this name or, if there is none, with this id."""
        query = _SELECT_JOB.where(or_(jobs.c.name == name_or_id, jobs.c.id == name_or_id))
        with reading(self.engine) as db:
            found = [_job(row) for row in db.execute(query)]
        if not found:
            raise _no_job(name_or_id)
        return next((job for job in found if job.name == name_or_id), found[0])

    def read(self, job_id: str) -> Job:
        with reading(self.engine) as db:
            row = db.execute(_READ, {"the_id": job_id}).one_or_none()
        if row is None:
            raise _no_job(job_id)
        return _job(row)

    def read_all(self, ids: Sequence[str]) -> list[Job]:
        """Return these jobs, oldest first; those that are gone are left out."""
        query = _SELECT_JOB.where(jobs.c.id.in_(ids)).order_by(jobs.c.id)
        with reading(self.engine) as db:
            return [_job(row) for row in db.execute(query)]

    def states(self, ids: Sequence[str]) -> dict[str, JobState]:
        """Return the state of each of these jobs; those that are gone are left out."""
        query = select(jobs.c.id, jobs.c.state).where(jobs.c.id.in_(ids))
        with reading(self.engine) as db:
            return {found: JobState(state) for found, state in db.execute(query)}

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
        query = _QUEUED if most is None else _HEAD_OF_QUEUE
        with reading(self.engine) as db:
            return [_job(row) for row in db.execute(query, {"on": target, "most": most})]

    def ahead_of(self, job: Job) -> list[str]:
        """Return the names of the jobs that are placed before this one, in that order."""
        more, same = jobs.c.priority > job.spec.priority, jobs.c.priority == job.spec.priority
        query = (
            select(jobs.c.name)
            .where(jobs.c.target == job.spec.target, jobs.c.state == JobState.QUEUED)
            .where(more | same & (jobs.c.id < job.id))
            .order_by(jobs.c.priority.desc(), jobs.c.id)
        )
        with reading(self.engine) as db:
            return list(db.scalars(query))

    def live(self) -> list[tuple[Job, Attempt]]:
        """Return the jobs that are on a target, each with its present attempt."""
        with reading(self.engine) as db:
            return [_both(row) for row in db.execute(_LIVE)]

    def place(self, job: Job, attempt: Attempt, *, reason: str, now: float, seen: int) -> Job:
        """Give a queued job's next attempt to a target that has had `seen` placements.

        Raise Conflict, with nothing changed, if the job has moved or if something else was placed
        on the target since.
        """
        placed = job.after(Event.PLACED, reason=reason, now=now)
        placed = placed.model_copy(update={"attempt": attempt.number})
        with writing(self.engine) as db:
            if db.execute(_CLAIM, {"on": attempt.target, "seen": seen}).rowcount == 0:
                raise Conflict(f"something else was placed on target {attempt.target!r} meanwhile")
            _move(db, job, [Moved(Event.PLACED, placed)])
            db.execute(_INSERT_ATTEMPT, attempt.model_dump())
        return placed

    def take_back(self, job: Job, attempt: Attempt, *, reason: str, now: float) -> None:
        """Undo a placement that nothing came of: it does not count as an attempt.

        Raise Conflict, with nothing changed, if the job has moved or its target has answered.
        """
        queued = job.after(Event.RETURNED, reason=reason, now=now)
        queued = queued.model_copy(update={"attempt": attempt.number - 1})
        with writing(self.engine) as db:
            _move(db, job, [Moved(Event.RETURNED, queued)])
            if db.execute(_TAKE_BACK, {"of": attempt.key}).rowcount == 0:
                raise Conflict(f"target {attempt.target!r} has taken the job after all")

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

        `attempt` changes its present attempt in the same transaction.
        """
        change = attempt or AttemptChange()
        started = change.get("started")
        moved = job.after(event, reason=reason, now=now, exit_code=exit_code, started=started)
        self.write_moves(job, [Moved(event, moved)], change)
        return moved

    def write_moves(self, job: Job, moves: Sequence[Moved], attempt: AttemptChange) -> None:
        """Write what has happened to a job, and to its present attempt, or raise Conflict."""
        with writing(self.engine) as db:
            _move(db, job, moves)
            follow(db, [job for _, job in moves])
            _change(db, _PRESENT, {"of": job.id, "which": job.attempt}, attempt)

    def explain(self, job: Job, reason: str) -> Job:
        """Tell why a job stays where it is. Nothing happens if it has moved since.

        The version changes, so that whoever follows the job sees it; the history does not.
        """
        return self.explain_all([(job, reason)])[0]

    def explain_all(self, reasons: Sequence[tuple[Job, str]]) -> list[Job]:
        """Tell of many jobs at once why each stays where it is."""
        told = [
            job.model_copy(update={"reason": reason, "version": job.version + 1})
            if reason != job.reason
            else job
            for job, reason in reasons
        ]
        if all(old is new for (old, _), new in zip(reasons, told, strict=True)):
            return told
        with writing(self.engine) as db:
            return [
                new if new is not old and _replace(db, old, new) else old
                for (old, _), new in zip(reasons, told, strict=True)
            ]

    def attempt(self, key: str) -> Attempt:
        with reading(self.engine) as db:
            row = db.execute(_SELECT_ATTEMPT.where(attempts.c.key == key)).one_or_none()
        if row is None:
            raise _no_attempt(key)
        return _attempt(row)

    def with_attempt(self, key: str) -> tuple[Job, Attempt]:
        """Return the attempt with this key and its job, which may be at another one by now."""
        with reading(self.engine) as db:
            row = db.execute(_WITH_ATTEMPT, {"the_key": key}).one_or_none()
        if row is None:
            raise _no_attempt(key)
        return _both(row)

    def attempts(self, job_id: str) -> list[Attempt]:
        """Return all tries at a job, the first one first."""
        query = _SELECT_ATTEMPT.where(attempts.c.job_id == job_id).order_by(attempts.c.number)
        with reading(self.engine) as db:
            return [_attempt(row) for row in db.execute(query)]

    def change_attempt(self, key: str, change: AttemptChange) -> None:
        """Change an attempt and leave its job where it is."""
        with writing(self.engine) as db:
            if change and not _change(db, _KEYED, {"the_key": key}, change):
                raise _no_attempt(key)

    def clear_handles(self, keys: Sequence[str]) -> None:
        """Write down that attempts have left nothing on their target any more."""
        if keys:
            with writing(self.engine) as db:
                db.execute(_KEYED.values(handle=None), [{"the_key": key} for key in keys])

    def history(self, job_id: str) -> list[Move]:
        """Return every move of a job, the first one first."""
        columns = [history.c[name] for name in Move.model_fields]
        query = select(*columns).where(history.c.job_id == job_id).order_by(history.c.version)
        with reading(self.engine) as db:
            return [Move.model_validate(dict(row)) for row in db.execute(query).mappings()]

    def join(self, job: Job, experiment: Experiment) -> bool:
        """Put a job and its run into an experiment. False if something was logged already."""
        with writing(self.engine) as db:
            if has_logged(db, job.id):
                return False
            spec = job.spec.model_copy(update={"experiment": experiment.name})
            moved = job.model_copy(update={"spec": spec, "version": job.version + 1})
            if not _replace(db, job, moved):
                raise Conflict(f"job {job.name!r} has moved on meanwhile; look at it again")
            changed = {"spec": spec.model_dump(mode="json"), "experiment": experiment.name}
            db.execute(update(jobs).where(jobs.c.id == job.id).values(**changed))
            place = {"experiment_id": int(experiment.id), "location": folder_of(experiment, job)}
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
            return [_attempt(row) for row in db.execute(_SELECT_ATTEMPT.where(left))]

    def snapshots(self) -> set[str]:
        """Return the manifest of every job's code."""
        code = select(jobs.c.snapshot).where(jobs.c.snapshot.is_not(None)).distinct()
        with reading(self.engine) as db:
            return set(db.scalars(code))

    def contexts(self) -> set[str]:
        """Return the manifest of every folder that a job's image is built from."""
        context = jobs.c.spec[("environment", "context")].as_string()
        with reading(self.engine) as db:
            found = db.scalars(select(context).where(context.is_not(None)).distinct())
            return {digest for digest in found if digest}

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
        query = _SELECT_JOB.where(*wanted).order_by(jobs.c.id.desc()).limit(limit)
        with reading(self.engine) as db:
            return [_job(row) for row in db.execute(query)]


def unfinished_in(db: Connection, target: str) -> list[Job]:
    """Return the jobs that are on a target or wait for it, oldest first."""
    return [_job(row) for row in db.execute(_UNFINISHED, {"on": target})]


def fail_in(db: Connection, job: Job, *, reason: str, now: float) -> None:
    """End a job that has not ended, with its attempt, or raise Conflict if it has moved since."""
    moves = [Moved(Event.FAILED, job.after(Event.FAILED, reason=reason, now=now))]
    _move(db, job, moves)
    follow(db, [job for _, job in moves])
    if job.state in LIVE:
        ended: AttemptChange = {"ended": now, "reason": reason}
        _change(db, _PRESENT, {"of": job.id, "which": job.attempt}, ended)


def _need_targets(db: Connection, names: set[str]) -> None:
    """Raise NotFound unless all are there; they stay so until the transaction ends."""
    lacking = names - set(db.scalars(_HELD, {"names": sorted(names)}))
    if lacking:
        there = db.scalars(select(targets.c.name).order_by(targets.c.name))
        raise NotFound(no_target(min(lacking), there))


def _row(job: Job) -> dict[str, Any]:
    spec = job.spec
    return job.model_dump(exclude={"spec"}) | {
        "spec": spec.model_dump(mode="json"),
        "target": spec.target,
        "experiment": spec.experiment,
        "priority": spec.priority,
        "snapshot": spec.snapshot,
    }


def _move(db: Connection, before: Job, moves: Sequence[Moved]) -> None:
    if not _replace(db, before, moves[-1].job):
        raise Conflict(f"job {before.name!r} has moved on meanwhile; look at it again")
    _remember(db, moves)


# Made once: making them anew for each job would cost more than running them.
_KEPT = ("id", "name", "spec", "created")  # what never changes
_REPLACE = (
    update(jobs)
    .where(jobs.c.id == bindparam("the_id"), jobs.c.version == bindparam("seen"))
    .values({name: bindparam(name) for name in Job.model_fields if name not in _KEPT})
)
_REMEMBER = insert(history)
_INSERT_JOB = insert(jobs)
_INSERT_ATTEMPT = insert(attempts)
_OF_JOB = [jobs.c[name] for name in Job.model_fields]
_OF_ATTEMPT = [attempts.c[name] for name in Attempt.model_fields]
_SELECT_JOB = select(*_OF_JOB)
_SELECT_ATTEMPT = select(*_OF_ATTEMPT)
_SELECT_BOTH = select(*_OF_JOB, *_OF_ATTEMPT).select_from(jobs)
_READ = _SELECT_JOB.where(jobs.c.id == bindparam("the_id"))
_QUEUED = _SELECT_JOB.where(
    jobs.c.target == bindparam("on"), jobs.c.state == JobState.QUEUED
).order_by(jobs.c.priority.desc(), jobs.c.id)
_HEAD_OF_QUEUE = _QUEUED.limit(bindparam("most"))
_ITS_PRESENT = (attempts.c.job_id == jobs.c.id) & (attempts.c.number == jobs.c.attempt)
_LIVE = _SELECT_BOTH.join(attempts, _ITS_PRESENT).where(jobs.c.state.in_(LIVE))
_WITH_ATTEMPT = _SELECT_BOTH.join(attempts, attempts.c.job_id == jobs.c.id).where(
    attempts.c.key == bindparam("the_key")
)
_CLAIM = (
    update(targets)
    .where(targets.c.name == bindparam("on"), targets.c.placements == bindparam("seen"))
    .values(placements=targets.c.placements + 1)
)
# on PostgreSQL a target that is seen like this can be changed meanwhile, but not be removed
_HELD = (
    select(targets.c.name)
    .where(targets.c.name.in_(bindparam("names", expanding=True)))
    .order_by(targets.c.name)
    .with_for_update(read=True, key_share=True)
)
_UNFINISHED = _SELECT_JOB.where(
    jobs.c.target == bindparam("on"), jobs.c.state.in_((*LIVE, JobState.QUEUED))
).order_by(jobs.c.id)
_TAKE_BACK = delete(attempts).where(attempts.c.key == bindparam("of"), attempts.c.handle.is_(None))
_KEYED = update(attempts).where(attempts.c.key == bindparam("the_key"))
_PRESENT = update(attempts).where(
    attempts.c.job_id == bindparam("of"), attempts.c.number == bindparam("which")
)


def _replace(db: Connection, before: Job, after: Job) -> bool:
    values = after.model_dump(exclude=set(_KEPT))
    values |= {"the_id": before.id, "seen": before.version}
    return db.execute(_REPLACE, values).rowcount == 1


def _remember(db: Connection, moves: Sequence[Moved]) -> None:
    rows = [
        {
            "job_id": job.id,
            "version": job.version,
            "event": event,
            "state": job.state,
            "reason": job.reason,
            "at": job.changed,
        }
        for event, job in moves
    ]
    db.execute(_REMEMBER, rows)


def _change(db: Connection, which: Update, at: dict[str, Any], change: AttemptChange) -> bool:
    if not change:
        return False
    given = {f"new_{name}": value for name, value in change.items()}
    return db.execute(_changing(which, tuple(change)), at | given).rowcount == 1


@cache
def _changing(which: Update, names: tuple[str, ...]) -> Update:
    return which.values({name: bindparam(f"new_{name}") for name in names})


def _job(row: Sequence[Any]) -> Job:
    return Job.model_validate(dict(zip(Job.model_fields, row, strict=True)))


def _attempt(row: Sequence[Any]) -> Attempt:
    return Attempt.model_validate(dict(zip(Attempt.model_fields, row, strict=True)))


def _both(row: Sequence[Any]) -> tuple[Job, Attempt]:
    return _job(row[: len(_OF_JOB)]), _attempt(row[len(_OF_JOB) :])


def _no_job(name_or_id: str) -> NotFound:
    return NotFound(f"no job named {name_or_id!r}; `retarget job list` shows them")


def _no_attempt(key: str) -> NotFound:
    return NotFound(f"no attempt {key!r}; its job may have been deleted")
