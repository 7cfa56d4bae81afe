"""Jobs side by side, for people: as many columns as the screen has room for, then the next ones."""

import math
import re
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from retarget.cli.numbers import show_number
from retarget.cli.show import state_text
from retarget.cli.terminal import console, say, show, tell, visible
from retarget.core.states import JobState
from retarget.core.units import show_duration

if TYPE_CHECKING:
    from retarget.cli.compare import Line

_TITLES = {"param": "params", "metric": "metrics"}
_LONG = 28  # characters of a cell on a screen
_GAP = 2
_LESS_IS_BETTER = re.compile(
    r"loss|err|mse|mae|mape|rmse|perplex|ppl|nll|entropy|time|latency|seconds|duration|wer|fid",
    re.I,
)


def show_lines(names: Sequence[str], lines: "Sequence[Line]") -> None:
    if not lines:
        say("nothing differs", "dim")
        return
    if any(line.kind == "param" and line.differs for line in lines):
        lines = [line for line in lines if line.key != "command" or line.kind != "job"]
    labels = [_cut(Text(visible(line.key))) for line in lines]
    columns = [[_cell(line, at) for line in lines] for at in range(len(names))]
    heads = [_cut(Text(visible(name), "bold")) for name in names]
    for number, part in enumerate(_parts(labels, heads, columns)):
        if number:
            tell("")
        show(_table(lines, labels, [(heads[at], columns[at]) for at in part]))


def _cell(line: "Line", at: int) -> Text:
    value = line.values[at]
    if value is None:
        return Text("")
    if line.key == "state" and line.kind == "job":
        return state_text(JobState(value))
    if line.key == "took" and line.kind == "job":
        return Text(show_duration(value))
    if line.kind == "metric":
        best = at in _best(line.key, line.values)
        return Text(show_number(value) + "*" * best, "bold green" if best else "")
    return _cut(Text(visible(" ".join(str(value).split()))))


def _best(key: str, values: Sequence[Any]) -> set[int]:
    """Return where the best values are; nowhere if there is nothing to choose."""
    numbers = {
        at: each for at, each in enumerate(values) if each is not None and not math.isnan(each)
    }
    if len(numbers) < 2 or len(set(numbers.values())) == 1:
        return set()
    best = min(numbers.values()) if _LESS_IS_BETTER.search(key) else max(numbers.values())
    return {at for at, each in numbers.items() if each == best}


def _parts(
    labels: Sequence[Text], heads: Sequence[Text], columns: Sequence[Sequence[Text]]
) -> Iterator[list[int]]:
    """Yield the columns that fit side by side, one at least."""
    room = console().width - _width(labels)
    part: list[int] = []
    used = 0
    for at, column in enumerate(columns):
        width = _width([heads[at], *column]) + _GAP
        if part and used + width > room:
            yield part
            part, used = [], 0
        part.append(at)
        used += width
    yield part


def _table(
    lines: "Sequence[Line]", labels: Sequence[Text], columns: Sequence[tuple[Text, Sequence[Text]]]
) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    table.add_column(no_wrap=True)
    for head, _ in columns:
        table.add_column(head, no_wrap=True)
    kind = "job"
    for at, line in enumerate(lines):
        if line.kind != kind:
            kind = line.kind
            table.add_row(Text(_TITLES[kind], "bold"))
        table.add_row(labels[at], *(cells[at] for _, cells in columns))
    return table


def _cut(text: Text) -> Text:
    if sys.stdout.isatty():
        text.truncate(_LONG, overflow="ellipsis")
    return text


def _width(cells: Sequence[Text]) -> int:
    return max([len("metrics"), *(cell.cell_len for cell in cells)])
