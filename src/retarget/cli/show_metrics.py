"""Metrics for people: one sparkline per metric, as wide as the screen allows."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from retarget.cli.numbers import show_number, shows_blocks, sparkline
from retarget.cli.tables import Cell, new_table
from retarget.cli.terminal import console

if TYPE_CHECKING:
    from retarget.sdk.job import Job
    from retarget.sdk.tracking import Series

_TITLES = ("METRIC", "BY STEP", "FIRST", "MIN", "MAX", "LAST", "STEP")
_MIN_LINE_WIDTH, _MAX_LINE_WIDTH = 10, 60
_PIPE_LINE_WIDTH = 40
_MAX_NAME_WIDTH = 30  # a longer name does not make the sparkline shorter
_GAP = 2  # spaces between columns


def new_picture(job: "Job", metrics: "Sequence[Series]") -> RenderableType:
    """Return the table of a job's metrics, or a sentence if there are none yet."""
    if not metrics:
        return Text(f"{job.name} has logged no metrics yet; it is {job.state.value}", "dim")
    numbers = [_numbers(series) for series in metrics]
    rows = list(zip(metrics, numbers, strict=True))
    width = _line_width([[series.key, *cells] for series, cells in rows])
    blocks = shows_blocks()
    table: list[list[Cell]] = []
    for series, cells in rows:
        line = sparkline([point.value for point in series], width, blocks=blocks)
        table.append([series.key, Text(line, "cyan"), *cells])
    return new_table(_TITLES, table, flexible="METRIC", optional=("FIRST", "MIN", "MAX"))


def _numbers(series: "Series") -> list[str]:
    first, last = series[0], series[-1]
    bounds = [show_number(series.min), show_number(series.max)]
    return [show_number(first.value), *bounds, show_number(last.value), str(last.step)]


def _line_width(rows: Sequence[Sequence[str]]) -> int:
    if not sys.stdout.isatty():
        return _PIPE_LINE_WIDTH
    titles = [title for title in _TITLES if title != "BY STEP"]
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    widths[0] = min(widths[0], _MAX_NAME_WIDTH)
    available = console().width - sum(widths) - _GAP * len(widths)
    return max(_MIN_LINE_WIDTH, min(_MAX_LINE_WIDTH, available))
