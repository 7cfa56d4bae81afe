"""Where the time of a job went: when it reached each stage, as the server and its runner saw it."""

from dataclasses import dataclass
from typing import Any

from retarget.sdk.records import Attempt, records

# What is known of an attempt by name, and what it means.
_STAGES = {
    "created": "placed on its target",
    "preparing": "its runner has begun",
    "starting": "code and environment are ready",
    "started": "the script is there",
    "output": "the first of its output is at the server",
    "exited": "the script has ended",
    "ended": "everything has arrived",
}


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage that was reached: its name, what that means, when, and seconds since submission."""

    name: str
    meaning: str
    at: float
    since: float


def stages(view: dict[str, Any], number: int | None = None) -> list[Stage]:
    """Return the stages of one attempt, the last unless told, in the order they were reached."""
    attempts = records(Attempt, view["attempts"] or [])
    chosen = [each for each in attempts if number in (None, each.number)]
    reached = [("submitted", "submitted", float(view["created"]))]
    for name, meaning in _STAGES.items() if chosen else ():
        at: float | None = getattr(chosen[-1], name)
        if at is not None:
            shown = "placed" if name == "created" else name
            reached.append((shown, meaning, float(at)))
    reached.sort(key=lambda stage: stage[2])
    return [Stage(*stage, since=stage[2] - float(view["created"])) for stage in reached]
