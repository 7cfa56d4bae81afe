"""Jobs and attempts: what a user submits, and its state."""

from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from retarget.core.environments import Environment
from retarget.core.errors import Invalid
from retarget.core.exclusions import MAX_EXCLUSIONS, MAX_SURROUNDINGS
from retarget.core.kept import check_keep
from retarget.core.labels import Description, DisplayName, Labels, Properties, Tags
from retarget.core.limits import MAX_EXPERIMENT_NAME_LENGTH, check_printable
from retarget.core.names import PATTERN, check_name
from retarget.core.own_packages import OwnPackage, PackageName
from retarget.core.snapshots import is_digest
from retarget.core.states import LIVE, Event, JobState, advance
from retarget.core.targets import Allocation
from retarget.core.units import parse_duration, parse_memory
from retarget.core.values import Value
from retarget.core.variables import RESERVED_VARIABLES

_MAX_ARGUMENT_BYTES = 131_000  # Linux limits one argument to 128 KiB
# of all arguments, and of all variables: Linux allows 2 MiB for both and the host's variables
_MAX_TOTAL_BYTES = 600_000


def _check_job_name(value: str) -> str:
    return _as_value_error(check_name, value)


def check_experiment(value: str) -> str:
    if not value.strip() or len(value) > MAX_EXPERIMENT_NAME_LENGTH:
        raise ValueError(
            f"the name of an experiment must have 1 to {MAX_EXPERIMENT_NAME_LENGTH} characters, "
            "at least one of them not a space"
        )
    return _as_value_error(check_printable, value)


def _as_value_error(rule: Any, value: Any) -> Any:
    # pydantic collects ValueErrors and adds the name of the field
    try:
        return rule(value)
    except Invalid as error:
        raise ValueError(str(error).partition(": ")[2] or str(error)) from None


def _check_argument(value: str) -> str:
    if "\0" in value:
        raise ValueError("must not contain a NUL character")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ValueError("cannot be encoded as UTF-8") from None
    if size > _MAX_ARGUMENT_BYTES:
        raise ValueError(f"too long: {size:,} bytes, at most {_MAX_ARGUMENT_BYTES:,} are allowed")
    return value


def _check_variable_name(value: str) -> str:
    if not value or "=" in value:
        raise ValueError(f"{value!r} is not a valid name for an environment variable")
    if value in RESERVED_VARIABLES:
        raise ValueError(f"{value} is set by Retarget; choose another name")
    return _check_argument(value)


def _check_variables_size(value: dict[str, str]) -> dict[str, str]:
    size = sum(len(name) + len(content.encode()) + 10 for name, content in value.items())
    if size > _MAX_TOTAL_BYTES:
        raise ValueError(
            f"the variables have {size:,} bytes, at most {_MAX_TOTAL_BYTES:,} are allowed"
        )
    return value


def _check_arguments_size(value: tuple[str, ...]) -> tuple[str, ...]:
    size = sum(len(argument.encode()) + 10 for argument in value)
    if size > _MAX_TOTAL_BYTES:
        raise ValueError(
            f"the arguments have {size:,} bytes, at most {_MAX_TOTAL_BYTES:,} are allowed"
        )
    return value


def _check_digest(value: str) -> str:
    if not is_digest(value):
        raise ValueError("a snapshot digest must have 64 hex digits")
    return value


def with_schema(schema: dict[str, Any]) -> Any:
    """Add what a validator allows to the JSON schema, and so to /openapi.json."""
    return Field(json_schema_extra=schema)


Name = Annotated[str, AfterValidator(_check_job_name), with_schema({"pattern": f"^{PATTERN}$"})]
Memory = Annotated[
    int,
    BeforeValidator(lambda value: _as_value_error(parse_memory, value)),
    WithJsonSchema({"type": ["integer", "string"], "examples": [2**31, "512m", "1.5GiB"]}),
]
Seconds = Annotated[
    float,
    BeforeValidator(lambda value: _as_value_error(parse_duration, value)),
    WithJsonSchema({"type": ["number", "string"], "examples": [90, "15m", "1h30m"]}),
]
Argument = Annotated[str, AfterValidator(_check_argument)]
Arguments = Annotated[
    tuple[Argument, ...],
    Field(min_length=1, max_length=10_000),
    AfterValidator(_check_arguments_size),
]
Variable = Annotated[str, AfterValidator(_check_variable_name)]
Variables = Annotated[dict[Variable, Argument], AfterValidator(_check_variables_size)]
MAX_SECRETS = 1000
SecretNames = Annotated[
    tuple[Variable, ...],
    Field(max_length=MAX_SECRETS),
    AfterValidator(lambda names: tuple(dict.fromkeys(names))),
]
Keep = Annotated[tuple[Argument, ...], Field(max_length=100), AfterValidator(check_keep)]
Digest = Annotated[str, AfterValidator(_check_digest), with_schema({"pattern": "^[0-9a-f]{64}$"})]
Count = Annotated[int, Field(strict=True)]  # `true` and "2" are not integers
Amount = Annotated[float, Field(strict=True, allow_inf_nan=False)]


