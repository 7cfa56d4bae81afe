"""Metrics for people: a line of blocks each, as wide as there is room."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from retarget.cli.numbers import show_number, shows_blocks, sparkline
from retarget.cli.tables import Cell, new_table
from retarget.cli.terminal import console

if TYPE_CHECKING:
    from retarget.sdk.jobs import Job
    from retarget.sdk.tracking import Series

_TITLES = ("METRIC", "BY STEP", "FIRST", "MIN", "MAX", "LAST", "STEP")
_LEAST, _MOST = 10, 60  # characters of a line
_IN_A_FILE = 40
_NAME = 30  # characters of a name that a line makes room for
_GAP = 2


def new_picture(job: "Job", found: "Sequence[Series]") -> RenderableType:
    """Return the table of a job's metrics; a sentence if there are none yet."""
    if not found:
        return Text(f"{job.name} is {job.state.value} and has logged no metrics yet", "dim")
    numbers = [_numbers(each) for each in found]
    width = _room([[each.key, *row] for each, row in zip(found, numbers, strict=True)])
    blocks = shows_blocks()
    rows: list[list[Cell]] = []
    for each, row in zip(found, numbers, strict=True):
        line = sparkline([point.value for point in each], width, blocks=blocks)
        rows.append([each.key, Text(line, "cyan"), *row])
    return new_table(_TITLES, rows, flexible="METRIC", optional=("FIRST", "MIN", "MAX"))


def _numbers(series: "Series") -> list[str]:
    first, last = series[0], series[-1]
    bounds = [show_number(series.min), show_number(series.max)]
    return [show_number(first.value), *bounds, show_number(last.value), str(last.step)]


def _room(rows: Sequence[Sequence[str]]) -> int:
    if not sys.stdout.isatty():
        return _IN_A_FILE
    titles = [title for title in _TITLES if title != "BY STEP"]
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    widths[0] = min(widths[0], _NAME)
    left = console().width - sum(widths) - _GAP * len(widths)
    return max(_LEAST, min(_MOST, left))
