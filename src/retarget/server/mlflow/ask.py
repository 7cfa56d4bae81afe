"""What an MLflow client asks: its fields, read as MLflow's own server would read them.

The messages are MLflow's: its clients and their users know them.
"""

import math
from dataclasses import dataclass
from typing import Any

from retarget.control.parts import Parts
from retarget.core.errors import Forbidden, Invalid
from retarget.core.limits import invalid
from retarget.core.tracking import ACTIVE, Experiment, Run

_SEE = "See the API docs for more information about request parameters."
_LARGEST = (1 << 63) - 1


@dataclass(frozen=True)
class Caller:
    """Who asks: the owner of the server, or a job through its attempt's token."""

    job_id: str | None = None
    attempt: str | None = None

    def check_writes(self, job_id: str | None, what: str) -> None:
        """Raise Forbidden if `what`, which the job `job_id` made, is not the caller's."""
        if self.job_id is not None and self.job_id != job_id:
            raise Forbidden(f"a job's token does not open {what}: another made it")

    def check_owner(self, what: str) -> None:
        """Raise Forbidden for a job."""
        if self.job_id is not None:
            raise Forbidden(f"a job's token may not {what}")


class Choices:
    """Which experiment each attempt asked for last, while it has asked for nothing else since."""

    def __init__(self) -> None:
        self._last: dict[str, Experiment] = {}

    def note(self, attempt: str, experiment: Experiment) -> None:
        self._last[attempt] = experiment

    def take(self, attempt: str) -> Experiment | None:
        return self._last.pop(attempt, None)


@dataclass(frozen=True)
class Ask:
    parts: Parts
    caller: Caller
    body: dict[str, Any]  # what came as JSON or in the query; values as they came
    path: dict[str, str]  # the parts of the address
    base: str  # where the client finds this server
    choices: Choices

    @property
    def now(self) -> int:
        """Return the time in milliseconds."""
        return int(self.parts.now() * 1000)

    def chose(self, experiment: Experiment) -> None:
        """Note that a job's script asked for this experiment by its name."""
        if self.caller.attempt is not None:
            self.choices.note(self.caller.attempt, experiment)

    def looks_around(self) -> None:
        """Note that a job's script searches: the experiment it asked for was not to log to."""
        if self.caller.attempt is not None:
            self.choices.take(self.caller.attempt)

    def takes_up(self, run_id: str) -> None:
        """Have a job follow its script into the experiment it chose.

        A script that calls `mlflow.set_experiment` and then logs asks for that experiment and,
        next, for its own run; the client gives up if the two do not belong together.
        """
        if self.caller.attempt is None or self.caller.job_id != run_id:
            return
        chosen = self.choices.take(self.caller.attempt)
        job = self.parts.jobs.read(run_id)
        if chosen is not None and chosen.name != job.spec.experiment and chosen.stage == ACTIVE:
            self.parts.jobs.join(job, chosen)
            self.parts.notify(job.id)

    def text(self, name: str, default: str = "") -> str:
        value = self.body.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise wrong_type(name, value)
        return value

    def need(self, name: str) -> str:
        """Return a text that must be there."""
        value = self.body.get(name)
        if value is None or value == "":
            raise missing(name)
        return self.text(name)

    def whole(self, name: str, default: int | None = None) -> int | None:
        """Return a whole number, which may have come as text."""
        value = self.body.get(name)
        return default if value is None else whole(value, name)

    def flag(self, name: str) -> bool:
        value = self.body.get(name)
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if value is None or isinstance(value, bool):
            return bool(value)
        raise wrong_type(name, value)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return a list of objects; none if it was left out."""
        return read_rows(self.body.get(name), name)

    def texts(self, name: str) -> list[str]:
        """Return a list of texts; a query gives one of them alone as a text."""
        value: Any = self.body.get(name)
        if value is None:
            return []
        if isinstance(value, str):
            return [value]
        if not isinstance(value, list) or not all(isinstance(row, str) for row in value):  # pyright: ignore[reportUnknownVariableType]
            raise wrong_type(name, value)
        return value  # pyright: ignore[reportUnknownVariableType]

    def pairs(self, name: str) -> dict[str, str]:
        """Return a list of {key, value} as a dictionary; the last of equal keys counts."""
        return read_pairs(self.body.get(name), name)

    def writable(self, run: Run) -> Run:
        self.caller.check_writes(run.job_id, f"run {run.id!r}")
        return run


def read_rows(value: Any, name: str) -> list[dict[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):  # pyright: ignore[reportUnknownVariableType]
        raise wrong_type(name, value)
    return value  # pyright: ignore[reportUnknownVariableType]


def read_pairs(given: Any, name: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for row in read_rows(given, name):
        key, value = row.get("key"), row.get("value", "")
        if not isinstance(key, str) or not isinstance(value, str):
            raise wrong_type(name, given)
        found[key] = value
    return found


def missing(name: str) -> Invalid:
    return Invalid(f"Missing value for required parameter '{name}'. {_SEE}", field=name)


def wrong_type(name: str, value: Any) -> Invalid:
    return invalid(name, value, f" Hint: Value was of type '{type(value).__name__}'. {_SEE}")


def whole(value: Any, name: str) -> int:
    """Read a 64-bit number that JSON may carry as a number or as text."""
    try:
        number = int(value)
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise wrong_type(name, value) from None
    if not -_LARGEST - 1 <= number <= _LARGEST:
        raise invalid(name, value, "it does not fit into 64 bits")
    return number


def double(value: Any, name: str) -> float:
    """Read a number; protobuf's JSON writes what JSON cannot as "NaN" and "Infinity"."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise wrong_type(name, value)
    try:
        return float(value)
    except (ValueError, OverflowError):
        raise wrong_type(name, value) from None


def show_double(value: float) -> float | str:
    """Write a number as protobuf's JSON does."""
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def show_pairs(values: dict[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in values.items()]
