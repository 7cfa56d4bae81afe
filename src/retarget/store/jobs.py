"""Jobs in SQL. A state changes only through `place` and `record`, which also write the history."""

from collections.abc import Mapping, Sequence

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Update,
    bindparam,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.exc import IntegrityError

from retarget.core.errors import Conflict, LeaseLost, NotFound
from retarget.core.events import job_changed
from retarget.core.jobs import Attempt, Job, Transition
from retarget.core.labels import LabelChanges, Labels, changed_labels
from retarget.core.leases import Lease
from retarget.core.states import LIVE, Event, JobState
from retarget.core.targets import no_target
from retarget.core.tracking import Experiment
from retarget.store.changes import note
from retarget.store.engine import reading, writing
from retarget.store.job_rows import (
    SELECT_ATTEMPT,
    SELECT_JOB,
    SELECT_JOB_AND_ATTEMPT,
    UPDATE_ATTEMPT,
    UPDATE_ATTEMPT_UNDER_LEASE,
    UPDATE_CURRENT_ATTEMPT,
    AppliedEvent,
    AttemptChange,
    apply_events,
    job_row,
    read_attempt,
    read_job,
    read_job_and_attempt,
    replace_job,
    rewrite_spec,
    update_attempt,
    write_history,
)
from retarget.store.job_runs import (
    artifact_location,
    has_logged,
    open_runs,
    read_labels,
    relabel_run,
    update_run,
)
from retarget.store.leases import lease_parameters
from retarget.store.schema import (
    attempts,
    history,
    jobs,
    logged_models,
    model_versions,
    runs,
    target_locks,
    targets,
)
from retarget.store.secrets import add_in, release_in


