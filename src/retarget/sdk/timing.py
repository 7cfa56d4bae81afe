"""Lists when a job reached each stage, by the clocks of the server and of the runner."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from retarget.sdk.display import Columns, Displayable
from retarget.sdk.records import Attempt, parse_time, records

# field of an attempt -> name and meaning of the stage
_STAGES = {
    "created_at": ("placed", "the job was placed on its target"),
    "preparing_at": ("preparing", "the runner started"),
    "starting_at": ("starting", "code and environment are ready"),
    "started_at": ("started", "the script started"),
    "first_output_at": ("output", "the first output reached the server"),
    "exited_at": ("exited", "the script exited"),
    "ended_at": ("ended", "all results reached the server"),
}


@dataclass(frozen=True, slots=True)
class Stage(Displayable):
    """A stage that a job reached: when (UTC), and how many seconds after its submission."""

    name: str
    meaning: str
    at: datetime
    elapsed_seconds: float

    def _columns(self) -> Columns:
        return {
            "stage": self.name,
            "meaning": self.meaning,
            "time": self.at,
            "seconds": f"{self.elapsed_seconds:.3f}",
        }


def stages(view: dict[str, Any], number: int | None = None) -> list[Stage]:
    """Return the stages that attempt `number` reached, in order; by default the last attempt."""
    submitted_at = parse_time(view["created_at"])
    attempts = records(Attempt, view["attempts"] or [])
    selected = [attempt for attempt in attempts if number in (None, attempt.number)]
    reached = [("submitted", "the server received the job", submitted_at)]
    for field, (name, meaning) in _STAGES.items() if selected else ():
        at: datetime | None = getattr(selected[-1], field)
        if at is not None:
            reached.append((name, meaning, at))
    reached.sort(key=lambda stage: stage[2])
    return [Stage(*stage, (stage[2] - submitted_at).total_seconds()) for stage in reached]
