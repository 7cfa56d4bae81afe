"""Words and bytes for the terminal: results to stdout, everything said about them to stderr."""

import json
import math
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_CODES = {"dim": "2", "red": "31", "green": "32", "yellow": "33"}
_DELETE, _C1 = 0x7F, range(0x80, 0xA0)  # what JSON leaves as is, and terminals obey
_IN_JSON = {code: f"\\u{code:04x}" for code in (_DELETE, *_C1)}
_WIDE = 100_000  # columns of a file or a pipe: nothing there needs to be cut


def say(text: str, style: str = "") -> None:
    """Write one line about what happens to stderr."""
    sys.stdout.flush()
    print(_styled(visible(text), style, sys.stderr), file=sys.stderr, flush=True)  # noqa: T201


def tell(text: str) -> None:
    """Write one line of the result to stdout; a terminal gets nothing that would steer it."""
    print(visible(text) if sys.stdout.isatty() else text, flush=True)  # noqa: T201


def write_json(value: Any) -> None:
    """Write one JSON document to stdout, and nothing else; NaN and infinities become text."""
    tell(json.dumps(_finite(value), indent=2, ensure_ascii=not _is_utf8()).translate(_IN_JSON))


def write_csv(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table of plain values to stdout."""
    import csv

    clean = visible if sys.stdout.isatty() else str
    out = csv.writer(sys.stdout, lineterminator="\n")
    for row in (titles, *rows):
        out.writerow(["" if each is None else clean(str(_finite(each))) for each in row])
    sys.stdout.flush()


def visible(text: str) -> str:
    """Write what would steer a terminal, such as an escape code, as a backslash and its number."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in "\n\t" else _coded(each) for each in text)


def write_bytes(piece: bytes, *, to: TextIO) -> None:
    """Write exactly these bytes, at once."""
    to.flush()
    to.buffer.write(piece)
    to.buffer.flush()


def is_terminal(file: TextIO) -> bool:
    return file.isatty() and os.environ.get("TERM") != "dumb"


def console(*, err: bool = False) -> "Console":
    """Return a Rich console that cuts columns to the screen, and never in a pipe."""
    from rich.console import Console

    file = sys.stderr if err else sys.stdout
    return Console(stderr=err, width=None if file.isatty() else _WIDE, highlight=False)


def show(what: "RenderableType") -> None:
    """Write a result laid out by Rich; where no screen is, without blanks that end a line."""
    from rich.text import Text

    if isinstance(what, Text) and not sys.stdout.isatty():
        tell(what.plain)
        return
    screen = console()
    if sys.stdout.isatty():
        screen.print(what, crop=False)
        return
    with screen.capture() as caught:
        screen.print(what)
    tell("\n".join(line.rstrip() for line in caught.get().rstrip("\n").split("\n")))


def joined(sentence: str, more: str) -> str:
    """Go on after a sentence, which may have brought its full stop along."""
    return f"{sentence.rstrip(' .;,')}; {more}"


def _coded(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _is_utf8() -> bool:
    return "utf" in (sys.stdout.encoding or "").lower()


def _finite(value: Any) -> Any:
    """Return the same with text for the numbers that JSON lacks."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in cast(dict[Any, Any], value).items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in cast(Sequence[Any], value)]
    return value


def _styled(text: str, style: str, file: TextIO) -> str:
    if not style or not is_terminal(file) or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m"
