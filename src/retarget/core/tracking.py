"""Experiments and runs: metrics, params, tags, inputs. Times are in milliseconds."""

from enum import StrEnum
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from retarget.core.states import JobState
from retarget.core.values import Value

DEFAULT_EXPERIMENT = "Default"
ARTIFACTS = "mlflow-artifacts:/"  # the scheme of addresses in the server's own artifact tree
ACTIVE, DELETED = "active", "deleted"  # the two stages of an experiment, a run, a logged model
MLFLOW_PREFIX = "mlflow."  # of the tags that MLflow sets itself
NAME_TAG, NOTE_TAG = "mlflow.runName", "mlflow.note.content"  # of a run: its name, its description


class RunStatus(StrEnum):
    """The status of a run, as its client reports it. It is not the state of the job."""

    RUNNING = "RUNNING"
    SCHEDULED = "SCHEDULED"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    KILLED = "KILLED"


# The status of a run that its client did not end, once its job has ended.
STATUS_AT_JOB_END = {
    JobState.SUCCEEDED: RunStatus.FINISHED,
    JobState.FAILED: RunStatus.FAILED,
    JobState.CANCELED: RunStatus.KILLED,
}


class Metric(NamedTuple):
    """One point of a metric. The last three fields are set if it is about a logged model."""

    key: str
    value: float
    logged_at: int
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
    """A logged model that is an input or an output of a run."""

    model_id: str
    step: int = 0


class Experiment(Value):
    id: str
    name: str
    location: str  # where the artifacts of its runs go
    stage: str = ACTIVE
    created_at: int
    changed_at: int
    created_by_job: str | None = None  # the id of the job whose script created it
    tags: dict[str, str] = {}


class Run(Value):
    id: str
    experiment_id: str
    job_id: str | None = None
    name: str
    user: str
    status: RunStatus
    stage: str = ACTIVE
    started_at: int | None
    ended_at: int | None = None
    location: str
    metrics: tuple[Any, ...] = ()  # Metric: the latest point of each
    params: dict[str, str] = {}
    tags: dict[str, str] = {}
    datasets: tuple[DatasetInput, ...] = ()
    models_in: tuple[ModelLink, ...] = ()
    models_out: tuple[ModelLink, ...] = ()


def address_below(location: str, path: str) -> str:
    """Append a path to an address. A query stays at the end."""
    root, mark, query = location.partition("?")
    return f"{root.rstrip('/')}/{path}{mark}{query}"


def artifact_path(location: str) -> str | None:
    """Return the path of an address in the server's own tree, or None if it is elsewhere."""
    try:
        address = urlsplit(location)
    except ValueError:
        return None
    if address.scheme != ARTIFACTS.partition(":")[0] or "#" in location:
        return None
    return "/".join(name for name in unquote(address.path).split("/") if name)
