"""Reads the server's answers into plain values. Fields that a newer server adds are ignored."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import UTC, datetime
from types import UnionType
from typing import Any, TypeVar, cast, get_args, get_origin

from retarget import __version__
from retarget.core.errors import ServerUnreachable
from retarget.core.kept import Kept, Missed
from retarget.core.states import JobState
from retarget.sdk.display import Columns, Displayable

_Record = TypeVar("_Record")
_STATES = frozenset(JobState)
_MAX_SHOWN_CHARACTERS = 80

# The fields that a view of a job must have, with their types.
JOB_FIELDS: dict[str, Any] = {
    **dict.fromkeys(("id", "name", "reason", "target", "experiment"), str),
    **dict.fromkeys(("display_name", "description"), str),
    **dict.fromkeys(("tags", "properties"), dict[str, str]),
    **dict.fromkeys(("version", "attempt", "failures", "preemptions"), int),
    **dict.fromkeys(("nodes", "processes_per_node"), int),
    **dict.fromkeys(("priority", "gpus", "retries"), int),
    **dict.fromkeys(("created_at", "changed_at"), datetime),
    **dict.fromkeys(("started_at", "ended_at"), datetime | None),
    "cpus": float,
    "timeout": float | None,
    **dict.fromkeys(("exit_code", "memory"), int | None),
    "state": JobState,
    "command": list[str],
    "allow_pip": bool,
    "split_stderr": bool,
    "own_packages": list[dict[str, Any]],
    "environment": {
        "kind": str,
        **dict.fromkeys(("python", "prefer", "name"), str | None),
        **dict.fromkeys(("conda", "pip"), list[str]),
    },
    "variables": dict[str, str],
    "excluded": list[dict[str, Any]],
    "secrets": list[str],
    "notices": list[str],
    "hint": str | None,
    "attempts": list[dict[str, Any]] | None,
}


@dataclass(frozen=True, slots=True)
class Attempt(Displayable):
    """One try at a job. Times are in UTC."""

    number: int
    target: str
    exit_code: int | None
    reason: str
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    resumes: int = 0
    nodes: list[str] = field(default_factory=list[str])
    launched_at: datetime | None = None
    preparing_at: datetime | None = None
    starting_at: datetime | None = None
    first_output_at: datetime | None = None
    exited_at: datetime | None = None

    def __repr__(self) -> str:
        ended = "not ended" if self.ended_at is None else f"exit code {self.exit_code}"
        return f"<Attempt {self.number} on {self.target}, {ended}>"

    def _columns(self) -> Columns:
        return {
            "attempt": self.number,
            "target": self.target,
            "nodes": ", ".join(self.nodes),
            "started": self.started_at,
            "ended": self.ended_at,
            "exit code": self.exit_code,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Transition(Displayable):
    """One row of a job's history: the state that the job moved to, why, and when (UTC)."""

    version: int
    event: str
    state: JobState
    reason: str
    at: datetime

    def _columns(self) -> Columns:
        return {"time": self.at, "state": self.state.value, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Output(Displayable):
    """A file of a job or of a model version."""

    path: str
    size: int
    digest: str

    def _columns(self) -> Columns:
        return {"path": self.path, "bytes": self.size}


@dataclass(frozen=True, slots=True)
class LogTime:
    """When a stream of a log had a size."""

    size: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Stream(Displayable):
    """One stream of an attempt's log: `prepare`, `output`, `rank-N`, or a file in `logs/`."""

    stream: str
    size: int

    def _columns(self) -> Columns:
        return {"stream": self.stream, "bytes": self.size}


@dataclass(frozen=True, slots=True)
class Why(Displayable):
    """Why a job is in its state, and the names of the jobs that it waits for."""

    state: JobState
    reason: str
    behind: list[str]
    diagnosis: str | None = None
    hint: str | None = None

    def _columns(self) -> Columns:
        return {
            "state": self.state.value,
            "reason": self.reason,
            "behind": ", ".join(self.behind),
            "diagnosis": self.diagnosis,
            "hint": self.hint,
        }


@dataclass(frozen=True, slots=True)
class Target(Displayable):
    """A named place to run.

    `inventory` is what the target had (nodes, node types, capacity) when it was last checked, at
    `checked_at` (UTC). `reason` says why that check failed; it is empty if it succeeded.
    """

    name: str
    kind: str
    config: dict[str, Any]
    tags: dict[str, str]
    inventory: dict[str, Any] | None
    checked_at: datetime | None
    reason: str
    jobs: dict[str, int]
    used: dict[str, float]

    def __repr__(self) -> str:
        problem = f": {self.reason}" if self.reason else ""
        return f"<Target {self.name} ({self.kind}){problem}>"

    def _columns(self) -> Columns:
        return {
            "target": self.name,
            "kind": self.kind,
            "jobs": {state: count for state, count in self.jobs.items() if count},
            "checked": self.checked_at,
            "problem": self.reason,
            "tags": self.tags,
        }


@dataclass(frozen=True, slots=True)
class KnownEnvironment(Displayable):
    """An environment that the server knows: registered under a name, or built for a job."""

    name: str | None
    digest: str | None
    kind: str
    python: str | None
    channels: list[str]
    conda: list[str]
    pip: list[str]
    created_at: datetime | None
    built: list[dict[str, Any]]
    image: str | None = None
    dockerfile: str | None = None
    context: str | None = None
    locks: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    version: int | None = None
    resolution: int = 0
    conda_from_pypi: bool = False

    def __repr__(self) -> str:
        return f"<KnownEnvironment {self.label or (self.digest or '')[:8]} ({self.kind})>"

    @property
    def label(self) -> str:
        """The name with the version, such as `torch:3`; empty without a name."""
        return environment_label(self.name, self.version)

    def _columns(self) -> Columns:
        return {
            "environment": self.label,
            "digest": (self.digest or "")[:8],
            "kind": self.kind,
            "python": self.python,
            "image": self.image or self.dockerfile,
            "packages": ", ".join([*self.conda, *self.pip]),
            "created": self.created_at,
        }

    def to_json(self) -> dict[str, Any]:
        """Return the definition in the form that a job request takes."""
        return {
            "kind": self.kind,
            "python": self.python,
            "image": self.image,
            "dockerfile": self.dockerfile,
            "context": self.context,
            "channels": self.channels,
            "conda": self.conda,
            "pip": self.pip,
            "name": self.name,
            "version": self.version,
            "resolution": self.resolution,
            "conda_from_pypi": self.conda_from_pypi,
        }


@dataclass(frozen=True, slots=True)
class Secret(Displayable):
    """A secret that the server stores. The server never returns its value."""

    name: str
    created_at: datetime
    updated_at: datetime

    def __repr__(self) -> str:
        return f"<Secret {self.name}>"

    def _columns(self) -> Columns:
        return {"secret": self.name, "created": self.created_at, "updated": self.updated_at}


def environment_label(name: str | None, version: int | None) -> str:
    """Return the name with the version if it has one: `torch:3`; empty without a name."""
    return f"{name}:{version}" if name and version else name or ""


def record(kind: type[_Record], raw: Any) -> _Record:
    """Read one record from an answer; raise ServerUnreachable if the answer is something else."""
    known = fields(kind)  # type: ignore[arg-type]
    required = {
        item.name: item.type
        for item in known
        if item.default is MISSING and item.default_factory is MISSING
    }
    answer = view(raw, required)
    types = {item.name: item.type for item in known if item.name in answer}
    values = view({name: answer[name] for name in types}, types)
    return kind(**{name: _converted(value, types[name]) for name, value in values.items()})


def records(kind: type[_Record], raw: Any) -> list[_Record]:
    """Read a list of records from an answer."""
    return [record(kind, row) for row in rows(raw)]


def read_kept(raw: Any) -> Kept:
    """Read what a job wrote outside of outputs/."""
    answer = view(raw, {"missed": list[Any]})
    return record(Kept, answer | {"missed": records(Missed, answer["missed"])})


def rows(raw: Any) -> list[Any]:
    """Return an answer that must be a list."""
    if not isinstance(raw, list):
        raise _unexpected("the response is not a list")
    return cast("list[Any]", raw)


def view(raw: Any, required: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer that must be an object with at least these fields, of these types."""
    if not isinstance(raw, dict):
        raise _unexpected("the response is not an object")
    answer = cast("dict[str, Any]", raw)
    for name, hint in required.items():
        if name not in answer:
            raise _unexpected(f"the field {name!r} is missing")
        if isinstance(hint, Mapping):
            view(answer[name], cast("Mapping[str, Any]", hint))
        elif not _fits(answer[name], hint):
            raise _unexpected(f"the field {name!r} is {_short(answer[name])}")
    return answer


def number(raw: float | str) -> float:
    """Read a number; NaN and the infinities arrive as strings."""
    try:
        return float(raw)
    except (ValueError, OverflowError):
        raise _unexpected(f"{_short(raw)} is not a number") from None


def parse_time(raw: str) -> datetime:
    """Read a time: ISO 8601 with an offset. The result is in UTC."""
    parsed = _parse_time(raw)
    if parsed is None:
        raise _unexpected(f"{_short(raw)} is not a time")
    return parsed


def _parse_time(raw: Any) -> datetime | None:
    try:
        parsed = datetime.fromisoformat(raw)
        return None if parsed.tzinfo is None else parsed.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):  # OverflowError: the year 1 or 9999
        return None


def _fits(value: Any, hint: Any) -> bool:
    if type(value) is hint:
        return True
    options = get_args(hint)
    if isinstance(hint, UnionType):
        return any(_fits(value, option) for option in options)
    kind = get_origin(hint) or hint
    if kind is list:
        return isinstance(value, list) and all(_fits(item, options[0]) for item in value)  # pyright: ignore[reportUnknownVariableType]
    if kind is dict:
        return isinstance(value, dict) and all(_fits(item, options[1]) for item in value.values())  # pyright: ignore[reportUnknownVariableType]
    return _fits_plain(value, kind)


def _fits_plain(value: Any, kind: Any) -> bool:
    if kind is JobState:
        return value in _STATES if isinstance(value, str) else False
    if kind is datetime:
        return isinstance(value, str) and _parse_time(value) is not None
    if kind is float:
        return type(value) in (int, float)
    return kind is Any or (isinstance(value, kind) and (kind is bool or type(value) is not bool))


def _converted(value: Any, hint: Any) -> Any:
    if not isinstance(value, str) or hint is str:
        return value
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if JobState in kinds:
        return JobState(value)
    return parse_time(value) if datetime in kinds else value


def _short(value: object) -> str:
    return repr(str(value)[:_MAX_SHOWN_CHARACTERS])


def _unexpected(problem: str) -> ServerUnreachable:
    return ServerUnreachable(
        "the address does not belong to a Retarget server, or the server is not of version "
        f"{__version__}: {problem}"
    )