class Jobs:
    """With a lease, writes to jobs and attempts fail once another server has taken it over.

    The condition is part of each write: a server that was paused past its lease changes nothing.
    """

    def __init__(self, engine: Engine, lease: Lease | None = None) -> None:
        self.engine = engine
        self._lease = lease

    def under(self, lease: Lease) -> "Jobs":
        """Return the jobs as the holder of this lease writes them."""
        return Jobs(self.engine, lease)

    def add(self, *new: Job, secrets: Mapping[str, Mapping[str, str]] | None = None) -> None:
        """Store all new jobs, or raise Conflict and store none if a name is taken.

        `secrets` has the encrypted values of their own secrets, by the id of the job.
        Raise NotFound if a job's target does not exist, because the job would never be placed.
        """
        try:
            with writing(self.engine) as db:
                _lock_targets(db, {job.spec.target for job in new})
                db.execute(_INSERT_JOB, [job_row(job) for job in new])
                write_history(db, [AppliedEvent(Event.SUBMITTED, job) for job in new])
                open_runs(db, new)
                add_in(db, secrets or {})
                note(db, *(job_changed(job.id, job.version) for job in new))
        except IntegrityError as error:
            names = self.names_in_use([job.name for job in new]) or {new[0].name}
            raise Conflict(
                f"a job named {min(names)!r} exists already; choose another name or delete it"
            ) from error

    def names_in_use(self, names: Sequence[str]) -> set[str]:
        """Return the names that jobs already have."""
        with reading(self.engine) as db:
            return set(db.scalars(select(jobs.c.name).where(jobs.c.name.in_(names))))

    def find(self, name_or_id: str) -> Job:
        """Return the job with this name or, if there is none, with this id."""
        query = SELECT_JOB.where(or_(jobs.c.name == name_or_id, jobs.c.id == name_or_id))
        with reading(self.engine) as db:
            matches = [read_job(row) for row in db.execute(query)]
        if not matches:
            raise _no_job(name_or_id)
        return next((job for job in matches if job.name == name_or_id), matches[0])

    def read(self, job_id: str) -> Job:
        with reading(self.engine) as db:
            row = db.execute(_SELECT_JOB_BY_ID, {"the_id": job_id}).one_or_none()
        if row is None:
            raise _no_job(job_id)
        return read_job(row)

    def read_all(self, ids: Sequence[str]) -> list[Job]:
        """Return these jobs, oldest first. Jobs that do not exist are omitted."""
        query = SELECT_JOB.where(jobs.c.id.in_(ids)).order_by(jobs.c.id)
        with reading(self.engine) as db:
            return [read_job(row) for row in db.execute(query)]

    def states(self, ids: Sequence[str]) -> dict[str, JobState]:
        """Return the states of these jobs. Jobs that do not exist are omitted."""
        query = select(jobs.c.id, jobs.c.state).where(jobs.c.id.in_(ids))
        with reading(self.engine) as db:
            return {job_id: JobState(state) for job_id, state in db.execute(query)}

    def counts(self, target: str | None = None) -> dict[JobState, int]:
        """Count the jobs in every state, zeros included, on one target or on all."""
        query = select(jobs.c.state, func.count()).group_by(jobs.c.state)
        if target is not None:
            query = query.where(jobs.c.target == target)
        with reading(self.engine) as db:
            counts = {state: count for state, count in db.execute(query)}
        return {state: counts.get(state, 0) for state in JobState}

    def queued(self, target: str, *, limit: int | None = None) -> list[Job]:
        """Return the jobs that wait for a target, in the order of placement: priority, then age."""
        query = _SELECT_QUEUED if limit is None else _SELECT_HEAD_OF_QUEUE
        with reading(self.engine) as db:
            return [
                read_job(row)
                for row in db.execute(query, {"target_name": target, "max_rows": limit})
            ]

    def ahead_of(self, job: Job) -> list[str]:
        """Return the names of the jobs that are placed before this one, in that order."""
        higher, equal = jobs.c.priority > job.spec.priority, jobs.c.priority == job.spec.priority
        query = (
            select(jobs.c.name)
            .where(jobs.c.target == job.spec.target, jobs.c.state == JobState.QUEUED)
            .where(higher | equal & (jobs.c.id < job.id))
            .order_by(jobs.c.priority.desc(), jobs.c.id)
        )
        with reading(self.engine) as db:
            return list(db.scalars(query))

    def live(self) -> list[tuple[Job, Attempt]]:
        """Return the jobs that are on a target, each with its current attempt."""
        with reading(self.engine) as db:
            return [read_job_and_attempt(row) for row in db.execute(_SELECT_LIVE)]

    def place(self, job: Job, attempt: Attempt, *, reason: str, now: float, placements: int) -> Job:
        """Place the next attempt of a queued job on a target that has had `placements` of them.

        Raise Conflict and change nothing if the job has changed, or if another attempt was placed
        on the target since.
        """
        placed = job.after(Event.PLACED, reason=reason, now=now)
        placed = placed.model_copy(update={"attempt": attempt.number})
        with writing(self.engine) as db:
            claim = {"target_name": attempt.target, "expected_placements": placements}
            if db.execute(_CLAIM_PLACEMENT, claim).rowcount == 0:
                raise Conflict(
                    f"another attempt was placed on target {attempt.target!r} meanwhile, "
                    "or the target is being changed"
                )
            apply_events(db, job, [AppliedEvent(Event.PLACED, placed)], self._lease)
            db.execute(_INSERT_ATTEMPT, attempt.model_dump())
        return placed

    def unplace(self, job: Job, attempt: Attempt, *, reason: str, now: float) -> None:
        """Undo a placement that started nothing. It does not count as an attempt.

        Raise Conflict and change nothing if the job has changed or its target has accepted it.
        """
        queued = job.after(Event.UNPLACED, reason=reason, now=now)
        queued = queued.model_copy(update={"attempt": attempt.number - 1})
        with writing(self.engine) as db:
            apply_events(db, job, [AppliedEvent(Event.UNPLACED, queued)], self._lease)
            if db.execute(_DELETE_UNPLACED, {"the_key": attempt.key}).rowcount == 0:
                raise Conflict(f"target {attempt.target!r} has accepted the job meanwhile")

    def record(  # noqa: PLR0913  one transition is one write
        self,
        job: Job,
        event: Event,
        *,
        reason: str,
        now: float,
        exit_code: int | None = None,
        attempt: AttemptChange | None = None,
    ) -> Job:
        """Apply `event` to the job as it was read, or raise Conflict if it has changed since.

        `attempt` changes the job's current attempt in the same transaction.
        """
        change = attempt or AttemptChange()
        started_at = change.get("started_at")
        after = job.after(event, reason=reason, now=now, exit_code=exit_code, started_at=started_at)
        self.write_transitions(job, [AppliedEvent(event, after)], change)
        return after

    def write_transitions(
        self, job: Job, applied: Sequence[AppliedEvent], attempt: AttemptChange
    ) -> None:
        """Write the transitions of a job and change its current attempt, or raise Conflict."""
        with writing(self.engine) as db:
            apply_events(db, job, applied, self._lease)
            update_run(db, [job for _, job in applied])
            update_attempt(
                db,
                UPDATE_CURRENT_ATTEMPT,
                {"of_job": job.id, "attempt_number": job.attempt},
                attempt,
            )

    def explain(self, job: Job, reason: str) -> Job:
        """Write why a job stays in its state. Nothing happens if the job has changed since.

        The version increases, so that those who follow the job see the reason. The history stays.
        """
        return self.explain_all([(job, reason)])[0]

    def explain_all(self, reasons: Sequence[tuple[Job, str]]) -> list[Job]:
        """Write for many jobs at once why each stays in its state."""
        explained = [
            job.model_copy(update={"reason": reason, "version": job.version + 1})
            if reason != job.reason
            else job
            for job, reason in reasons
        ]
        if all(old is new for (old, _), new in zip(reasons, explained, strict=True)):
            return explained
        with writing(self.engine) as db:
            return [
                new if new is not old and replace_job(db, old, new, self._lease) else old
                for (old, _), new in zip(reasons, explained, strict=True)
            ]

    def attempt(self, key: str) -> Attempt:
        with reading(self.engine) as db:
            row = db.execute(SELECT_ATTEMPT.where(attempts.c.key == key)).one_or_none()
        if row is None:
            raise _no_attempt(key)
        return read_attempt(row)

    def with_attempt(self, key: str) -> tuple[Job, Attempt]:
        """Return the attempt with this key, and its job, whose current attempt may be another."""
        with reading(self.engine) as db:
            row = db.execute(_SELECT_WITH_ATTEMPT, {"the_key": key}).one_or_none()
        if row is None:
            raise _no_attempt(key)
        return read_job_and_attempt(row)

    def attempts(self, job_id: str) -> list[Attempt]:
        """Return all attempts of a job, the first one first."""
        query = SELECT_ATTEMPT.where(attempts.c.job_id == job_id).order_by(attempts.c.number)
        with reading(self.engine) as db:
            return [read_attempt(row) for row in db.execute(query)]

    def change_attempt(self, key: str, change: AttemptChange) -> None:
        """Change an attempt without changing its job."""
        with writing(self.engine) as db:
            values = {"the_key": key, **lease_parameters(self._lease)}
            if change and not update_attempt(db, self._update_attempt, values, change):
                raise _no_attempt(key) if self._lease is None else _lease_lost(self._lease)

    def clear_handles(self, keys: Sequence[str]) -> None:
        """Record that nothing of these attempts remains on their target."""
        if keys:
            with writing(self.engine) as db:
                statement = self._update_attempt.values(handle=None)
                values = [{"the_key": key, **lease_parameters(self._lease)} for key in keys]
                if db.execute(statement, values).rowcount:
                    release_in(db, keys)

    def history(self, job_id: str) -> list[Transition]:
        """Return every transition of a job, the first one first."""
        columns = [history.c[name] for name in Transition.model_fields]
        query = select(*columns).where(history.c.job_id == job_id).order_by(history.c.version)
        with reading(self.engine) as db:
            return [Transition.model_validate(dict(row)) for row in db.execute(query).mappings()]

    def join(self, job: Job, experiment: Experiment) -> bool:
        """Move a job and its run to an experiment. Return False if the run has logged something."""
        with writing(self.engine) as db:
            if has_logged(db, job.id):
                return False
            rewrite_spec(db, job, {"experiment": experiment.name})
            update_column = update(jobs).where(jobs.c.id == job.id)
            db.execute(update_column.values(experiment=experiment.name))
            run_columns = {
                "experiment_id": int(experiment.id),
                "location": artifact_location(experiment, job),
            }
            db.execute(update(runs).where(runs.c.id == job.id).values(**run_columns))
        return True

    def labels(self, page: Sequence[Job]) -> dict[str, Labels]:
        """Return what these jobs are labelled with now, by id."""
        with reading(self.engine) as db:
            return read_labels(db, page)

    def relabel(self, job: Job, changes: LabelChanges) -> Job:
        """Change what a job is labelled with, or raise Conflict if the job has changed since.

        Its spec gets the new labels too, because a rerun keeps what was requested.
        """
        requested = changed_labels(job.spec.tags, job.spec.properties, changes)
        with writing(self.engine) as db:
            relabelled = rewrite_spec(db, job, requested)
            relabel_run(db, job, changes)
        return relabelled

    def delete(self, job: Job) -> None:
        """Remove an ended job and everything about it. A missing job is not an error."""
        if not job.state.is_final:
            raise Conflict(f"job {job.name!r} is {job.state.value}; cancel it first")
        with writing(self.engine) as db:
            db.execute(delete(jobs).where(jobs.c.id == job.id))  # its rows in other tables cascade
            db.execute(delete(runs).where(or_(runs.c.id == job.id, runs.c.job_id == job.id)))
            registered = select(model_versions.c.model_id).where(
                model_versions.c.model_id.is_not(None)
            )
            of_job = (logged_models.c.job_id == job.id) & logged_models.c.id.not_in(registered)
            db.execute(delete(logged_models).where(of_job))
            note(db, job_changed(job.id, None))

    def ended_with_handle(self) -> list[Attempt]:
        """Return the ended attempts that still have something on their target."""
        ended = attempts.c.handle.is_not(None) & attempts.c.ended_at.is_not(None)
        with reading(self.engine) as db:
            return [read_attempt(row) for row in db.execute(SELECT_ATTEMPT.where(ended))]

    def snapshots(self) -> set[str]:
        """Return the digests of the manifests of all jobs' code."""
        code = select(jobs.c.snapshot).where(jobs.c.snapshot.is_not(None)).distinct()
        with reading(self.engine) as db:
            return set(db.scalars(code))

    def build_contexts(self) -> set[str]:
        """Return the digests of the manifests of all folders that jobs' images are built from."""
        context = jobs.c.spec[("environment", "context")].as_string()
        with reading(self.engine) as db:
            digests = db.scalars(select(context).where(context.is_not(None)).distinct())
            return {digest for digest in digests if digest}

    @property
    def _update_attempt(self) -> Update:
        return UPDATE_ATTEMPT_UNDER_LEASE if self._lease else UPDATE_ATTEMPT

    # last in the class: below it, `list` means this method
    def list(
        self,
        *,
        states: Sequence[JobState] = (),
        target: str | None = None,
        experiment: str | None = None,
        limit: int = 100,
        before: str | None = None,
    ) -> list[Job]:
        """Return jobs, newest first. For the next page, pass the last job's id as `before`."""
        conditions: list[ColumnElement[bool]] = []
        if target is not None:
            conditions.append(jobs.c.target == target)
        if experiment is not None:
            conditions.append(jobs.c.experiment == experiment)
        if before is not None:
            conditions.append(jobs.c.id < before)
        if len(states) > 1:
            # one walk per state, each no longer than the limit, so that no database sorts all jobs
            walks = [
                select(jobs.c.id).where(*conditions, jobs.c.state == state) for state in set(states)
            ]
            newest = [walk.order_by(jobs.c.id.desc()).limit(limit).subquery() for walk in walks]
            conditions = [jobs.c.id.in_(union_all(*(select(walk) for walk in newest)))]
        elif states:
            conditions.append(jobs.c.state == states[0])
        query = SELECT_JOB.where(*conditions).order_by(jobs.c.id.desc()).limit(limit)
        with reading(self.engine) as db:
            return [read_job(row) for row in db.execute(query)]


