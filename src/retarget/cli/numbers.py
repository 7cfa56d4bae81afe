"""Numbers for the terminal: short text, and sparklines."""

import math
import os
import sys
from collections.abc import Sequence
from itertools import pairwise

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_MARKS = "_.-=+*#@"  # for terminals that cannot show the blocks
_NOT_FINITE = "x"  # NaN or infinite
_TERMINALS_WITHOUT_BLOCKS = ("dumb", "linux")


def show_number(value: float | None) -> str:
    """Write a number for people: `0.25`, `1200`, `1.5e-07`, `NaN`."""
    if value is None:
        return ""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return f"{value:.6g}"


def sparkline(values: Sequence[float], width: int, *, blocks: bool) -> str:
    """Draw values as one line of at most `width` characters."""
    means = _means(values, width)
    marks = _BLOCKS if blocks else _ASCII_MARKS
    finite = [mean for mean in means if mean is not None]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    return "".join(
        _NOT_FINITE if mean is None else marks[_level(mean, low, high, len(marks))]
        for mean in means
    )


def shows_blocks() -> bool:
    """Return whether stdout can show the characters of a sparkline."""
    if sys.stdout.isatty() and os.environ.get("TERM") in _TERMINALS_WITHOUT_BLOCKS:
        return False
    try:
        _BLOCKS.encode(getattr(sys.__stdout__, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _means(values: Sequence[float], width: int) -> list[float | None]:
    """Split the values into at most `width` slices and return the mean of each."""
    count = min(width, len(values))
    edges = [number * len(values) // count for number in range(count + 1)] if count else []
    return [_mean(values[start:end]) for start, end in pairwise(edges)]


def _mean(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    # divide before adding: the sum of large numbers may overflow
    return sum(value / len(finite) for value in finite) if finite else None


def _level(value: float, low: float, high: float, count: int) -> int:
    spread = high / 2 - low / 2  # halved: the difference of large numbers may overflow
    if not spread:
        return count // 2
    return round((value / 2 - low / 2) / spread * (count - 1))
