"""What the API answers with: typed, so that /openapi.json says everything."""

from typing import Any

from pydantic import BaseModel

from retarget.core.environments import Environment
from retarget.core.jobs import Attempt, Job
from retarget.core.states import JobState
from retarget.core.targets import Facts


class Problem(BaseModel):
    """Every answer that is not a success."""

    error: str
    message: str
    field: str | None = None


class AttemptView(BaseModel):
    number: int
    target: str
    nodes: list[str]
    exit_code: int | None
    reason: str
    created: float
    launched: float | None
    preparing: float | None
    starting: float | None
    started: float | None
    output: float | None
    exited: float | None
    ended: float | None
    resumes: int


class JobView(BaseModel):
    id: str
    name: str
    state: JobState
    reason: str
    version: int
    target: str
    experiment: str
    command: list[str]
    exit_code: int | None
    attempt: int
    created: float
    changed: float
    started: float | None
    ended: float | None
    priority: int
    cpus: float
    memory: int | None
    gpus: int
    nodes: int
    processes_per_node: int
    retries: int
    timeout: float | None
    snapshot: str | None
    environment: Environment
    env: dict[str, str]
    attempts: list[AttemptView] | None = None


class Plan(BaseModel):
    target: str
    kind: str
    launch: dict[str, Any]
    native: dict[str, Any]


class Why(BaseModel):
    state: JobState
    reason: str
    behind: list[str]
    diagnosis: str | None


class StreamView(BaseModel):
    stream: str
    size: int


class Used(BaseModel):
    cpus: float
    memory: int
    gpus: int


class TargetView(BaseModel):
    name: str
    kind: str
    config: dict[str, Any]  # a secret in it is shown as ********
    tags: dict[str, str]
    facts: Facts | None
    checked: float | None
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
    built: float


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
    created: float
    built: list[Built]


class ServerView(BaseModel):
    version: str
    pid: int
    url: str
    home: str
    started: float
    jobs: dict[str, int]


def view_of(job: Job, attempts: list[Attempt] | None = None) -> JobView:
    spec = job.spec.model_dump(exclude={"name", "command", "environment", "grace"})
    return JobView(
        **job.model_dump(exclude={"spec"}),
        **spec,
        command=list(job.spec.command),
        environment=job.spec.environment,
        attempts=None if attempts is None else [attempt_view(each) for each in attempts],
    )


def attempt_view(attempt: Attempt) -> AttemptView:
    names = attempt.model_dump(include=set(AttemptView.model_fields))
    return AttemptView(**names, nodes=[share.node for share in attempt.shares])
