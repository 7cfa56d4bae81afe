"""Tables that fit the screen: the less needed columns go, then one is cut or wrapped."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from retarget.cli.terminal import console, visible

if TYPE_CHECKING:  # only a screen needs it
    from rich.table import Table

_GAP = 2
_READABLE = 16  # columns that the flexible one is worth keeping others out for

Cell = str | Text


def new_table(
    titles: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    flexible: str,
    optional: Sequence[str] = (),
    wrap: bool = False,
) -> "Table | Text":
    """Return a plain table in which only `flexible` is cut, or wrapped with `wrap`.

    Of the `optional` columns those named first go first on a screen that is too narrow. Where there
    is no screen, nothing is cut: then it is laid out here, which is faster.
    """
    columns = {title: [_text(row[at]) for row in rows] for at, title in enumerate(titles)}
    if not sys.stdout.isatty():
        return Text(_laid_out(columns))
    from rich.table import Table

    for title in optional:
        if _too_wide(columns, flexible):
            del columns[title]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
    for title, cells in columns.items():
        if title == flexible:
            header = Text(title, no_wrap=True, overflow="ellipsis")
            table.add_column(header, no_wrap=False, overflow="fold")
            for cell in [] if wrap else cells:
                cell.no_wrap, cell.overflow = True, "ellipsis"
        else:
            table.add_column(title, no_wrap=True, min_width=_width(title, cells))
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return table


def without(
    title: str, titles: Sequence[str], rows: Sequence[Sequence[Cell]]
) -> tuple[list[str], list[list[Cell]]]:
    """Return titles and rows less one column."""
    at = titles.index(title)
    kept = [[cell for place, cell in enumerate(row) if place != at] for row in rows]
    return [each for each in titles if each != title], kept


def _text(cell: Cell) -> Text:
    if isinstance(cell, Text):
        return cell
    return Text(visible(" ".join(cell.split())))


def _laid_out(columns: dict[str, list[Text]]) -> str:
    filled = [
        [title.ljust(width := _width(title, cells))]
        + [cell.plain + " " * (width - cell.cell_len) for cell in cells]
        for title, cells in columns.items()
    ]
    return "\n".join((" " * _GAP).join(row).rstrip() for row in zip(*filled, strict=True))


def _width(title: str, cells: Sequence[Text]) -> int:
    return max([len(title), *(cell.cell_len for cell in cells)])


def _too_wide(columns: dict[str, list[Text]], flexible: str) -> bool:
    widths = {title: _width(title, cells) for title, cells in columns.items()}
    widths[flexible] = min(widths[flexible], _READABLE)
    return sum(widths.values()) + _GAP * (len(widths) - 1) > console().width
