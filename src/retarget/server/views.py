"""The response models of the HTTP API, as documented in /openapi.json."""

import math
import os
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, Field, PlainSerializer, WithJsonSchema

from retarget.core.environments import Environment
from retarget.core.jobs import Attempt, ExcludedPath, Job, Transition, requested_labels
from retarget.core.kept import Kept
from retarget.core.labels import Labels
from retarget.core.locks import Lock
from retarget.core.own_packages import OwnPackage
from retarget.core.states import JobState
from retarget.core.targets import Gpu, NodeState, NodeType

_EARLIEST = datetime.min.replace(tzinfo=UTC).timestamp()
_LABELS = frozenset(Labels.model_fields)
_LATEST = datetime.max.replace(tzinfo=UTC, microsecond=0).timestamp()


def _to_iso(seconds: float) -> str:
    """Return a time as ISO 8601 in UTC. A time outside the years 1 to 9999 is clamped to them."""
    moment = datetime.fromtimestamp(min(max(seconds, _EARLIEST), _LATEST), UTC)
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


# Seconds since 1970 in Python, ISO 8601 with microseconds in JSON: 2025-11-24T09:30:00.125000Z.
Timestamp = Annotated[
    float,
    PlainSerializer(_to_iso, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]


def to_unicode(value: Any) -> Any:
    """Return a JSON value in which bytes of paths that are not UTF-8 are written as \\xNN."""
    if isinstance(value, str):
        return os.fsencode(value).decode("utf-8", "backslashreplace") if _is_raw(value) else value
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {key: to_unicode(item) for key, item in items}
    if isinstance(value, list):
        return [to_unicode(item) for item in cast("list[Any]", value)]
    return value


def _is_raw(text: str) -> bool:
    return any("\udc80" <= char <= "\udcff" for char in text)


def _to_json_number(value: float) -> float | str:
    """Return a number as JSON can represent it: NaN and the infinities become strings."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


Number = Annotated[
    float,
    PlainSerializer(_to_json_number, return_type=float | Literal["NaN", "Infinity", "-Infinity"]),
    Field(description="A number; NaN, Infinity and -Infinity are strings"),
]


class Problem(BaseModel):
    """The body of every error response."""

    error: str
    message: str
    field: str | None = None


class AttemptView(BaseModel):
    number: int
    target: str
    nodes: list[str]
    exit_code: int | None
    reason: str
    created_at: Timestamp
    launched_at: Timestamp | None
    preparing_at: Timestamp | None
    starting_at: Timestamp | None
    started_at: Timestamp | None
    first_output_at: Timestamp | None
    exited_at: Timestamp | None
    ended_at: Timestamp | None
    resumes: int


class JobView(BaseModel):
    id: str
    name: str
    state: JobState
    reason: str
    version: int
    target: str
    experiment: str
    display_name: str  # the name of the job if it has no other
    description: str
    tags: dict[str, str]  # of its run, without those that begin with `mlflow.`
    properties: dict[str, str]
    command: list[str]
    exit_code: int | None
    attempt: int  # the number of the current or last one
    failures: int  # attempts that failed; only these cost a retry
    preemptions: int  # attempts whose node the target took away
    created_at: Timestamp
    changed_at: Timestamp
    started_at: Timestamp | None
    ended_at: Timestamp | None
    priority: int
    cpus: float
    memory: int | None
    gpus: int
    nodes: int
    processes_per_node: int
    retries: int
    timeout: float | None
    allow_pip: bool
    split_stderr: bool
    own_packages: tuple[OwnPackage, ...]
    required_packages: list[str] = []
    snapshot: str | None
    environment: Environment
    variables: dict[str, str]
    excluded: list[ExcludedPath]
    project_settings: list[str] = []  # what came from the project's retarget.toml
    secrets: list[str]  # their names
    arguments_index: int | None = None  # index in `command` of the script's first argument
    notices: list[str]  # messages of the server about the submit
    keep: list[str] = []  # what to keep of the files outside of outputs/
    hint: str | None
    attempts: list[AttemptView] | None = None
    logged: dict[str, Number | str] | None = Field(
        default=None, description="In a listing with `logged`: the latest of these values"
    )
    lock: Lock | None = None  # what the last attempt ran with; only with `attempts`
    kept: Kept | None = None  # what it wrote outside of outputs/; only with `attempts`


class TransitionView(BaseModel):
    version: int
    event: str
    state: JobState
    reason: str
    at: Timestamp


class Plan(BaseModel):
    target: str
    kind: str
    launch: dict[str, Any]
    native: dict[str, Any]
    notices: list[str]


class Why(BaseModel):
    state: JobState
    reason: str
    behind: list[str]
    diagnosis: str | None
    hint: str | None


class LogTime(BaseModel):
    size: int
    at: Timestamp


class StreamView(BaseModel):
    stream: str
    size: int


class Used(BaseModel):
    cpus: float
    memory: int
    gpus: int


class NodeView(BaseModel):
    name: str
    type: str  # the name of its node type, if the target has such
    state: NodeState
    changed_at: Timestamp | None  # when it came into this state
    unavailable: str  # why it takes no work now; empty if it does
    cpus: float
    memory: int
    gpus: list[Gpu]


class InventoryView(BaseModel):
    nodes: list[NodeView]
    node_types: list[NodeType]  # what the target can have nodes of
    own_queue: bool  # whether the target decides itself when a job starts
    details: dict[str, str]
    lost_after_seconds: float | None


class TargetView(BaseModel):
    name: str
    kind: str
    config: dict[str, Any]  # secrets are shown as ********
    tags: dict[str, str]
    inventory: InventoryView | None
    checked_at: Timestamp | None
    reason: str
    jobs: dict[str, int]
    used: Used


class KindView(BaseModel):
    kind: str
    description: str
    config_schema: dict[str, Any] | None
    missing: str | None


class Built(BaseModel):
    target: str
    how: str
    size: int
    seconds: float
    built_at: Timestamp
    failed: str | None = None  # why the build failed; the next job tries again


class EnvironmentView(BaseModel):
    name: str | None
    digest: str
    kind: str
    python: str | None
    image: str | None
    dockerfile: str | None
    context: str | None
    channels: list[str]
    conda: list[str]
    pip: list[str]
    created_at: Timestamp
    built: list[Built]
    locks: list[Lock] = []  # one per platform, Python and source
    version: int | None = None  # under its name
    resolution: int = 0  # how often it was resolved again
    conda_from_pypi: bool = False


class LivingServer(BaseModel):
    """A server of the same database."""

    id: str
    host: str
    pid: int
    url: str
    version: str
    started_at: Timestamp
    targets: list[str]  # that it looks after


class ServerView(BaseModel):
    id: str
    version: str
    pid: int
    url: str
    home: str
    started_at: Timestamp
    jobs: dict[str, int]
    servers: list[LivingServer]  # all that use this database, this one included


def job_view(
    job: Job,
    labels: Labels | None = None,
    hint: str | None = None,
    attempts: list[Attempt] | None = None,
    logged: dict[str, float | str] | None = None,
) -> JobView:
    """Return the response about a job. Without `labels`, it shows those that were requested."""
    spec = job.spec.model_dump(
        exclude={"name", "command", "environment", "grace_seconds", "surroundings", *_LABELS}
    )
    return JobView(
        **job.model_dump(exclude={"spec"}),
        **spec,
        **(labels or requested_labels(job)).model_dump(),
        command=list(job.spec.command),
        environment=job.spec.environment,
        hint=hint,
        attempts=None if attempts is None else [attempt_view(attempt) for attempt in attempts],
        logged=logged,
    )


def attempt_view(attempt: Attempt) -> AttemptView:
    fields = attempt.model_dump(include=set(AttemptView.model_fields))
    return AttemptView(**fields, nodes=[allocation.node for allocation in attempt.allocations])


def transition_view(transition: Transition) -> TransitionView:
    return TransitionView(**transition.model_dump())
