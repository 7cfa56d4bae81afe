"""What a run tells about itself: metrics, params, tags, inputs. Times are in milliseconds."""

from enum import StrEnum
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from retarget.core.states import JobState
from retarget.core.values import Value

DEFAULT_EXPERIMENT = "Default"
ARTIFACTS = "mlflow-artifacts:/"  # how addresses in our own artifact tree begin
ACTIVE, DELETED = "active", "deleted"  # the two stages of an experiment, a run, a logged model


class RunStatus(StrEnum):
    """Where a run is, as its client tells. The state of its job is another thing."""

    RUNNING = "RUNNING"
    SCHEDULED = "SCHEDULED"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    KILLED = "KILLED"


# What becomes of a run that its client has left open when its job ends.
LEFT_OPEN = {
    JobState.SUCCEEDED: RunStatus.FINISHED,
    JobState.FAILED: RunStatus.FAILED,
    JobState.CANCELED: RunStatus.KILLED,
}


class Metric(NamedTuple):
    """One point of a metric. The three last are set when it tells about a logged model."""

    key: str
    value: float
    timestamp: int
    step: int = 0
    model_id: str | None = None
    dataset_name: str | None = None
    dataset_digest: str | None = None


class Dataset(Value):
    name: str
    digest: str
    source_type: str
    source: str
    schema_: str | None = None
    profile: str | None = None


class DatasetInput(Value):
    dataset: Dataset
    tags: dict[str, str] = {}


class ModelLink(Value):
    """A logged model that a run was given, or made."""

    model_id: str
    step: int = 0


class Experiment(Value):
    id: str
    name: str
    location: str  # where the artifacts of its runs go
    stage: str = ACTIVE
    created: int
    changed: int
    tags: dict[str, str] = {}


class Run(Value):
    id: str
    experiment_id: str
    job_id: str | None = None
    name: str
    user: str
    status: RunStatus
    stage: str = ACTIVE
    started: int | None
    ended: int | None = None
    location: str
    metrics: tuple[Any, ...] = ()  # Metric: the latest point of each
    params: dict[str, str] = {}
    tags: dict[str, str] = {}
    datasets: tuple[DatasetInput, ...] = ()
    models_in: tuple[ModelLink, ...] = ()
    models_out: tuple[ModelLink, ...] = ()


def address_below(location: str, path: str) -> str:
    """Return the address of what is below another one; a query stays at its end."""
    root, mark, query = location.partition("?")
    return f"{root.rstrip('/')}/{path}{mark}{query}"


def artifact_path(location: str) -> str | None:
    """Return the path in our own tree that an address means, or None if it is elsewhere."""
    try:
        address = urlsplit(location)
    except ValueError:
        return None
    if address.scheme != ARTIFACTS.partition(":")[0] or "#" in location:
        return None
    return "/".join(name for name in unquote(address.path).split("/") if name)
