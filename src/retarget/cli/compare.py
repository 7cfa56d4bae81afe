"""`retarget job compare`: several jobs side by side."""

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retarget.cli.lookup import AsCsv, AsJson, JobNames, check_one_format, get_job
from retarget.cli.terminal import write_csv, write_json
from retarget.cli.times import elapsed_seconds
from retarget.core.errors import Invalid

if TYPE_CHECKING:
    from retarget.sdk.job import Job
    from retarget.sdk.tracking import Tracking

_MAX_JOBS = 100


@dataclass(frozen=True, slots=True)
class Compared:
    """A job and what it logged."""

    job: "Job"
    tracking: "Tracking"
    duration_seconds: float | None

    def to_json(self) -> dict[str, Any]:
        view = self.job.to_json()
        fields = {name: view[name] for name in ("name", "id", "state", "target", "experiment")}
        logged = {"params": self.tracking.params, "metrics": self.metrics}
        return (
            fields
            | {"command": view["command"], "duration_seconds": self.duration_seconds}
            | logged
        )

    @property
    def metrics(self) -> dict[str, float]:
        return {key: point.value for key, point in self.tracking.metrics.items()}


@dataclass(frozen=True, slots=True)
class Line:
    """One row: a value of each job, None if a job does not have it."""

    kind: str  # job, param, metric
    key: str
    values: tuple[Any, ...]

    @property
    def differs(self) -> bool:
        return len({repr(value) for value in self.values}) > 1  # repr: NaN equals NaN


def compare(
    names: JobNames,
    diff: Annotated[bool, typer.Option("--diff", help="Show only what differs.")] = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Compare jobs side by side: states, params and metrics.

    Params that differ come first. A * marks the best value of each metric: the smallest if its
    name suggests a loss, an error or a time, or else the largest.

    \b
    Examples:
      retarget job compare night-1 night-2
      retarget job compare night-1 night-2 --diff --csv
    """
    check_one_format(as_json, as_csv)
    compared = _read(names)
    if as_json:
        write_json([item.to_json() for item in compared])
        return
    lines = [line for line in _lines(compared) if not diff or _is_difference(line)]
    job_names = [item.job.name for item in compared]
    if as_csv:
        rows = ([line.kind, line.key, *line.values] for line in lines)
        write_csv(["kind", "key", *job_names], rows)
    else:
        from retarget.cli.show_compare import show_lines

        show_lines(job_names, lines)


def _is_difference(line: Line) -> bool:
    return line.differs and (line.kind, line.key) != ("job", "took")  # durations always differ


def _read(names: Sequence[str]) -> list[Compared]:
    from retarget.sdk.workspace import Workspace

    unique = list(dict.fromkeys(names))
    if not 2 <= len(unique) <= _MAX_JOBS:
        raise Invalid(f"compare needs 2 to {_MAX_JOBS} jobs, got {len(unique)}")
    jobs = Workspace().jobs
    selected = [get_job(jobs, name) for name in unique]
    return [Compared(job, job.tracking(), _duration_seconds(job)) for job in selected]


def _duration_seconds(job: "Job") -> float | None:
    return None if job.started_at is None else elapsed_seconds(job.started_at, job.ended_at)


def _lines(compared: Sequence[Compared]) -> list[Line]:
    """Return all rows: the jobs, then params, those that differ first, then metrics."""
    commands = tuple(shlex.join(item.job.to_json()["command"]) for item in compared)
    fields = [
        _field_line(compared, "experiment"),
        _field_line(compared, "target"),
        Line("job", "command", commands),
    ]
    params = list(_logged_lines(compared, "param", lambda item: item.tracking.params))
    return [
        _field_line(compared, "state"),
        Line("job", "took", tuple(item.duration_seconds for item in compared)),
        *(line for line in fields if line.differs),
        *sorted(params, key=lambda line: not line.differs),
        *_logged_lines(compared, "metric", lambda item: item.metrics),
    ]


def _field_line(compared: Sequence[Compared], name: str) -> Line:
    return Line("job", name, tuple(item.job.to_json()[name] for item in compared))


def _logged_lines(
    compared: Sequence[Compared], kind: str, read: Callable[[Compared], dict[str, Any]]
) -> Iterable[Line]:
    columns = [read(item) for item in compared]
    for key in sorted({key for values in columns for key in values}):
        yield Line(kind, key, tuple(values.get(key) for values in columns))
