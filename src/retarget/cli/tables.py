"""Tables that fit the screen: optional columns are dropped, then cells are cut or wrapped."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from retarget.cli.terminal import console, printable

if TYPE_CHECKING:  # only a terminal needs it
    from rich.table import Table

_GAP = 2  # spaces between columns
_MIN_FLEXIBLE_WIDTH = 16  # optional columns are dropped before the flexible one gets narrower
_MIN_WIDTH = 6  # of a column that is cut

Cell = str | Text


def new_table(
    titles: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    flexible: str,
    optional: Sequence[str] = (),
    wrap: bool = False,
) -> "Table | Text":
    """Return a table in which the `flexible` column is cut first, or wrapped with `wrap`.

    On a narrow screen the `optional` columns are dropped, in their order. Then the widest columns
    are cut; no cell but a flexible one is ever wrapped. In a pipe nothing is dropped or cut, and
    the table is laid out without Rich, which is faster.
    """
    columns = {title: [_text(row[index]) for row in rows] for index, title in enumerate(titles)}
    if not sys.stdout.isatty():
        return Text(_lay_out(columns))
    from rich.table import Table

    for title in _dropped(columns, flexible, optional):
        del columns[title]
    widths = _fitting_widths(columns, flexible)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
    for title, cells in columns.items():
        if title == flexible:
            header = Text(title, no_wrap=True, overflow="ellipsis")
            table.add_column(header, no_wrap=False, overflow="fold")
            for cell in [] if wrap else cells:
                cell.no_wrap, cell.overflow = True, "ellipsis"
        else:
            header = Text(title, no_wrap=True, overflow="ellipsis")
            table.add_column(header, no_wrap=True, overflow="ellipsis", width=widths[title])
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return table


def dropped_columns(
    titles: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    flexible: str,
    optional: Sequence[str] = (),
) -> list[str]:
    """Return the optional columns that `new_table` drops because the screen is too narrow."""
    if not sys.stdout.isatty():
        return []
    columns = {title: [_text(row[index]) for row in rows] for index, title in enumerate(titles)}
    return _dropped(columns, flexible, optional)


def without(
    title: str, titles: Sequence[str], rows: Sequence[Sequence[Cell]]
) -> tuple[list[str], list[list[Cell]]]:
    """Return titles and rows without one column."""
    dropped = titles.index(title)
    kept = [[cell for index, cell in enumerate(row) if index != dropped] for row in rows]
    return [other for other in titles if other != title], kept


def _text(cell: Cell) -> Text:
    if isinstance(cell, Text):
        return cell
    return Text(printable(" ".join(cell.split())))


def _dropped(columns: dict[str, list[Text]], flexible: str, optional: Sequence[str]) -> list[str]:
    kept, dropped = dict(columns), list[str]()
    for title in optional:
        if _is_too_wide(kept, flexible):
            del kept[title]
            dropped.append(title)
    return dropped


def _lay_out(columns: dict[str, list[Text]]) -> str:
    padded = [
        [title.ljust(width := _width(title, cells))]
        + [cell.plain + " " * (width - cell.cell_len) for cell in cells]
        for title, cells in columns.items()
    ]
    return "\n".join((" " * _GAP).join(row).rstrip() for row in zip(*padded, strict=True))


def _width(title: str, cells: Sequence[Text]) -> int:
    return max([len(title), *(cell.cell_len for cell in cells)])


def _is_too_wide(columns: dict[str, list[Text]], flexible: str) -> bool:
    return _total(_least_widths(columns, flexible)) > console().width


def _least_widths(columns: dict[str, list[Text]], flexible: str) -> dict[str, int]:
    widths = {title: _width(title, cells) for title, cells in columns.items()}
    widths[flexible] = min(widths[flexible], _MIN_FLEXIBLE_WIDTH)
    return widths


def _fitting_widths(columns: dict[str, list[Text]], flexible: str) -> dict[str, int]:
    """Return the widths at which the columns fit the screen, by cutting the widest first.

    The flexible column is cut completely first, because users copy the names in the others.
    """
    widths, screen = _least_widths(columns, flexible) | {flexible: 1}, console().width
    while _total(widths) > screen:
        widest = max(widths, key=lambda title: widths[title])
        if widths[widest] <= _MIN_WIDTH:
            break
        widths[widest] -= 1
    return widths


def _total(widths: dict[str, int]) -> int:
    return sum(widths.values()) + _GAP * (len(widths) - 1)
