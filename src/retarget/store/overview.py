"""Summaries of experiments, runs and metrics in SQL."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Row, Select, case, func, select

from retarget.core.errors import NotFound
from retarget.core.states import JobState
from retarget.core.tracking import ACTIVE
from retarget.store.engine import reading
from retarget.store.schema import experiment_tags, experiments, jobs, metrics, points, runs


@dataclass(frozen=True, slots=True)
class ExperimentSummary:
    """An experiment, with the numbers of its jobs and runs. Deleted runs do not count."""

    id: str
    name: str
    stage: str
    jobs: int
    runs: int
    changed_at: int  # when it was created or changed, or one of its runs started or ended
    tags: dict[str, str]


@dataclass(frozen=True, slots=True)
class RunOwner:
    """A run and the job that created it. `state` is set only for the job's own run."""

    run_id: str
    job: str | None
    state: JobState | None


@dataclass(frozen=True, slots=True)
class MetricRange:
    """The number of points of a metric, and their range. NaN is counted but not in the range."""

    count: int
    minimum: float | None
    maximum: float | None


class Overview:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def experiments(self) -> list[ExperimentSummary]:
        """Return all experiments, the most recently changed first."""
        with reading(self.engine) as db:
            summaries = _summaries(db)
        return sorted(summaries, key=lambda summary: (-summary.changed_at, int(summary.id)))

    def experiment(self, name: str) -> ExperimentSummary:
        with reading(self.engine) as db:
            summaries = _summaries(db, name)
        if not summaries:
            raise NotFound(f"no experiment named {name!r}; `retarget experiment list` shows them")
        return summaries[0]

    def runs(self, experiment_id: str, *, limit: int) -> list[RunOwner]:
        """Return the runs of an experiment, newest first."""
        query = (
            _SELECT_OWNERS.where(runs.c.experiment_id == int(experiment_id), runs.c.stage == ACTIVE)
            .order_by(runs.c.started_at.desc(), runs.c.id)
            .limit(limit)
        )
        with reading(self.engine) as db:
            return _owners(db, query)

    def owners(self, run_ids: Sequence[str]) -> list[RunOwner]:
        """Return these runs with their jobs, in this order. Missing ones are omitted."""
        with reading(self.engine) as db:
            owners = _owners(db, _SELECT_OWNERS.where(runs.c.id.in_(run_ids)))
        by_id = {owner.run_id: owner for owner in owners}
        return [by_id[run_id] for run_id in run_ids if run_id in by_id]

    def metric_range(self, run_id: str, key: str) -> MetricRange:
        """Return the number of points of one metric of a run, and their range."""
        number = case((points.c.nan.is_(False), points.c.value))
        query = select(func.count(), func.min(number), func.max(number)).select_from(
            points.join(metrics, points.c.metric_id == metrics.c.id)
        )
        with reading(self.engine) as db:
            row = db.execute(query.where(metrics.c.run_id == run_id, metrics.c.key == key)).one()
        return MetricRange(*row)


_SELECT_OWNERS = select(
    runs.c.id, jobs.c.name, case((jobs.c.id == runs.c.id, jobs.c.state))
).outerjoin(jobs, jobs.c.id == runs.c.job_id)


def _owners(db: Connection, query: Select[Any, Any, Any]) -> list[RunOwner]:
    return [
        RunOwner(run_id, name, state and JobState(state))
        for run_id, name, state in db.execute(query)
    ]


def _summaries(db: Connection, name: str | None = None) -> list[ExperimentSummary]:
    last_run_at = func.max(func.coalesce(runs.c.ended_at, runs.c.started_at, 0))
    total = func.count(runs.c.id)
    of_jobs = func.count(case((runs.c.job_id == runs.c.id, 1)))
    is_active_run = (runs.c.experiment_id == experiments.c.id) & (runs.c.stage == ACTIVE)
    query = (
        select(
            experiments,
            total.label("total"),
            of_jobs.label("jobs"),
            last_run_at.label("last_run_at"),
        )
        .outerjoin(runs, is_active_run)
        .group_by(experiments.c.id)
    )
    tag_query = select(experiment_tags).order_by(experiment_tags.c.key)
    if name is not None:
        query = query.where(experiments.c.name == name)
        ids = select(experiments.c.id).where(experiments.c.name == name)
        tag_query = tag_query.where(experiment_tags.c.experiment_id.in_(ids))
    tags: dict[int, dict[str, str]] = {}
    for row in db.execute(tag_query):
        tags.setdefault(row.experiment_id, {})[row.key] = row.value
    return [_summary(row, tags.get(row.id, {})) for row in db.execute(query)]


def _summary(row: Row[Any], tags: dict[str, str]) -> ExperimentSummary:
    return ExperimentSummary(
        id=str(row.id),
        name=row.name,
        stage=row.stage,
        jobs=row.jobs,
        runs=row.total,
        changed_at=max(row.changed_at, row.last_run_at or 0),
        tags=tags,
    )
