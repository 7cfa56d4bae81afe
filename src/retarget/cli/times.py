"""Ages and durations for people."""

from datetime import UTC, datetime


def utc_now() -> datetime:
    return datetime.now(UTC)


def show_age(at: datetime, now: datetime) -> str:
    """Write how long ago it was: `just now`, `3m ago`, `2d ago`."""
    seconds = (now - at).total_seconds()
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        if seconds >= size:
            return f"{int(seconds // size)}{unit} ago"
    return "just now"


def elapsed_seconds(started_at: datetime, ended_at: datetime | None) -> float:
    """Return how long something took, or has taken until now."""
    return max(0.0, ((ended_at or utc_now()) - started_at).total_seconds())
