"""Reads what jobs logged, and the experiments that group runs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, overload
from urllib.parse import quote

from retarget.core.errors import Invalid
from retarget.core.states import JobState
from retarget.core.units import show_count
from retarget.sdk.arguments import TEXT, check
from retarget.sdk.display import Collection, Columns, Displayable, Listing
from retarget.sdk.http import Connection
from retarget.sdk.records import number, record, records, view

_EXPERIMENTS = "/api/experiments"
_METRICS = {"metrics": list[Any]}
_SERIES = {"min": float | str | None, "max": float | str | None, "points": list[Any]}


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a metric; `logged_at` is in UTC."""

    step: int
    logged_at: datetime
    value: float


@dataclass(frozen=True, slots=True)
class Series(Sequence[Point]):
    """The points of a metric by step; evenly sampled if there are more than were requested.

    `total`, `min` and `max` describe all points. `min` and `max` are None if no value is a number.
    """

    key: str
    total: int
    min: float | None
    max: float | None
    points: list[Point]

    def __repr__(self) -> str:
        last = f", last {self.points[-1].value:g}" if self.points else ""
        return f"<Series {self.key}: {len(self.points)} of {show_count(self.total, 'point')}{last}>"

    @overload
    def __getitem__(self, index: int) -> Point: ...
    @overload
    def __getitem__(self, index: slice) -> list[Point]: ...

    def __getitem__(self, index: int | slice) -> Point | list[Point]:
        return self.points[index]

    def __len__(self) -> int:
        return len(self.points)

    def __iter__(self) -> Iterator[Point]:
        return iter(self.points)

    @property
    def is_sampled(self) -> bool:
        """Whether `points` holds only some of the points."""
        return len(self.points) < self.total


@dataclass(frozen=True, slots=True)
class Tracking(Displayable):
    """Everything that a job logged, with the latest point of each metric.

    `status` is the status that the MLflow client set; it is independent of the job's state.
    """

    run_id: str
    experiment: str
    status: str
    metrics: dict[str, Point]
    params: dict[str, str]
    tags: dict[str, str]  # tags that begin with `mlflow.` are MLflow's own
    models: list[str]  # the names of the models that the MLflow client logged

    def _columns(self) -> Columns:
        return {
            "experiment": self.experiment,
            "status": self.status,
            **_values(self.metrics),
            **self.params,
            "models": ", ".join(self.models),
        }


@dataclass(frozen=True, slots=True)
class Run(Displayable):
    """A run of an experiment. Times are in UTC.

    `job` is the name of the job that created the run. `state` is the job's state if this is the
    job's own run, else None.
    """

    run_id: str
    name: str
    job: str | None
    state: JobState | None
    status: str
    started_at: datetime | None
    ended_at: datetime | None
    metrics: dict[str, Point]
    params: dict[str, str]

    def __repr__(self) -> str:
        return f"<Run {self.name} {self.status}>"

    def _columns(self) -> Columns:
        return {
            "run": self.name,
            "job": self.job,
            "status": self.status,
            "started": self.started_at,
            "ended": self.ended_at,
            "metrics": _values(self.metrics),
            "params": self.params,
        }


@dataclass(frozen=True, slots=True)
class Experiment(Displayable):
    """A named group of runs. `changed_at` (UTC) is when a run in it last started or ended.

    `newest` lists its runs, newest first; it is None in a listing of experiments.
    """

    id: str
    name: str
    stage: str
    jobs: int
    runs: int
    changed_at: datetime
    tags: dict[str, str]
    newest: list[Run] | None = None

    def __repr__(self) -> str:
        return f"<Experiment {self.name}: {show_count(self.runs, 'run')}>"

    def _columns(self) -> Columns:
        return {
            "experiment": self.name,
            "runs": self.runs,
            "jobs": self.jobs,
            "changed": self.changed_at,
            "tags": self.tags,
        }

    def _repr_html_(self) -> str:
        # not super(): a dataclass with slots is a new class, which super() does not know
        return f"{Displayable._repr_html_(self)}{Displayable.table(self.newest or [])}"


class Experiments(Collection[Experiment]):
    """The experiments of a workspace."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.label)
        self._connection = connection

    def __getitem__(self, name: str) -> Experiment:
        """Return an experiment with its 100 newest runs; raise NotFound if there is none."""
        return self.get(name)

    def __iter__(self) -> Iterator[Experiment]:
        return iter(self.list())

    def get(self, name: str, *, limit: int = 100, sort: str | None = None) -> Experiment:
        """Return an experiment with its `limit` newest runs; raise NotFound if there is none.

        With `sort`, such as `"-metrics.acc"`, these are the first runs in that order.
        """
        check("name", name, TEXT)
        if not name:
            raise Invalid("the name of an experiment is empty")
        path = f"{_EXPERIMENTS}/{quote(name, safe='', errors='replace')}"
        raw = view(
            self._connection.get(path, {"limit": limit, "sort": sort}), {"newest": list[Any]}
        )
        runs = Listing(_run(run) for run in raw["newest"])
        return record(Experiment, raw | {"newest": runs})

    def list(self) -> Listing[Experiment]:
        """List all experiments, the most recently changed first."""
        return Listing(records(Experiment, self._connection.get(_EXPERIMENTS)))

    def _preview(self) -> Listing[Experiment]:
        return self.list()


def read_tracking(connection: Connection, job_path: str) -> Tracking:
    """Return what the job at this path logged."""
    raw = view(connection.get(f"{job_path}/tracking"), _METRICS)
    return record(Tracking, raw | {"metrics": _latest(raw)})


def read_series(connection: Connection, job_path: str, key: str, points: int) -> Series:
    """Return one metric of the job at this path."""
    check("key", key, TEXT)
    if not key:
        raise Invalid("the name of a metric is empty")
    path = f"{job_path}/metrics/{quote(key, errors='replace')}"
    raw = view(connection.get(path, {"points": points}), _SERIES)
    bounds = {name: None if raw[name] is None else number(raw[name]) for name in ("min", "max")}
    return record(Series, raw | bounds | {"points": [_point(point) for point in raw["points"]]})


def _latest(raw: Mapping[str, Any]) -> dict[str, Point]:
    return {view(point, {"key": str})["key"]: _point(point) for point in raw["metrics"]}


def _point(raw: Any) -> Point:
    point = view(raw, {"value": float | str})
    return record(Point, point | {"value": number(point["value"])})


def _run(raw: Any) -> Run:
    run = view(raw, _METRICS)
    return record(Run, run | {"metrics": _latest(run)})


def _values(metrics: Mapping[str, Point]) -> dict[str, str]:
    return {key: f"{point.value:g}" for key, point in metrics.items()}
