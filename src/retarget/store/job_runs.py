"""The run of every job, which receives what the job logs."""

import shlex
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, bindparam, insert, literal, or_, select, union_all, update

from retarget.core.errors import Conflict
from retarget.core.events import Change, Noun
from retarget.core.jobs import Job
from retarget.core.labels import LabelChanges, Labels, changed_tags, labels_of
from retarget.core.states import JobState
from retarget.core.tracking import (
    ACTIVE,
    MLFLOW_PREFIX,
    NAME_TAG,
    NOTE_TAG,
    STATUS_AT_JOB_END,
    Experiment,
    Run,
    RunStatus,
    address_below,
    artifact_path,
)
from retarget.store.artifacts import below
from retarget.store.changes import note
from retarget.store.engine import insert_new
from retarget.store.experiments import ensure_in
from retarget.store.runs import change_tags, create_in
from retarget.store.schema import artifacts, metrics, params, properties, runs, tags

_UPDATE_RUN = update(runs).where(runs.c.id == bindparam("run"))
_BEGIN_RUN = _UPDATE_RUN.values(
    status=RunStatus.RUNNING, started_at=bindparam("run_started_at"), ended_at=None
)
_END_RUN = _UPDATE_RUN.where(runs.c.status.in_((RunStatus.RUNNING, RunStatus.SCHEDULED))).values(
    status=bindparam("final_status"), ended_at=bindparam("run_ended_at")
)


def open_runs(db: Connection, new: Sequence[Job]) -> None:
    """Create the runs of new jobs."""
    now = int(new[0].created_at * 1000)
    names = {job.spec.experiment for job in new}
    by_name = {name: ensure_in(db, name, now=now) for name in sorted(names)}
    for experiment in by_name.values():
        if experiment.stage != ACTIVE:
            raise Conflict(
                f"experiment {experiment.name!r} is deleted; choose another or restore it"
            )
    create_in(db, [_run_of(job, by_name[job.spec.experiment], now) for job in new])
    rows = [row for job in new for row in _property_rows(job.id, job.spec.properties)]
    if rows:
        db.execute(insert(properties), rows)


def relabel_run(db: Connection, job: Job, changes: LabelChanges) -> None:
    """Change the tags of a job's run, and add properties, in an open transaction."""
    change_tags(db, job.id, changed_tags(job.name, changes))
    insert_new(db, properties, _property_rows(job.id, changes.properties))
    note(db, Change(Noun.METRIC, job.id, job=job.id))


def read_labels(db: Connection, page: Sequence[Job]) -> dict[str, Labels]:
    """Return what these jobs are labelled with now, by id."""
    is_label = or_(~tags.c.key.startswith(MLFLOW_PREFIX), tags.c.key.in_((NAME_TAG, NOTE_TAG)))
    query = select(tags).where(tags.c.run_id.in_([job.id for job in page]), is_label)
    by_job: dict[str, dict[str, str]] = {}
    for run_id, key, value in db.execute(query.order_by(tags.c.key)):
        by_job.setdefault(run_id, {})[key] = value
    return {job.id: labels_of(job.name, by_job.get(job.id, {})) for job in page}


def _property_rows(job_id: str, values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"run_id": job_id, "key": key, "value": value} for key, value in values.items()]


def _run_of(job: Job, experiment: Experiment, now: int) -> Run:
    return Run(
        id=job.id,
        experiment_id=experiment.id,
        job_id=job.id,
        name=job.spec.display_name or job.name,
        user="",
        status=RunStatus.SCHEDULED,
        started_at=now,
        location=artifact_location(experiment, job),
        tags={
            **job.spec.tags,
            **({NOTE_TAG: job.spec.description} if job.spec.description else {}),
            "mlflow.source.name": shlex.join(job.spec.command)[:1000],
            "mlflow.source.type": "JOB",
        },
    )


def has_logged(db: Connection, run_id: str) -> bool:
    """Return whether a run has params, metrics or artifacts."""
    location = db.scalar(select(runs.c.location).where(runs.c.id == run_id)) or ""
    files = below(artifacts.c.path, artifact_path(location) or run_id)
    logged = [select(literal(1)).where(table.c.run_id == run_id) for table in (params, metrics)]
    return (
        db.execute(union_all(*logged, select(literal(1)).where(files)).limit(1)).first() is not None
    )


def artifact_location(experiment: Experiment, job: Job) -> str:
    return address_below(experiment.location, f"{job.id}/artifacts")


def update_run(db: Connection, states: Sequence[Job]) -> None:
    """Start a job's run with its script, and end it if the client did not.

    `states` holds the job after each of its transitions.
    """
    last = states[-1]
    running = [job for job in states if job.state is JobState.RUNNING]
    if running:
        started_at = int((running[-1].started_at or running[-1].changed_at) * 1000)
        db.execute(_BEGIN_RUN, {"run": last.id, "run_started_at": started_at})
    if last.state in STATUS_AT_JOB_END:
        ended_at = int(last.changed_at * 1000)
        status = STATUS_AT_JOB_END[last.state]
        db.execute(_END_RUN, {"run": last.id, "final_status": status, "run_ended_at": ended_at})