class ExcludedPath(Value):
    """A path that the client did not send, and the rule that excludes it: see core/exclusions."""

    path: Annotated[Argument, Field(min_length=1)]
    rule: Annotated[Argument, Field(min_length=1)]
    files: Annotated[Count, Field(ge=0, le=2**63)] = 0
    size: Annotated[Count, Field(ge=0, le=2**63)] = 0
    at_least: Annotated[bool, Field(strict=True)] = False


class Surroundings(Value):
    """What is next to the code folder on the client's machine. Only hints use it."""

    folder: Argument  # the name of the code folder
    # what its git repository has outside of it, relative to it: `../utils/`, `../../tools.py`
    paths: Annotated[tuple[Argument, ...], Field(max_length=MAX_SURROUNDINGS)] = ()


class JobSpec(Value):
    """A job as the user submitted it. A rerun submits it again: see core/reruns."""

    command: Arguments
    name: Name | None = None
    experiment: Annotated[str, AfterValidator(check_experiment)] = "Default"
    # as requested; MLflow clients and the script may change the tags of the run: core/labels.py
    display_name: DisplayName | None = None
    description: Description = ""
    tags: Tags = {}
    properties: Properties = {}  # a value that is set never changes
    target: Name = "local"
    snapshot: Digest | None = None
    environment: Environment = Environment()
    variables: Variables = {}
    cpus: Annotated[Amount, Field(gt=0)] = 1
    memory: Memory | None = None
    gpus: Annotated[Count, Field(ge=0)] = 0
    nodes: Annotated[Count, Field(ge=1)] = 1
    processes_per_node: Annotated[Count, Field(ge=1, le=1024)] = 1
    retries: Annotated[Count, Field(ge=0, le=100)] = 0
    timeout: Seconds | None = None
    grace_seconds: Annotated[Amount, Field(ge=0, le=3600)] = 10.0
    priority: Annotated[Count, Field(ge=-1000, le=1000)] = 0
    excluded: Annotated[tuple[ExcludedPath, ...], Field(max_length=MAX_EXCLUSIONS)] = ()
    surroundings: Surroundings | None = None
    # which values came from the project's retarget.toml, for people: "cpus=2", "variables.EPOCHS"
    project_settings: Annotated[tuple[Argument, ...], Field(max_length=1000)] = ()
    # names of variables: the server stores their values, of all jobs or of this one
    secrets: SecretNames = ()
    # index in `command` where the arguments of the script begin; None if it is not known
    arguments_index: Annotated[Count, Field(ge=1, le=10_000)] | None = None
    # what the client found in the files of the environment; the server adds it to the notices
    warnings: Annotated[tuple[Argument, ...], Field(max_length=100)] = ()
    # messages to the user at submit; the server writes them and ignores those of a request
    notices: Annotated[tuple[Argument, ...], Field(max_length=100)] = ()
    allow_pip: bool = False  # whether `pip` may change a user-managed interpreter
    # of the files outside of outputs/: `none`, `all` or patterns; all within the limit by default
    keep: Keep = ()
    own_packages: Annotated[tuple[OwnPackage, ...], Field(max_length=1000)] = ()
    # what it needs beside its environment: what is missing there is installed for the job alone
    required_packages: Annotated[tuple[PackageName, ...], Field(max_length=100)] = ()
    split_stderr: bool = False  # whether stdout and stderr of the script are two streams

    @model_validator(mode="after")
    def _check_split_stderr(self) -> Self:
        if self.split_stderr and self.nodes * self.processes_per_node > 1:
            raise ValueError(
                "split_stderr is for a single process; of several, each has its own stream"
            )
        return self

    @model_validator(mode="after")
    def _check_allow_pip(self) -> Self:
        if self.allow_pip and self.environment.kind != "user":
            raise ValueError(
                "allow_pip is for an interpreter of your own; jobs share a built environment or an "
                "image, so add the packages to its definition"
            )
        return self

    @model_validator(mode="after")
    def _check_own_packages(self) -> Self:
        built = [package.name for package in self.own_packages if package.build]
        if built and self.environment.kind != "system":
            raise ValueError(
                f"own_packages: {', '.join(built)} must be built, which only an environment with "
                "packages can do; for an image, install it in the Dockerfile"
            )
        return self


