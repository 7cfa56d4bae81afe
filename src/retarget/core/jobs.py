"""Jobs: what a user asks for, and what the system tells about it."""

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from retarget.core.environments import Environment
from retarget.core.errors import Invalid
from retarget.core.limits import LONGEST_EXPERIMENT_NAME, check_shown
from retarget.core.names import PATTERN, check_name
from retarget.core.snapshots import is_digest
from retarget.core.states import Event, JobState, advance
from retarget.core.targets import Share
from retarget.core.units import parse_duration, parse_memory
from retarget.core.values import Value

# what the runner sets, whatever a user has set
_OURS = {"AZUREML_RUN_ID"} | {
    f"RETARGET_{name}" for name in ("JOB", "JOB_ID", "LAUNCH", "TRACK", "CONTAINER")
}
_LONGEST = 131_000  # bytes: Linux gives one argument 128 KiB
_MOST = 600_000  # bytes of all arguments, and of all variables: 2 MiB hold both and the machine's


def _name(value: str) -> str:
    return _told(check_name, value)


def _experiment(value: str) -> str:
    if not value.strip() or len(value) > LONGEST_EXPERIMENT_NAME:
        raise ValueError(
            f"an experiment has a name of 1 to {LONGEST_EXPERIMENT_NAME} characters, "
            "not all of them blanks"
        )
    return _told(check_shown, value)


def _told(rule: Any, value: Any) -> Any:
    # pydantic gathers ValueErrors and names the field itself
    try:
        return rule(value)
    except Invalid as error:
        raise ValueError(str(error).partition(": ")[2] or str(error)) from None


def _for_a_process(value: str) -> str:
    if "\0" in value:
        raise ValueError("a NUL character cannot be given to a process")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ValueError("this cannot be written as UTF-8") from None
    if size > _LONGEST:
        raise ValueError(f"{size:,} bytes are too long; a process takes at most {_LONGEST:,} bytes")
    return value


def _variable(value: str) -> str:
    if not value or "=" in value:
        raise ValueError(f"{value!r} is not the name of an environment variable")
    if value in _OURS:
        raise ValueError(f"{value} tells a script about its own job; choose another name")
    return _for_a_process(value)


def _all_together(value: dict[str, str]) -> dict[str, str]:
    size = sum(len(name) + len(text.encode()) + 10 for name, text in value.items())
    if size > _MOST:
        raise ValueError(f"{size:,} bytes of variables are too many; at most {_MOST:,} fit")
    return value


def _not_too_many(value: tuple[str, ...]) -> tuple[str, ...]:
    size = sum(len(word.encode()) + 10 for word in value)
    if size > _MOST:
        raise ValueError(f"{size:,} bytes of arguments are too many; at most {_MOST:,} fit")
    return value


def _digest(value: str) -> str:
    if not is_digest(value):
        raise ValueError("a snapshot is named by 64 hex digits")
    return value


def shown(schema: dict[str, Any]) -> Any:
    """Say in /openapi.json what a rule of ours allows."""
    return Field(json_schema_extra=schema)


Name = Annotated[str, AfterValidator(_name), shown({"pattern": f"^{PATTERN}$"})]
Memory = Annotated[
    int,
    BeforeValidator(lambda value: _told(parse_memory, value)),
    WithJsonSchema({"type": ["integer", "string"], "examples": [2**31, "512m", "1.5GiB"]}),
]
Seconds = Annotated[
    float,
    BeforeValidator(lambda value: _told(parse_duration, value)),
    WithJsonSchema({"type": ["number", "string"], "examples": [90, "15m", "1h30m"]}),
]
Argument = Annotated[str, AfterValidator(_for_a_process)]
Arguments = Annotated[
    tuple[Argument, ...], Field(min_length=1, max_length=10_000), AfterValidator(_not_too_many)
]
Variable = Annotated[str, AfterValidator(_variable)]
Variables = Annotated[dict[Variable, Argument], AfterValidator(_all_together)]
Digest = Annotated[str, AfterValidator(_digest), shown({"pattern": "^[0-9a-f]{64}$"})]
Count = Annotated[int, Field(strict=True)]  # `true` is no number, and "2" is a text
Amount = Annotated[float, Field(strict=True, allow_inf_nan=False)]


