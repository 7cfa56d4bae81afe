"""Jobs side by side, for people: a few as columns, many as rows."""

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from retarget.cli.numbers import show_number
from retarget.cli.ranking import best
from retarget.cli.show import state_text
from retarget.cli.tables import dropped_columns, new_table
from retarget.cli.terminal import console, print_result, print_status, printable, show
from retarget.core.states import JobState
from retarget.runner.durations import show_duration

if TYPE_CHECKING:
    from retarget.cli.compare import Line

_ROW_ORDER = {"job": 0, "metric": 1, "param": 2}
_TITLES = {"param": "params", "metric": "metrics"}
_MAX_CELL_WIDTH = 28  # on a terminal
_GAP = 2  # spaces between columns
_LEGEND = "* best value: the smallest of a loss, an error or a time, or else the largest"
_MAX_SIDE_BY_SIDE = 4  # more jobs are rows of a table


def show_lines(names: Sequence[str], lines: "Sequence[Line]") -> None:
    if not lines:
        print_status("nothing differs", "dim")
        return
    if any(line.kind == "param" and line.differs for line in lines):
        # the params show the difference; the command would only repeat it
        lines = [line for line in lines if (line.kind, line.key) != ("job", "command")]
    if len(names) > _MAX_SIDE_BY_SIDE:
        _show_rows(names, lines)
    else:
        _show_columns(names, lines)
    if any(line.kind == "metric" and best(line.key, line.values) for line in lines):
        print_status(_LEGEND, "dim")


def _show_rows(names: Sequence[str], lines: "Sequence[Line]") -> None:
    """Show one job per row: its state, metrics, then params; of these, those that differ first."""
    ordered = sorted(
        lines, key=lambda line: (_ROW_ORDER[line.kind], line.kind != "job" and not line.differs)
    )
    titles = _titles(ordered)
    cells = [[_cell(line, job) for line in ordered] for job in range(len(names))]
    rows = [[name, *row] for name, row in zip(names, cells, strict=True)]
    optional = [title for line, title in zip(ordered, titles, strict=True) if line.key != "state"]
    columns = ["NAME", *titles]
    show(new_table(columns, rows, flexible="NAME", optional=optional[::-1]))
    dropped = dropped_columns(columns, rows, flexible="NAME", optional=optional[::-1])
    if dropped:
        text = f"{len(dropped)} columns are too wide for this screen; --csv and --json have all"
        print_status(text, "dim")


def _titles(lines: "Sequence[Line]") -> list[str]:
    keys = [line.key for line in lines]
    return [
        line.key.upper()
        if line.kind == "job"
        else f"{line.kind}s.{line.key}" * (keys.count(line.key) > 1) or line.key
        for line in lines
    ]


def _show_columns(names: Sequence[str], lines: "Sequence[Line]") -> None:
    labels = [_cut(Text(printable(line.key))) for line in lines]
    columns = [[_cell(line, job) for line in lines] for job in range(len(names))]
    heads = [_cut(Text(printable(name), "bold")) for name in names]
    for number, group in enumerate(_groups(labels, heads, columns)):
        if number:
            print_result("")
        show(_table(lines, labels, [(heads[job], columns[job]) for job in group]))


def _cell(line: "Line", job: int) -> Text:
    value = line.values[job]
    if value is None:
        return Text("")
    if line.key == "state" and line.kind == "job":
        return state_text(JobState(value))
    if line.key == "took" and line.kind == "job":
        return Text(show_duration(value))
    if line.kind == "metric":
        is_best = job in best(line.key, line.values)
        return Text(show_number(value) + "*" * is_best, "bold green" if is_best else "")
    return _cut(Text(printable(" ".join(str(value).split()))))


def _groups(
    labels: Sequence[Text], heads: Sequence[Text], columns: Sequence[Sequence[Text]]
) -> Iterator[list[int]]:
    """Yield the indexes of the columns that fit side by side, at least one at a time."""
    available = console().width - _width(labels)
    group: list[int] = []
    used = 0
    for index, column in enumerate(columns):
        width = _width([heads[index], *column]) + _GAP
        if group and used + width > available:
            yield group
            group, used = [], 0
        group.append(index)
        used += width
    yield group


def _table(
    lines: "Sequence[Line]", labels: Sequence[Text], columns: Sequence[tuple[Text, Sequence[Text]]]
) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    table.add_column(no_wrap=True)
    for head, _ in columns:
        table.add_column(head, no_wrap=True)
    kind = "job"
    for index, line in enumerate(lines):
        if line.kind != kind:
            kind = line.kind
            table.add_row(Text(_TITLES[kind], "bold"))
        table.add_row(labels[index], *(cells[index] for _, cells in columns))
    return table


def _cut(text: Text) -> Text:
    if sys.stdout.isatty():
        text.truncate(_MAX_CELL_WIDTH, overflow="ellipsis")
    return text


def _width(cells: Sequence[Text]) -> int:
    return max([len("metrics"), *(cell.cell_len for cell in cells)])