class Attempt(Value):
    """One try at a job."""

    key: str
    job_id: str
    number: int
    target: str
    handle: str | None = None
    allocations: tuple[Allocation, ...] = ()
    events_acked: int = 0  # how many of the runner's events the server has processed
    last_seen_at: float | None = None  # when its runner last reported
    resumes: int = 0  # how often a dead runner was restarted
    # seconds without contact to the server after which the runner stops it: then it may be retried
    lost_after_seconds: float | None = None
    exit_code: int | None = None
    reason: str = ""
    created_at: float = 0.0
    launched_at: float | None = None  # when the driver took it, by the server's clock
    # by the runner's clock: the runner began, everything was ready, the script ran
    preparing_at: float | None = None
    starting_at: float | None = None
    started_at: float | None = None
    first_output_at: float | None = None  # by the server's clock
    exited_at: float | None = None  # when the script exited, by the runner's clock
    ended_at: float | None = None
    lock: str | None = None  # the id of the lock of its environment: what it ran with


class NodeReport(Value):
    """One node of an attempt on several nodes, as its runner reported it."""

    node: int
    events_acked: int = 0  # how many of its events the server has processed
    last_seen_at: float  # when it last reported
    preparing: bool = False
    started: bool = False
    exited_at: float | None = None  # when the server received that event
    finished: bool = False
    outcome: str = ""
    reason: str = ""
    exit_code: int | None = None


class Job(Value):
    """A job in the store."""

    id: str
    name: str
    state: JobState
    reason: str
    version: int
    spec: JobSpec
    attempt: int = 0  # number of the current or last attempt; 0 before the first
    failures: int = 0  # how many of its attempts failed; each but the last one cost a retry
    preemptions: int = 0  # how many of its attempts lost their node to the target
    exit_code: int | None = None
    created_at: float
    changed_at: float
    started_at: float | None = None
    ended_at: float | None = None

    @property
    def retries_left(self) -> int:
        """How often the job is tried again after further failures."""
        return max(0, self.spec.retries - self.failures)

    def after(
        self,
        event: Event,
        *,
        reason: str,
        now: float,
        exit_code: int | None = None,
        started_at: float | None = None,
    ) -> "Job":
        """Return the job after this event, or raise Conflict.

        A further attempt resets the exit code and the start time: they stay with the previous one.
        """
        state = advance(self.state, event)
        change = self._count(event) | {"state": state, "reason": reason, "changed_at": now}
        if state is JobState.RUNNING:
            change["started_at"] = started_at or now
        if exit_code is not None:
            change["exit_code"] = exit_code
        if state.is_final:
            change["ended_at"] = now
        if event in (Event.RETRIED, Event.PREEMPTED):
            change |= {"started_at": None, "exit_code": None}
        return self.model_copy(update=change | {"version": self.version + 1})

    def _count(self, event: Event) -> dict[str, Any]:
        """Return the counts that change because `event` ends an attempt."""
        if self.state not in LIVE or self.state is JobState.CANCELING:
            return {}
        if event is Event.PREEMPTED:
            return {"preemptions": self.preemptions + 1}
        return {"failures": self.failures + 1} if event in (Event.RETRIED, Event.FAILED) else {}


def requested_labels(job: Job) -> Labels:
    """Return what the job was to be labelled with; the tags of its run may differ by now."""
    spec = job.spec
    return Labels(
        display_name=spec.display_name or job.name, description=spec.description, tags=spec.tags
    )


class Transition(Value):
    """One row of a job's history."""

    version: int
    event: str
    state: JobState
    reason: str
    at: float


class Output(Value):
    """A file that a job wrote."""

    path: str
    size: int
    digest: str
