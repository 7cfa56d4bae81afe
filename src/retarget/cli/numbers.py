"""Numbers in a terminal: short ones, and a line of them."""

import math
import os
import sys
from collections.abc import Sequence
from itertools import pairwise

_BLOCKS = "▁▂▃▄▅▆▇█"
_LETTERS = "_.-=+*#@"  # where blocks cannot be shown
_NO_NUMBER = "x"  # NaN or infinite
_POOR = ("dumb", "linux")  # terminals without the blocks


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
    levels = _levels(values, width)
    marks = _BLOCKS if blocks else _LETTERS
    numbers = [each for each in levels if each is not None]
    low, high = min(numbers, default=0.0), max(numbers, default=0.0)
    return "".join(
        _NO_NUMBER if each is None else marks[_place(each, low, high, len(marks))]
        for each in levels
    )


def shows_blocks() -> bool:
    """Tell whether stdout takes the characters of a sparkline."""
    if sys.stdout.isatty() and os.environ.get("TERM") in _POOR:
        return False
    try:
        _BLOCKS.encode(getattr(sys.__stdout__, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _levels(values: Sequence[float], width: int) -> list[float | None]:
    """Return the mean of each part of the values; None of one without a number."""
    count = min(width, len(values))
    edges = [part * len(values) // count for part in range(count + 1)] if count else []
    return [_mean(values[start:end]) for start, end in pairwise(edges)]


def _mean(values: Sequence[float]) -> float | None:
    numbers = [each for each in values if math.isfinite(each)]
    # divided first: the sum of large numbers may be none
    return sum(each / len(numbers) for each in numbers) if numbers else None


def _place(value: float, low: float, high: float, places: int) -> int:
    spread = high / 2 - low / 2
    if not spread:
        return places // 2
    return round((value / 2 - low / 2) / spread * (places - 1))
