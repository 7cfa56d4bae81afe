"""The run that every job has: what the job logs goes there."""

import shlex
from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, literal, select, union_all, update

from retarget.core.errors import Conflict
from retarget.core.jobs import Job
from retarget.core.states import JobState
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
from retarget.store.experiments import ensure_in
from retarget.store.runs import create_in
from retarget.store.schema import artifacts, metrics, params, runs

_MY_RUN = update(runs).where(runs.c.id == bindparam("run"))
_BEGIN_RUN = _MY_RUN.values(status=RunStatus.RUNNING, started=bindparam("began"), ended=None)
_END_RUN = _MY_RUN.where(runs.c.status.in_((RunStatus.RUNNING, RunStatus.SCHEDULED))).values(
    status=bindparam("left"), ended=bindparam("at")
)


def open_runs(db: Connection, new: Sequence[Job]) -> None:
    """Give jobs their runs: whatever one logs goes there."""
    now = int(new[0].created * 1000)
    names = {job.spec.experiment for job in new}
    found = {name: ensure_in(db, name, now=now) for name in sorted(names)}
    for experiment in found.values():
        if experiment.stage != ACTIVE:
            raise Conflict(
                f"experiment {experiment.name!r} is deleted; choose another or restore it"
            )
    create_in(db, [_run_of(job, found[job.spec.experiment], now) for job in new])


def _run_of(job: Job, experiment: Experiment, now: int) -> Run:
    return Run(
        id=job.id,
        experiment_id=experiment.id,
        job_id=job.id,
        name=job.name,
        user="",
        status=RunStatus.SCHEDULED,
        started=now,
        location=folder_of(experiment, job),
        tags={
            "mlflow.source.name": shlex.join(job.spec.command)[:1000],
            "mlflow.source.type": "JOB",
        },
    )


def has_logged(db: Connection, run_id: str) -> bool:
    """Tell whether a run has anything that its experiment's place is a part of, or a value."""
    location = db.scalar(select(runs.c.location).where(runs.c.id == run_id)) or ""
    files = below(artifacts.c.path, artifact_path(location) or run_id)
    marks = [select(literal(1)).where(table.c.run_id == run_id) for table in (params, metrics)]
    return (
        db.execute(union_all(*marks, select(literal(1)).where(files)).limit(1)).first() is not None
    )


def folder_of(experiment: Experiment, job: Job) -> str:
    return address_below(experiment.location, f"{job.id}/artifacts")


def follow(db: Connection, moves: Sequence[Job]) -> None:
    """Have a job's run begin when its script does, and end if its client has left it open.

    `moves`: the job as each of its moves left it.
    """
    last = moves[-1]
    began = [job for job in moves if job.state is JobState.RUNNING]
    if began:
        started = int((began[-1].started or began[-1].changed) * 1000)
        db.execute(_BEGIN_RUN, {"run": last.id, "began": started})
    if last.state in LEFT_OPEN:
        ended = int(last.changed * 1000)
        db.execute(_END_RUN, {"run": last.id, "left": LEFT_OPEN[last.state], "at": ended})
