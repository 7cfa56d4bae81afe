"""/api/jobs/…/tracking, /api/experiments: what jobs logged, and what groups them."""

import math
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field, PlainSerializer

from retarget.control.parts import Parts
from retarget.core.errors import NotFound
from retarget.core.jobs import Job
from retarget.core.states import JobState
from retarget.core.tracking import Metric, Run, RunStatus
from retarget.server.auth import PartsDep
from retarget.server.bodies import BoundedRoute
from retarget.server.links import OF_EXPERIMENTS, OF_TRACKING
from retarget.store.overview import ExperimentSummary, RunOwner

router = APIRouter(route_class=BoundedRoute, prefix="/api", tags=["tracking"])

_SHOWN = 5  # names in a sentence


def _in_json(value: float) -> float | str:
    """Return a number as JSON can have it."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


Number = Annotated[
    float,
    PlainSerializer(_in_json, return_type=float | Literal["NaN", "Infinity", "-Infinity"]),
    Field(description="A number; the three that JSON lacks are text"),
]
Points = Annotated[int, Query(ge=1, le=10_000, description="At most so many, evenly taken")]


class PointView(BaseModel):
    step: int
    timestamp: float
    value: Number


class MetricView(PointView):
    """The latest point of a metric."""

    key: str


class TrackingView(BaseModel):
    run_id: str
    experiment: str
    status: RunStatus = Field(
        description="The run's own, as its client tells; the job's state is another thing"
    )
    metrics: list[MetricView]
    params: dict[str, str]
    tags: dict[str, str]
    models: list[str] = Field(description="The names of the models it has logged, newest first")


class SeriesView(BaseModel):
    """A metric over its steps."""

    key: str
    total: int = Field(description="How many points there are; fewer may be shown")
    min: Number | None = Field(description="Of all points; null if none is a number")
    max: Number | None
    points: list[PointView]


class ExperimentView(BaseModel):
    id: str
    name: str
    stage: Literal["active", "deleted"]
    jobs: int
    runs: int
    changed: float = Field(description="When something in it began or ended last")
    tags: dict[str, str]


class RunView(BaseModel):
    run_id: str
    name: str
    job: str | None = Field(description="The job that made it")
    state: JobState | None = Field(description="Of that job, where the run is the job's own")
    status: RunStatus
    started: float | None
    ended: float | None
    metrics: list[MetricView]
    params: dict[str, str]


class ExperimentRuns(ExperimentView):
    newest: list[RunView]


@router.get("/jobs/{job}/tracking", responses={200: OF_TRACKING})
def show_tracking(job: str, parts: PartsDep) -> TrackingView:
    """Show what a job has logged: the latest point of each metric, params, tags."""
    run = parts.runs.get(parts.jobs.find(job).id)
    models = [model.name for model in parts.logged_models.made_by(run.id)]
    return TrackingView(
        run_id=run.id,
        experiment=parts.experiments.get(run.experiment_id).name,
        status=run.status,
        metrics=_metrics(run),
        params=run.params,
        tags=run.tags,
        models=models,
    )


@router.get("/jobs/{job}/metrics/{key:any}")
def show_metric(job: str, key: str, parts: PartsDep, points: Points = 1000) -> SeriesView:
    """Show a metric by step, the first and the last point always among those shown."""
    found = parts.jobs.find(job)
    spread = parts.overview.spread(found.id, key)
    if not spread.count:
        raise _no_metric(parts, found, key)
    sampled = parts.metrics.sampled(found.id, key, most=points)
    return SeriesView(
        key=key,
        total=spread.count,
        min=spread.least,
        max=spread.most,
        points=[PointView(**_point(each)) for each in sampled],
    )


@router.get("/experiments", responses={200: OF_EXPERIMENTS})
def list_experiments(parts: PartsDep) -> list[ExperimentView]:
    """List experiments, deleted ones too; those where something happened last come first."""
    return [ExperimentView(**_summary(each)) for each in parts.overview.experiments()]


@router.get("/experiments/{name:any}")
def show_experiment(
    name: str, parts: PartsDep, limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> ExperimentRuns:
    """Show an experiment and its newest runs."""
    found = parts.overview.experiment(name)
    owners = parts.overview.runs(found.id, limit=limit)
    runs = {run.id: run for run in parts.runs.load([each.run_id for each in owners])}
    newest = [_run(runs[each.run_id], each) for each in owners if each.run_id in runs]
    return ExperimentRuns(**_summary(found), newest=newest)


def _metrics(run: Run) -> list[MetricView]:
    return [MetricView(key=each.key, **_point(each)) for each in run.metrics]


def _point(metric: Metric) -> dict[str, Any]:
    return {
        "step": metric.step,
        "timestamp": metric.timestamp / 1000,
        "value": metric.value,
    }


def _no_metric(parts: Parts, job: Job, key: str) -> NotFound:
    known = [each.key for each in parts.runs.get(job.id).metrics]
    names = ", ".join(known[:_SHOWN]) + (", …" if len(known) > _SHOWN else "")
    return NotFound(f"job {job.name!r} has no metric {key!r}; it has {names or 'logged none'}")


def _summary(found: ExperimentSummary) -> dict[str, Any]:
    return asdict(found) | {"changed": found.changed / 1000}


def _run(run: Run, owner: RunOwner) -> RunView:
    return RunView(
        run_id=run.id,
        name=run.name,
        job=owner.job,
        state=owner.state,
        status=run.status,
        started=_seconds(run.started),
        ended=_seconds(run.ended),
        metrics=_metrics(run),
        params=run.params,
    )


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
