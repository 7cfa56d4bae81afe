"""`retarget job compare`: several jobs side by side."""

import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retarget.cli.find import AsCsv, AsJson, JobNames, check_one_form, job_named
from retarget.cli.terminal import write_csv, write_json
from retarget.core.errors import Invalid

if TYPE_CHECKING:
    from retarget.sdk.jobs import Job
    from retarget.sdk.tracking import Tracking

_MOST = 100


@dataclass(frozen=True, slots=True)
class Compared:
    """A job and what it logged."""

    job: "Job"
    tracking: "Tracking"
    took: float | None

    def to_json(self) -> dict[str, Any]:
        view = self.job.to_json()
        known = {name: view[name] for name in ("name", "id", "state", "target", "experiment")}
        logged = {key: point.value for key, point in self.tracking.metrics.items()}
        about = {"params": self.tracking.params, "metrics": logged}
        return known | {"command": view["command"], "took": self.took} | about


@dataclass(frozen=True, slots=True)
class Line:
    """One row: something that is known of each job, None where it is not."""

    kind: str  # job, param, metric
    key: str
    values: tuple[Any, ...]

    @property
    def differs(self) -> bool:
        return len({repr(each) for each in self.values}) > 1  # repr: NaN is like NaN


def compare(
    names: JobNames,
    diff: Annotated[bool, typer.Option("--diff", help="Only what differs.")] = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Show jobs side by side.

    How they ended, their params, those that differ first, and what they measured.

    The best of each metric is marked with a *: the least where the name tells of a loss, an error
    or a time, else the largest.

    \b
    Examples:
      retarget job compare night-1 night-2
      retarget job compare night-1 night-2 --diff --csv
    """
    check_one_form(as_json, as_csv)
    found = _read(names)
    if as_json:
        write_json([each.to_json() for each in found])
        return
    lines = [line for line in _lines(found) if not diff or _matters(line)]
    if as_csv:
        titles = ["kind", "key", *(each.job.name for each in found)]
        write_csv(titles, ([line.kind, line.key, *line.values] for line in lines))
    else:
        from retarget.cli.show_compare import show_lines

        show_lines([each.job.name for each in found], lines)


def _matters(line: Line) -> bool:
    return line.differs and (line.kind, line.key) != ("job", "took")  # which differs always


def _read(names: Sequence[str]) -> list[Compared]:
    from retarget.sdk.workspace import Workspace

    wanted = list(dict.fromkeys(names))
    if not 2 <= len(wanted) <= _MOST:
        raise Invalid(f"name 2 to {_MOST} jobs to compare; {len(wanted)} came")
    jobs, now = Workspace().jobs, time.time()
    found = [job_named(jobs, name) for name in wanted]
    return [Compared(job, job.tracking(), _took(job, now)) for job in found]


def _took(job: "Job", now: float) -> float | None:
    view = job.to_json()
    if view["started"] is None:
        return None
    return max(0.0, (view["ended"] or now) - view["started"])


def _lines(found: Sequence[Compared]) -> list[Line]:
    """Return all rows: the jobs, then params, those that differ first, then metrics."""
    about = [_about(found, "experiment"), _about(found, "target")]
    commands = tuple(shlex.join(each.job.to_json()["command"]) for each in found)
    about.append(Line("job", "command", commands))
    params = list(_each(found, "param", lambda each: each.tracking.params))
    metrics = _each(
        found,
        "metric",
        lambda each: {key: point.value for key, point in each.tracking.metrics.items()},
    )
    return [
        _about(found, "state"),
        Line("job", "took", tuple(each.took for each in found)),
        *(line for line in about if line.differs),
        *sorted(params, key=lambda line: not line.differs),
        *metrics,
    ]


def _about(found: Sequence[Compared], name: str) -> Line:
    return Line("job", name, tuple(each.job.to_json()[name] for each in found))


def _each(
    found: Sequence[Compared], kind: str, read: Callable[[Compared], dict[str, Any]]
) -> Iterable[Line]:
    known = [read(each) for each in found]
    for key in sorted({key for values in known for key in values}):
        yield Line(kind, key, tuple(values.get(key) for values in known))
