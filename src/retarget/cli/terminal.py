"""Output to the terminal: results to stdout, status messages to stderr."""

import json
import math
import os
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_ANSI_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
_DELETE, _C1 = 0x7F, range(0x80, 0xA0)  # json.dumps keeps these, and terminals obey them
_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in (_DELETE, *_C1)}
_SHOWN_END = 30  # characters at the end of a string that is cut in the middle
_PIPE_COLUMNS = 100_000  # a file or a pipe has no width: nothing is cut


def print_status(text: str, style: str = "", *, is_printable: bool = False) -> None:
    """Write one line about what happens to stderr. `is_printable`: it may contain styles."""
    sys.stdout.flush()
    line = text if is_printable else styled(printable(text), style)
    print(line, file=sys.stderr, flush=True)  # noqa: T201


def print_error(message: str) -> None:
    """Write one sentence about an error to stderr, with its label in red."""
    print_status(styled("error:", "red") + " " + printable(message), is_printable=True)


def styled(text: str, style: str, *, to: TextIO | None = None) -> str:
    """Return text for stderr or `to`, with the codes of a style if that has colours."""
    if not style or not is_terminal(to or sys.stderr) or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_ANSI_CODES[style]}m{text}\x1b[0m"


def confirm_deletion(question: str) -> None:
    """Ask on the terminal; exit unless the answer is yes."""
    import typer

    if not typer.confirm(question, err=True):
        print_status("nothing was deleted", "dim")
        raise typer.Exit(1)


def print_result(text: str) -> None:
    """Write one line of the result to stdout; a terminal gets no control characters."""
    print(printable(text) if sys.stdout.isatty() else text, flush=True)  # noqa: T201


def write_json(value: Any) -> None:
    """Write one JSON document to stdout and nothing else.

    NaN and the infinities become strings, times become ISO 8601 strings in UTC.
    """
    text = json.dumps(_plain_values(value), indent=2, ensure_ascii=not _is_utf8())
    print_result(text.translate(_JSON_ESCAPES))


def write_csv(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table of plain values to stdout."""
    import csv

    clean = printable if sys.stdout.isatty() else str
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for row in (titles, *rows):
        writer.writerow(["" if cell is None else clean(str(_plain_values(cell))) for cell in row])
    sys.stdout.flush()


def printable(text: str) -> str:
    r"""Escape control characters: `\x1b` is written as a backslash and its number."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in "\n\t" else _escaped(char) for char in text
    )


def write_bytes(piece: bytes, *, to: TextIO) -> None:
    """Write exactly these bytes and flush."""
    to.flush()
    to.buffer.write(piece)
    to.buffer.flush()


def is_terminal(file: TextIO) -> bool:
    return file.isatty() and os.environ.get("TERM") != "dumb"


def console(*, err: bool = False) -> "Console":
    """Return a Rich console that cuts columns to the screen, but never in a pipe."""
    from rich.console import Console

    file = sys.stderr if err else sys.stdout
    return Console(stderr=err, width=None if file.isatty() else _PIPE_COLUMNS, highlight=False)


def show(renderable: "RenderableType") -> None:
    """Write a result that Rich lays out; into a pipe, without spaces at the end of lines."""
    from rich.text import Text

    if isinstance(renderable, Text) and not sys.stdout.isatty():
        print_result(renderable.plain)
        return
    screen = console()
    if sys.stdout.isatty():
        screen.print(renderable, crop=False)
        return
    with screen.capture() as capture:
        screen.print(renderable)
    print_result("\n".join(line.rstrip() for line in capture.get().rstrip("\n").split("\n")))


def cut_middle(text: str, width: int) -> str:
    """Return text that is at most this wide: of a longer one, its beginning and its end."""
    if len(text) <= width:
        return text
    end = min(_SHOWN_END, width // 2)
    return f"{text[: max(0, width - end - 1)]}…{text[len(text) - end :]}"


def append_clause(sentence: str, clause: str) -> str:
    """Join a clause to a sentence, which may end in a full stop."""
    return f"{sentence.rstrip(' .;,')}; {clause}"


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()


def _is_utf8() -> bool:
    return "utf" in (sys.stdout.encoding or "").lower()


def _plain_values(value: Any) -> Any:
    """Return the same value with strings for the numbers and times that JSON lacks."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, datetime):
        text = value.astimezone(UTC).isoformat(timespec="microseconds")
        return text.replace("+00:00", "Z")  # as the server writes times
    if isinstance(value, dict):
        return {key: _plain_values(item) for key, item in cast(dict[Any, Any], value).items()}
    if isinstance(value, list | tuple):
        return [_plain_values(item) for item in cast(Sequence[Any], value)]
    return value
