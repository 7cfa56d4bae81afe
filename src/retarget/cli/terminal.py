"""Words and bytes for the terminal: results to stdout, everything said about them to stderr."""

import json
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_CODES = {"dim": "2", "red": "31", "green": "32", "yellow": "33"}
_WIDE = 100_000  # columns of a file or a pipe: nothing there needs to be cut


def say(text: str, style: str = "") -> None:
    """Write one line about what happens to stderr."""
    sys.stdout.flush()
    print(_styled(text, style, sys.stderr), file=sys.stderr, flush=True)  # noqa: T201


def tell(text: str) -> None:
    """Write one line of the result to stdout."""
    print(text, flush=True)  # noqa: T201


def write_json(value: Any) -> None:
    """Write one JSON document to stdout, and nothing else."""
    tell(json.dumps(value, indent=2, ensure_ascii=False))


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


def _styled(text: str, style: str, file: TextIO) -> str:
    if not style or not is_terminal(file) or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m"
