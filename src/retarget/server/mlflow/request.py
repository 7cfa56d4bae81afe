"""A request to MLflow's API, with its fields read as MLflow's own server reads them.

The messages are those of MLflow, which its users know.
"""

import math
from dataclasses import dataclass
from typing import Any

from retarget.control.context import Context
from retarget.core.errors import Forbidden, Invalid
from retarget.core.limits import invalid
from retarget.core.tracking import ACTIVE, Experiment

_SEE_DOCS = "See the API docs for more information about request parameters."
_MAX_INT64 = (1 << 63) - 1


@dataclass(frozen=True)
class Principal:
    """Who makes a request: a user, or a job with the token of its attempt."""

    job_id: str | None = None
    attempt: str | None = None
    has_secrets: bool = False

    def check_writes(self, job_id: str | None, resource: str) -> None:
        """Raise Forbidden if this is a job, and another job (`job_id`) created the resource."""
        if self.job_id is not None and self.job_id != job_id:
            raise Forbidden(
                f"the token of a job cannot change {resource}: it was not created by this job"
            )

    def check_is_user(self, action: str) -> None:
        """Raise Forbidden if this is a job."""
        if self.job_id is not None:
            raise Forbidden(f"the token of a job cannot {action}")


@dataclass(frozen=True)
class MlflowRequest:
    """A request of an MLflow client."""

    context: Context
    principal: Principal
    body: dict[str, Any]  # the fields of the JSON body or of the query
    path_params: dict[str, str]
    base_url: str  # the address of this server as the client uses it

    @property
    def now(self) -> int:
        """The time in milliseconds."""
        return int(self.context.clock() * 1000)

    def remember_experiment(self, experiment: Experiment) -> None:
        """Remember that the script of a job requested this experiment by name."""
        if self.principal.attempt is not None:
            choices = self.context.store.experiment_choices
            choices.remember(self.principal.attempt, int(experiment.id))

    def forget_experiment(self) -> None:
        """Forget the experiment that the script of a job requested: it searches now."""
        if self.principal.attempt is not None:
            self.context.store.experiment_choices.forget(self.principal.attempt)

    def move_to_chosen_experiment(self, run_id: str) -> None:
        """Move a job to the experiment that its script chose.

        A script that calls `mlflow.set_experiment` and then logs requests that experiment and
        then its own run. The client fails if the run belongs to another experiment.
        """
        if self.principal.attempt is None or self.principal.job_id != run_id:
            return
        chosen_id = self.context.store.experiment_choices.forget(self.principal.attempt)
        if chosen_id is None:
            return
        job, chosen = (
            self.context.store.jobs.read(run_id),
            self.context.store.experiments.get(str(chosen_id)),
        )
        if chosen.name != job.spec.experiment and chosen.stage == ACTIVE:
            self.context.store.jobs.join(job, chosen)

    def string(self, name: str, default: str = "") -> str:
        value = self.body.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise wrong_type(name, value)
        return value

    def required_string(self, name: str) -> str:
        """Return a string that must not be missing or empty."""
        value = self.body.get(name)
        if value is None or value == "":
            raise missing(name)
        return self.string(name)

    def integer(self, name: str, default: int | None = None) -> int | None:
        """Return an integer, which may be sent as a string."""
        value = self.body.get(name)
        return default if value is None else read_integer(value, name)

    def flag(self, name: str) -> bool:
        value = self.body.get(name)
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if value is None or isinstance(value, bool):
            return bool(value)
        raise wrong_type(name, value)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return a list of objects, empty if the field is missing."""
        return read_rows(self.body.get(name), name)

    def strings(self, name: str) -> list[str]:
        """Return a list of strings. A query with one value holds a plain string."""
        value: Any = self.body.get(name)
        if value is None:
            return []
        if isinstance(value, str):
            return [value]
        if not isinstance(value, list) or not all(isinstance(row, str) for row in value):  # pyright: ignore[reportUnknownVariableType]
            raise wrong_type(name, value)
        return value  # pyright: ignore[reportUnknownVariableType]

    def pairs(self, name: str) -> dict[str, str]:
        """Return a list of {key, value} as a dictionary. The last of equal keys wins."""
        return read_pairs(self.body.get(name), name)


def read_rows(value: Any, name: str) -> list[dict[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):  # pyright: ignore[reportUnknownVariableType]
        raise wrong_type(name, value)
    return value  # pyright: ignore[reportUnknownVariableType]


def read_pairs(rows: Any, name: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for row in read_rows(rows, name):
        key, value = row.get("key"), row.get("value", "")
        if not isinstance(key, str) or not isinstance(value, str):
            raise wrong_type(name, rows)
        pairs[key] = value
    return pairs


def missing(name: str) -> Invalid:
    return Invalid(f"Missing value for required parameter '{name}'. {_SEE_DOCS}", field=name)


def wrong_type(name: str, value: Any) -> Invalid:
    return invalid(name, value, f" Hint: Value was of type '{type(value).__name__}'. {_SEE_DOCS}")


def read_integer(value: Any, name: str) -> int:
    """Read a 64-bit integer, sent as a number or as a string."""
    try:
        number = int(value)
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise wrong_type(name, value) from None
    if not -_MAX_INT64 - 1 <= number <= _MAX_INT64:
        raise invalid(name, value, "it does not fit into 64 bits")
    return number


def read_double(value: Any, name: str) -> float:
    """Read a number. Protobuf's JSON has the strings "NaN" and "Infinity" for what JSON lacks."""
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
