"""Parses and formats amounts as people write them: `2g`, `512MiB`, `90s`, `1h30m`."""

import math
import re

from retarget.core.errors import Invalid

_MEMORY = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_MAX_BYTES = 2.0**60  # a larger number is a typing error
_MAX_SECONDS = 1e9  # 31 years; a larger number is a typing error, too
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_memory(text: str | int, *, field: str = "memory") -> int:
    """Return the number of bytes for `2g`, `512MiB`, `1.5 GB` or a plain number of bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", str(text).strip().lower())
    if match is None or not 1 <= float(match[1]) * _MEMORY[match[2]] < _MAX_BYTES:
        raise Invalid(
            f"{field}: {text!r} is not an amount of memory; write 512m, 2g or 1.5GiB", field=field
        )
    return int(float(match[1]) * _MEMORY[match[2]])


def parse_duration(text: str | float, *, field: str = "timeout") -> float:
    """Return the number of seconds for `90`, `90s`, `15m`, `1h30m` or `2d`."""
    plain = str(text).strip().lower()
    if isinstance(text, int | float) and not isinstance(text, bool):
        seconds = float(text) if text <= _MAX_SECONDS else math.inf  # float() of a huge int fails
    elif re.fullmatch(r"\d+(\.\d+)?", plain):
        seconds = float(plain)
    elif re.fullmatch(r"(\d+(\.\d+)?[smhd])+", plain):
        terms = re.findall(r"(\d+(?:\.\d+)?)([smhd])", plain)
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in terms)
    else:
        seconds = 0.0
    if not 0 < seconds <= _MAX_SECONDS:
        raise Invalid(f"{field}: {text!r} is not a duration; write 90s, 15m or 1h30m", field=field)
    return seconds


def show_memory(size: int) -> str:
    """Format a number of bytes: `1.5 GiB`."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def show_count(number: int, noun: str) -> str:
    """Format how many there are: `1 file`, `1,204 files`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def show_amount(number: float) -> str:
    """Format 1.0 as `1` and 0.5 as `0.5`."""
    return f"{number:g}"
