"""Shows objects as one line in a terminal and as a table in a notebook."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Generic, TypeVar

from retarget.core.errors import RetargetError

Columns = Mapping[str, object]  # heading -> value
_MAX_CELL_CHARACTERS = 200
_CELL_STYLE = "text-align: left; vertical-align: top"


class Displayable:
    """Base class of what a notebook shows as a table: a subclass lists its columns."""

    __slots__ = ()

    def _columns(self) -> Columns:
        raise NotImplementedError

    def _repr_html_(self) -> str | None:
        try:
            return _table([], [[heading, value] for heading, value in self._columns().items()])
        except RetargetError:  # a request failed: a notebook then shows the repr
            return None

    @staticmethod
    def table(items: "Iterable[Displayable]") -> str:
        """Return an HTML table with one row per item."""
        rows = [item._columns() for item in items]
        return (
            _table(list(rows[0]), [list(row.values()) for row in rows]) if rows else "<p>none</p>"
        )


_Item = TypeVar("_Item", bound=Displayable)


class Listing(list[_Item]):
    """A list that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        return Displayable.table(self)


class Collection(Generic[_Item]):
    """Base class of what a workspace has many of, such as its jobs."""

    def __init__(self, server: str) -> None:
        self._server = server

    def __repr__(self) -> str:
        # without the items: a debugger calls this, and it must not send a request
        return f"<{type(self).__name__} of {self._server}>"

    def _repr_html_(self) -> str | None:
        try:
            return Displayable.table(self._preview())
        except RetargetError:  # a notebook then shows the repr
            return None

    def _ipython_key_completions_(self) -> list[str]:
        # IPython calls this for `collection["<Tab>`
        try:
            items = self._preview()
        except RetargetError:
            return []
        names = (getattr(item, "name", None) for item in items)
        return [name for name in names if isinstance(name, str)]

    def _preview(self) -> Sequence[_Item]:
        """Return the items to show and to complete."""
        raise NotImplementedError


def show_time(time: datetime | None) -> str:
    return "" if time is None else f"{time.astimezone():%Y-%m-%d %H:%M:%S}"


def _table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f'<th style="{_CELL_STYLE}">{escape(heading)}</th>' for heading in headings)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table>{f'<tr>{head}</tr>' if head else ''}{body}</table>"


def _cell(value: object) -> str:
    return f'<td style="{_CELL_STYLE}">{escape(_text(value))}</td>'


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return show_time(value)
    if isinstance(value, Mapping):
        value = ", ".join(f"{key}={item}" for key, item in value.items())  # pyright: ignore[reportUnknownVariableType]
    text = str(value)  # pyright: ignore[reportUnknownArgumentType]
    return text if len(text) <= _MAX_CELL_CHARACTERS else f"{text[:_MAX_CELL_CHARACTERS]}…"