class JobSpec(Value):
    """What the user asked for. A rerun takes it again, word for word."""

    command: Arguments
    name: Name | None = None
    experiment: Annotated[str, AfterValidator(_experiment)] = "Default"
    target: Name = "local"
    snapshot: Digest | None = None
    environment: Environment = Environment()
    env: Variables = {}
    cpus: Annotated[Amount, Field(gt=0)] = 1
    memory: Memory | None = None
    gpus: Annotated[Count, Field(ge=0)] = 0
    nodes: Annotated[Count, Field(ge=1)] = 1
    processes_per_node: Annotated[Count, Field(ge=1, le=1024)] = 1
    retries: Annotated[Count, Field(ge=0, le=100)] = 0
    timeout: Seconds | None = None
    grace: Annotated[Amount, Field(ge=0, le=3600)] = 10.0
    priority: Annotated[Count, Field(ge=-1000, le=1000)] = 0


class Attempt(Value):
    """One try at a job."""

    key: str
    job_id: str
    number: int
    target: str
    handle: str | None = None
    shares: tuple[Share, ...] = ()
    confirmed: int = 0  # how many of the runner's events have been taken in
    heard: float | None = None  # when its runner last spoke
    resumes: int = 0  # how often a dead runner was started again
    # seconds without the server after which its runner ends it: then it may be tried elsewhere
    fence: float | None = None
    exit_code: int | None = None
    reason: str = ""
    created: float = 0.0
    # when its driver had it, by the server's clock
    launched: float | None = None
    # by its runner's clock: when the runner began, when all was ready, when the script was there
    preparing: float | None = None
    starting: float | None = None
    started: float | None = None
    # when the first of its output came, by the server's clock
    output: float | None = None
    exited: float | None = None  # the script, by its runner's clock
    ended: float | None = None


class Member(Value):
    """One node of an attempt that has several, as its runner tells of it."""

    node: int
    confirmed: int = 0  # how many of its events have been taken in
    heard: float  # when it last spoke
    preparing: bool = False
    started: bool = False
    exited: float | None = None  # when that was heard, by the server's clock
    finished: bool = False
    outcome: str = ""
    reason: str = ""
    exit_code: int | None = None


class Job(Value):
    """A job as the store has it."""

    id: str
    name: str
    state: JobState
    reason: str
    version: int
    spec: JobSpec
    attempt: int = 0  # the number of the present or last one; 0 before the first
    exit_code: int | None = None
    created: float
    changed: float
    started: float | None = None
    ended: float | None = None

    @property
    def retries_left(self) -> int:
        return max(0, self.spec.retries + 1 - self.attempt)

    def after(
        self,
        event: Event,
        *,
        reason: str,
        now: float,
        exit_code: int | None = None,
        started: float | None = None,
    ) -> "Job":
        """Return the job as this event leaves it, or raise Conflict.

        A retried job starts clean: the exit code and the start of the last try stay with that try.
        """
        state = advance(self.state, event)
        change: dict[str, Any] = {"state": state, "reason": reason, "changed": now}
        if state is JobState.RUNNING:
            change["started"] = started or now
        if exit_code is not None:
            change["exit_code"] = exit_code
        if state.is_final:
            change["ended"] = now
        if event is Event.RETRIED:
            change |= {"started": None, "exit_code": None}
        return self.model_copy(update=change | {"version": self.version + 1})


class Move(Value):
    """One row of a job's history."""

    version: int
    event: str
    state: JobState
    reason: str
    at: float


class Output(Value):
    """A file the job left."""

    path: str
    size: int
    digest: str
