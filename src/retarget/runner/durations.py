"""Durations for people."""

from __future__ import annotations


def show_duration(seconds: float) -> str:
    """Format a number of seconds: `70 ms`, `2 s`, `4.2 s`, `12 s`, `3m 20s`, `2h 5m`."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.0f} s" if seconds == int(seconds) else f"{seconds:.1f} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest}s"
    return f"{minutes // 60}h {minutes % 60}m"
