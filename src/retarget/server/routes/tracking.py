"""/api/jobs/…/tracking and /api/experiments: what jobs logged, and experiments."""

from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from retarget.control.context import Context
from retarget.core.errors import NotFound
from retarget.core.filters import Search
from retarget.core.job_queries import parse_run_sort
from retarget.core.jobs import Job
from retarget.core.states import JobState
from retarget.core.tracking import ACTIVE, Metric, Run, RunStatus
from retarget.server.auth import ContextDep
from retarget.server.openapi_links import EXPERIMENTS_LINKS, TRACKING_LINKS
from retarget.server.request_bodies import BoundedRoute
from retarget.server.views import Number, Timestamp
from retarget.store.overview import ExperimentSummary, RunOwner
from retarget.store.run_search import Scope

router = APIRouter(route_class=BoundedRoute, prefix="/api", tags=["tracking"])

_MAX_NAMED_METRICS = 5  # in an error message


Points = Annotated[
    int, Query(ge=1, le=10_000, description="The maximum number of points; more are sampled evenly")
]

Sort = Annotated[
    str | None,
    Query(
        max_length=1000,
        description="`metrics.KEY`, `params.KEY`, `tags.KEY` or a field; with `-` in front or "
        "`desc` behind it in descending order",
    ),
]


class PointView(BaseModel):
    step: int
    logged_at: Timestamp
    value: Number


class MetricView(PointView):
    """The latest point of a metric."""

    key: str


class TrackingView(BaseModel):
    run_id: str
    experiment: str
    status: RunStatus = Field(
        description="The status that the MLflow client set; independent of the job's state"
    )
    metrics: list[MetricView]
    params: dict[str, str]
    tags: dict[str, str]
    models: list[str] = Field(
        description="The names of the models that the job logged, newest first"
    )


class SeriesView(BaseModel):
    """A metric over its steps."""

    key: str
    total: int = Field(description="The number of points logged; `points` may hold fewer")
    min: Number | None = Field(
        description="The minimum of all points; null if no value is a number"
    )
    max: Number | None
    points: list[PointView]


class ExperimentView(BaseModel):
    id: str
    name: str
    stage: Literal["active", "deleted"]
    jobs: int
    runs: int
    changed_at: Timestamp = Field(
        description="When the experiment was changed, or one of its runs started or ended"
    )
    tags: dict[str, str]


class RunView(BaseModel):
    run_id: str
    name: str
    job: str | None = Field(description="The name of the job that created the run")
    state: JobState | None = Field(
        description="The state of that job, if this is the job's own run"
    )
    status: RunStatus
    started_at: Timestamp | None
    ended_at: Timestamp | None
    metrics: list[MetricView]
    params: dict[str, str]


class ExperimentRuns(ExperimentView):
    newest: list[RunView]


@router.get("/jobs/{job}/tracking", responses={200: TRACKING_LINKS})
def show_tracking(job: str, context: ContextDep) -> TrackingView:
    """Show what a job logged: the latest point of each metric, params and tags."""
    run = context.store.runs.get(context.store.jobs.find(job).id)
    models = [model.name for model in context.store.logged_models.made_by(run.id)]
    return TrackingView(
        run_id=run.id,
        experiment=context.store.experiments.get(run.experiment_id).name,
        status=run.status,
        metrics=_metric_views(run),
        params=run.params,
        tags=run.tags,
        models=models,
    )


@router.get("/jobs/{job}/metrics/{key:any}")
def show_metric(job: str, key: str, context: ContextDep, points: Points = 1000) -> SeriesView:
    """Show a metric by step. The points always include the first and the last one."""
    owner = context.store.jobs.find(job)
    spread = context.store.overview.metric_range(owner.id, key)
    if not spread.count:
        raise _no_metric(context, owner, key)
    sampled = context.store.metrics.sample(owner.id, key, max_points=points)
    return SeriesView(
        key=key,
        total=spread.count,
        min=spread.minimum,
        max=spread.maximum,
        points=[PointView(**_point_fields(point)) for point in sampled],
    )


@router.get("/experiments", responses={200: EXPERIMENTS_LINKS})
def list_experiments(context: ContextDep) -> list[ExperimentView]:
    """List all experiments, including deleted ones, the most recently changed first."""
    summaries = context.store.overview.experiments()
    return [ExperimentView(**_summary_fields(summary)) for summary in summaries]


@router.get("/experiments/{name:any}")
def show_experiment(
    name: str,
    context: ContextDep,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    sort: Sort = None,
) -> ExperimentRuns:
    """Show an experiment and its runs: the newest, or the first in the order of `sort`."""
    order = None if sort is None else parse_run_sort(sort)
    summary = context.store.overview.experiment(name)
    if order is None:
        owners = context.store.overview.runs(summary.id, limit=limit)
    else:
        search = Search(orders=(order,), limit=limit)
        ids = context.store.searches.runs(search, Scope([int(summary.id)], [ACTIVE]))[:limit]
        owners = context.store.overview.owners(ids)
    runs = {run.id: run for run in context.store.runs.load([owner.run_id for owner in owners])}
    newest = [_run_view(runs[owner.run_id], owner) for owner in owners if owner.run_id in runs]
    return ExperimentRuns(**_summary_fields(summary), newest=newest)


def _metric_views(run: Run) -> list[MetricView]:
    return [MetricView(key=metric.key, **_point_fields(metric)) for metric in run.metrics]


def _point_fields(metric: Metric) -> dict[str, Any]:
    return {
        "step": metric.step,
        "logged_at": metric.logged_at / 1000,
        "value": metric.value,
    }


def _no_metric(context: Context, job: Job, key: str) -> NotFound:
    known = [metric.key for metric in context.store.runs.get(job.id).metrics]
    names = ", ".join(known[:_MAX_NAMED_METRICS]) + (
        ", …" if len(known) > _MAX_NAMED_METRICS else ""
    )
    return NotFound(f"job {job.name!r} has no metric {key!r}; it has {names or 'logged none'}")


def _summary_fields(summary: ExperimentSummary) -> dict[str, Any]:
    return asdict(summary) | {"changed_at": summary.changed_at / 1000}


def _run_view(run: Run, owner: RunOwner) -> RunView:
    return RunView(
        run_id=run.id,
        name=run.name,
        job=owner.job,
        state=owner.state,
        status=run.status,
        started_at=_seconds(run.started_at),
        ended_at=_seconds(run.ended_at),
        metrics=_metric_views(run),
        params=run.params,
    )


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
