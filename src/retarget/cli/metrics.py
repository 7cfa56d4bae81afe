"""`retarget job metrics`: what a job measured, drawn or as numbers."""

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retarget.cli.complete import complete_metric
from retarget.cli.find import AsCsv, AsJson, JobName, check_one_form, find_job
from retarget.cli.terminal import is_terminal, say, write_csv, write_json

if TYPE_CHECKING:
    from retarget.sdk.jobs import Job
    from retarget.sdk.tracking import Series

_DRAWN = 1000  # points that a line on a screen is made of
_MOST = 10_000  # points that a server gives at once
_PAUSE = 1.0  # seconds between two looks at a job that runs


def metrics(  # noqa: PLR0913  one parameter an option
    name: JobName,
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEYS…", help="Only these metrics.", autocompletion=complete_metric),
    ] = None,
    points: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=_MOST,
            help=f"At most so many points of each, evenly taken ({_DRAWN}; with --csv {_MOST}).",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Draw again until the job has ended.")
    ] = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Draw the metrics of a job.

    Each with its first, least, largest and last value.

    \b
    Examples:
      retarget job metrics night
      retarget job metrics night val/loss --csv > loss.csv
    """
    check_one_form(as_json, as_csv)
    job = find_job(name)
    chosen = list(dict.fromkeys(keys or []))
    if follow:
        _wait(job, chosen, drawn=not (as_json or as_csv))
    if as_csv:
        _write_rows(_read(job, chosen, points or _MOST), alone=len(chosen) == 1)
    elif as_json:
        write_json([_plain(each) for each in _read(job, chosen, points or _DRAWN)])
    else:
        _draw(job, chosen, points or _DRAWN)


def _read(job: "Job", keys: Sequence[str], points: int) -> "list[Series]":
    return [job.metric_history(key, points) for key in keys or job.metrics()]


def _wait(job: "Job", keys: Sequence[str], *, drawn: bool) -> None:
    """Return when the job has ended; on a screen, draw meanwhile."""
    if not drawn or not is_terminal(sys.stdout):
        job.wait()
        return
    from rich.live import Live

    from retarget.cli.show_metrics import new_picture
    from retarget.cli.terminal import console

    with Live(console=console(), auto_refresh=False, transient=True) as live:
        while not job.refresh().state.is_final:
            logged = job.metrics()
            there = [key for key in keys or logged if key in logged]
            picture = new_picture(job, [job.metric_history(key, _DRAWN) for key in there])
            live.update(picture, refresh=True)
            time.sleep(_PAUSE)


def _draw(job: "Job", keys: Sequence[str], points: int) -> None:
    from retarget.cli.show_metrics import new_picture
    from retarget.cli.terminal import show

    found = _read(job, keys, points)
    if found:
        show(new_picture(job, found))
    else:
        say(f"{job.name} has logged no metrics", "dim")


def _plain(series: "Series") -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(series)


def _write_rows(found: "Sequence[Series]", *, alone: bool) -> None:
    titles = ["step", "timestamp", "value"]
    rows = [(each.key, point) for each in found for point in each]
    cells = ([key, point.step, point.timestamp, point.value] for key, point in rows)
    write_csv(titles if alone else ["key", *titles], (row[alone:] for row in cells))
    for each in found:
        if each.is_sampled:
            say(f"{each.key}: {len(each)} of {each.total} points, evenly taken", "dim")
