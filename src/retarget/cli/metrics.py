"""`retarget job metrics`: the metrics of a job, drawn or as numbers."""

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retarget.cli.completion import complete_metric
from retarget.cli.lookup import AsCsv, AsJson, JobName, check_one_format, find_job
from retarget.cli.terminal import is_terminal, print_status, write_csv, write_json
from retarget.core.units import show_count

if TYPE_CHECKING:
    from retarget.sdk.job import Job
    from retarget.sdk.tracking import Series

_DRAWN_POINTS = 1000  # enough for a line on a screen
_MAX_POINTS = 10_000  # the server's limit per request
_REFRESH_SECONDS = 1.0


def metrics(  # noqa: PLR0913  one parameter per option
    name: JobName,
    keys: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEYS…",
            help="Metrics to show. Default: all.",
            autocompletion=complete_metric,
        ),
    ] = None,
    points: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=_MAX_POINTS,
            help="Read at most N evenly spaced points per metric. "
            f"Default: {_DRAWN_POINTS}, with --csv {_MAX_POINTS}.",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Redraw every second until the job ends.")
    ] = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Plot the metrics of a job, one line per metric.

    Each line also shows the first, smallest, largest and last value.

    \b
    Examples:
      retarget job metrics night
      retarget job metrics night val/loss --csv > loss.csv
    """
    check_one_format(as_json, as_csv)
    job = find_job(name)
    unique_keys = list(dict.fromkeys(keys or []))
    if follow:
        _wait(job, unique_keys, drawn=not (as_json or as_csv))
    if as_csv:
        series = _read(job, unique_keys, points or _MAX_POINTS)
        _write_rows(series, is_single=len(unique_keys) == 1)
    elif as_json:
        write_json(
            [_as_dict(series) for series in _read(job, unique_keys, points or _DRAWN_POINTS)]
        )
    else:
        _draw(job, unique_keys, points or _DRAWN_POINTS)


def _read(job: "Job", keys: Sequence[str], points: int) -> "list[Series]":
    return [job.metric_history(key, points) for key in keys or job.metrics()]


def _wait(job: "Job", keys: Sequence[str], *, drawn: bool) -> None:
    """Wait until the job has ended; on a terminal, draw its metrics meanwhile."""
    if not drawn or not is_terminal(sys.stdout):
        job.wait()
        return
    from rich.live import Live

    from retarget.cli.show_metrics import new_picture
    from retarget.cli.terminal import console

    with Live(console=console(), auto_refresh=False, transient=True) as live:
        while not job.refresh().state.is_final:
            logged = job.metrics()
            present = [key for key in keys or logged if key in logged]
            picture = new_picture(job, [job.metric_history(key, _DRAWN_POINTS) for key in present])
            live.update(picture, refresh=True)
            time.sleep(_REFRESH_SECONDS)


def _draw(job: "Job", keys: Sequence[str], points: int) -> None:
    from retarget.cli.show_metrics import new_picture
    from retarget.cli.terminal import show

    series = _read(job, keys, points)
    if series:
        show(new_picture(job, series))
    else:
        print_status(f"{job.name} has logged no metrics", "dim")


def _as_dict(series: "Series") -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(series)


def _write_rows(metrics: "Sequence[Series]", *, is_single: bool) -> None:
    titles = ["step", "logged_at", "value"]
    rows = [(series.key, point) for series in metrics for point in series]
    cells = ([key, point.step, point.logged_at, point.value] for key, point in rows)
    write_csv(titles if is_single else ["key", *titles], (row[is_single:] for row in cells))
    for series in metrics:
        if series.is_sampled:
            count = f"{len(series)} of {show_count(series.total, 'point')}"
            print_status(f"{series.key}: {count}, evenly spaced", "dim")