def unfinished_in(db: Connection, target: str) -> list[Job]:
    """Return the jobs that are on a target or wait for it, oldest first."""
    return [read_job(row) for row in db.execute(_SELECT_UNFINISHED, {"target_name": target})]


def fail_in(db: Connection, job: Job, *, reason: str, now: float) -> None:
    """Fail an unfinished job and its attempt, or raise Conflict if the job has changed since."""
    failed = job.after(Event.FAILED, reason=reason, now=now)
    apply_events(db, job, [AppliedEvent(Event.FAILED, failed)])
    update_run(db, [failed])
    if job.state in LIVE:
        ended: AttemptChange = {"ended_at": now, "reason": reason}
        update_attempt(
            db, UPDATE_CURRENT_ATTEMPT, {"of_job": job.id, "attempt_number": job.attempt}, ended
        )


def _lock_targets(db: Connection, names: set[str]) -> None:
    """Protect targets from removal until the transaction ends. Raise NotFound if one is missing."""
    missing = names - set(db.scalars(_LOCK_TARGETS, {"names": sorted(names)}))
    if missing:
        existing = db.scalars(select(targets.c.name).order_by(targets.c.name))
        raise NotFound(no_target(min(missing), existing))


# Built once: building these statements costs more than running them.
_INSERT_JOB = insert(jobs)
_INSERT_ATTEMPT = insert(attempts)
_SELECT_JOB_BY_ID = SELECT_JOB.where(jobs.c.id == bindparam("the_id"))
_SELECT_QUEUED = SELECT_JOB.where(
    jobs.c.target == bindparam("target_name"), jobs.c.state == JobState.QUEUED
).order_by(jobs.c.priority.desc(), jobs.c.id)
_SELECT_HEAD_OF_QUEUE = _SELECT_QUEUED.limit(bindparam("max_rows"))
_IS_CURRENT_ATTEMPT = (attempts.c.job_id == jobs.c.id) & (attempts.c.number == jobs.c.attempt)
_SELECT_LIVE = SELECT_JOB_AND_ATTEMPT.join(attempts, _IS_CURRENT_ATTEMPT).where(
    jobs.c.state.in_(LIVE)
)
_SELECT_WITH_ATTEMPT = SELECT_JOB_AND_ATTEMPT.join(attempts, attempts.c.job_id == jobs.c.id).where(
    attempts.c.key == bindparam("the_key")
)
_CLAIM_PLACEMENT = (
    update(targets)
    .where(
        targets.c.name == bindparam("target_name"),
        targets.c.placements == bindparam("expected_placements"),
        ~exists().where(target_locks.c.target == targets.c.name),
    )
    .values(placements=targets.c.placements + 1)
)
# on PostgreSQL, others can change the selected targets meanwhile, but not remove them
_LOCK_TARGETS = (
    select(targets.c.name)
    .where(targets.c.name.in_(bindparam("names", expanding=True)))
    .order_by(targets.c.name)
    .with_for_update(read=True, key_share=True)
)
_SELECT_UNFINISHED = SELECT_JOB.where(
    jobs.c.target == bindparam("target_name"), jobs.c.state.in_((*LIVE, JobState.QUEUED))
).order_by(jobs.c.id)
_DELETE_UNPLACED = delete(attempts).where(
    attempts.c.key == bindparam("the_key"), attempts.c.handle.is_(None)
)


def _lease_lost(lease: Lease) -> LeaseLost:
    return LeaseLost(f"another server looks after target {lease.target!r}, or the job was deleted")


def _no_job(name_or_id: str) -> NotFound:
    return NotFound(f"no job named {name_or_id!r}; `retarget job list` shows them")


def _no_attempt(key: str) -> NotFound:
    return NotFound(f"no attempt {key!r}; its job may have been deleted")
