"""Experiments and runs at a glance, in SQL: how many, whose, and when something moved."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Row, case, func, select

from retarget.core.errors import NotFound
from retarget.core.states import JobState
from retarget.core.tracking import ACTIVE
from retarget.store.engine import reading
from retarget.store.schema import experiment_tags, experiments, jobs, metrics, points, runs


@dataclass(frozen=True, slots=True)
class ExperimentSummary:
    """An experiment and how much is in it. Runs that were deleted do not count."""

    id: str
    name: str
    stage: str
    jobs: int
    runs: int
    changed: int  # when it was made or changed, or a run of it began or ended
    tags: dict[str, str]


@dataclass(frozen=True, slots=True)
class RunOwner:
    """A run and the job that made it; its state as it is now, if it is the job's own run."""

    run_id: str
    job: str | None
    state: JobState | None


@dataclass(frozen=True, slots=True)
class Spread:
    """How many points a metric has, and between which values; NaN counts and is no bound."""

    count: int
    least: float | None
    most: float | None


class Overview:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def experiments(self) -> list[ExperimentSummary]:
        """Return all experiments, those where something happened last first."""
        with reading(self.engine) as db:
            found = _summaries(db)
        return sorted(found, key=lambda each: (-each.changed, int(each.id)))

    def experiment(self, name: str) -> ExperimentSummary:
        with reading(self.engine) as db:
            found = _summaries(db, name)
        if not found:
            raise NotFound(f"no experiment named {name!r}; `retarget experiment list` shows them")
        return found[0]

    def runs(self, experiment_id: str, *, limit: int) -> list[RunOwner]:
        """Return the runs of an experiment, newest first."""
        query = (
            select(runs.c.id, jobs.c.name, case((jobs.c.id == runs.c.id, jobs.c.state)))
            .outerjoin(jobs, jobs.c.id == runs.c.job_id)
            .where(runs.c.experiment_id == int(experiment_id), runs.c.stage == ACTIVE)
            .order_by(runs.c.started.desc(), runs.c.id)
            .limit(limit)
        )
        with reading(self.engine) as db:
            return [
                RunOwner(run_id, name, state and JobState(state))
                for run_id, name, state in db.execute(query)
            ]

    def spread(self, run_id: str, key: str) -> Spread:
        """Tell how much there is of one metric of a run."""
        number = case((points.c.nan.is_(False), points.c.value))
        query = select(func.count(), func.min(number), func.max(number)).select_from(
            points.join(metrics, points.c.metric_id == metrics.c.id)
        )
        with reading(self.engine) as db:
            row = db.execute(query.where(metrics.c.run_id == run_id, metrics.c.key == key)).one()
        return Spread(*row)


def _summaries(db: Connection, name: str | None = None) -> list[ExperimentSummary]:
    moved = func.max(func.coalesce(runs.c.ended, runs.c.started, 0))
    total = func.count(runs.c.id)
    own = func.count(case((runs.c.job_id == runs.c.id, 1)))
    inside = (runs.c.experiment_id == experiments.c.id) & (runs.c.stage == ACTIVE)
    query = (
        select(experiments, total.label("total"), own.label("own"), moved.label("moved"))
        .outerjoin(runs, inside)
        .group_by(experiments.c.id)
    )
    marks = select(experiment_tags).order_by(experiment_tags.c.key)
    if name is not None:
        query = query.where(experiments.c.name == name)
        this = select(experiments.c.id).where(experiments.c.name == name)
        marks = marks.where(experiment_tags.c.experiment_id.in_(this))
    tags: dict[int, dict[str, str]] = {}
    for row in db.execute(marks):
        tags.setdefault(row.experiment_id, {})[row.key] = row.value
    return [_summary(row, tags.get(row.id, {})) for row in db.execute(query)]


def _summary(row: Row[Any], tags: dict[str, str]) -> ExperimentSummary:
    return ExperimentSummary(
        id=str(row.id),
        name=row.name,
        stage=row.stage,
        jobs=row.own,
        runs=row.total,
        changed=max(row.changed, row.moved or 0),
        tags=tags,
    )
