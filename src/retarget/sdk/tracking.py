"""What jobs logged, and the experiments that group them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload
from urllib.parse import quote

from retarget.core.errors import Invalid
from retarget.core.states import JobState
from retarget.sdk.given import TEXT, check
from retarget.sdk.http import Connection
from retarget.sdk.records import number, record, records, view

_EXPERIMENTS = "/api/experiments"
_WITH_METRICS = {"metrics": list[Any]}
_SERIES = {"min": float | str | None, "max": float | str | None, "points": list[Any]}


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a metric; `timestamp` is in seconds."""

    step: int
    timestamp: float
    value: float


@dataclass(frozen=True, slots=True)
class Series(Sequence[Point]):
    """A metric by step: a sequence of points, evenly taken if there are more than were asked for.

    `total`, `min` and `max` tell of all points; the bounds are None if none is a number.
    """

    key: str
    total: int
    min: float | None
    max: float | None
    points: list[Point]

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
        return len(self.points) < self.total


@dataclass(frozen=True, slots=True)
class Tracking:
    """All that a job has logged, of each metric the latest point.

    `status` is what its MLflow client says; the state of the job is another thing.
    """

    run_id: str
    experiment: str
    status: str
    metrics: dict[str, Point]
    params: dict[str, str]
    tags: dict[str, str]  # those that begin with `mlflow.` are MLflow's own
    models: list[str]  # the names of models that MLflow's client has logged


@dataclass(frozen=True, slots=True)
class Run:
    """A run of an experiment; `job` made it, `state` is that job's where the run is its own."""

    run_id: str
    name: str
    job: str | None
    state: JobState | None
    status: str
    started: float | None
    ended: float | None
    metrics: dict[str, Point]
    params: dict[str, str]


@dataclass(frozen=True, slots=True)
class Experiment:
    """What groups runs. `changed` is when something in it began or ended last.

    `newest` are its runs, the newest first; a listing leaves them out.
    """

    id: str
    name: str
    stage: str
    jobs: int
    runs: int
    changed: float
    tags: dict[str, str]
    newest: list[Run] | None = None


def read_tracking(connection: Connection, job: str) -> Tracking:
    """Ask what the job at this path has logged."""
    raw = view(connection.get(f"{job}/tracking"), _WITH_METRICS)
    return record(Tracking, raw | {"metrics": _latest(raw)})


def read_series(connection: Connection, job: str, key: str, points: int) -> Series:
    """Ask for one metric of the job at this path."""
    check("key", key, TEXT)
    if not key:
        raise Invalid("the name of a metric is empty")
    path = f"{job}/metrics/{quote(key, errors='replace')}"
    raw = view(connection.get(path, {"points": points}), _SERIES)
    bounds = {name: None if raw[name] is None else number(raw[name]) for name in ("min", "max")}
    return record(Series, raw | bounds | {"points": [_point(each) for each in raw["points"]]})


def list_experiments(connection: Connection) -> list[Experiment]:
    return records(Experiment, connection.get(_EXPERIMENTS))


def read_experiment(connection: Connection, name: str, limit: int) -> Experiment:
    check("name", name, TEXT)
    if not name:
        raise Invalid("the name of an experiment is empty")
    path = f"{_EXPERIMENTS}/{quote(name, safe='', errors='replace')}"
    raw = view(connection.get(path, {"limit": limit}), {"newest": list[Any]})
    return record(Experiment, raw | {"newest": [_run(each) for each in raw["newest"]]})


def _latest(raw: Mapping[str, Any]) -> dict[str, Point]:
    return {view(each, {"key": str})["key"]: _point(each) for each in raw["metrics"]}


def _point(raw: Any) -> Point:
    told = view(raw, {"value": float | str})
    return record(Point, told | {"value": number(told["value"])})


def _run(raw: Any) -> Run:
    told = view(raw, _WITH_METRICS)
    return record(Run, told | {"metrics": _latest(told)})
