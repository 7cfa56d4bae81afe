"""What a server tells, as plain values. Fields a newer server adds are passed over."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import UnionType
from typing import Any, TypeVar, cast, get_args, get_origin

from retarget import __version__
from retarget.core.errors import ServerUnreachable
from retarget.core.states import JobState

_Record = TypeVar("_Record")
_STATES = frozenset(JobState)

# What a view of a job tells at least.
JOB: dict[str, Any] = {
    **dict.fromkeys(("id", "name", "reason", "target", "experiment"), str),
    **dict.fromkeys(("version", "attempt", "nodes", "processes_per_node"), int),
    **dict.fromkeys(("priority", "gpus", "retries"), int),
    **dict.fromkeys(("created", "changed", "cpus"), float),
    **dict.fromkeys(("started", "ended", "timeout"), float | None),
    **dict.fromkeys(("exit_code", "memory"), int | None),
    "state": JobState,
    "command": list[str],
    "environment": {
        "kind": str,
        **dict.fromkeys(("python", "prefer", "name"), str | None),
        **dict.fromkeys(("conda", "pip"), list[str]),
    },
    "env": dict[str, str],
    "attempts": list[dict[str, Any]] | None,
}


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at a job."""

    number: int
    target: str
    exit_code: int | None
    reason: str
    created: float
    started: float | None
    ended: float | None
    resumes: int = 0
    nodes: list[str] = field(default_factory=list[str])
    launched: float | None = None
    preparing: float | None = None
    starting: float | None = None
    output: float | None = None
    exited: float | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """One row of a job's history."""

    version: int
    event: str
    state: JobState
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class Output:
    """A file the job left; `path` begins with `outputs/`."""

    path: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class Stream:
    """A part of an attempt's log: `prepare`, `output`, `rank-N`, or a file under `logs/`."""

    stream: str
    size: int


@dataclass(frozen=True, slots=True)
class Why:
    """Why a job is where it is."""

    state: JobState
    reason: str
    behind: list[str]
    diagnosis: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """A named place to run, and what it said about itself when it was last checked."""

    name: str
    kind: str
    config: dict[str, Any]
    tags: dict[str, str]
    facts: dict[str, Any] | None
    checked: float | None
    reason: str
    jobs: dict[str, int]
    used: dict[str, float]


@dataclass(frozen=True, slots=True)
class KnownEnvironment:
    """An environment the server knows: registered under a name, or built for some job."""

    name: str | None
    digest: str | None
    kind: str
    python: str | None
    channels: list[str]
    conda: list[str]
    pip: list[str]
    created: float | None
    built: list[dict[str, Any]]
    image: str | None = None
    dockerfile: str | None = None
    context: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the definition as a job takes it."""
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
        }


def record(kind: type[_Record], raw: Any) -> _Record:
    """Read one record from an answer; ServerUnreachable if it is something else."""
    known = fields(kind)  # type: ignore[arg-type]
    must = {
        each.name: each.type
        for each in known
        if each.default is MISSING and each.default_factory is MISSING
    }
    told = view(raw, must)
    given = {each.name: told[each.name] for each in known if each.name in told}
    view(given, {each.name: each.type for each in known if each.name in given})
    if given.get("state") is not None:
        given["state"] = JobState(given["state"])
    return kind(**given)


def records(kind: type[_Record], raw: Any) -> list[_Record]:
    """Read a list of records from an answer."""
    return [record(kind, each) for each in rows(raw)]


def rows(raw: Any) -> list[Any]:
    """Return an answer that is a list."""
    if not isinstance(raw, list):
        raise _strange("it is no list")
    return cast("list[Any]", raw)


def view(raw: Any, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer that is an object and tells at least these things, each of its type."""
    if not isinstance(raw, dict):
        raise _strange("it is no object")
    found = cast("dict[str, Any]", raw)
    for name, hint in told.items():
        if name not in found:
            raise _strange(f"it does not tell {name!r}")
        if isinstance(hint, Mapping):
            view(found[name], cast("Mapping[str, Any]", hint))
        elif not _fits(found[name], hint):
            raise _strange(f"{name!r} is {str(found[name])[:80]!r}")
    return found


def number(raw: float | str) -> float:
    """Read a number; NaN and the infinities come as text."""
    try:
        return float(raw)
    except (ValueError, OverflowError):
        raise _strange(f"{str(raw)[:80]!r} is no number") from None


def _fits(value: Any, hint: Any) -> bool:
    if type(value) is hint:
        return True
    parts = get_args(hint)
    if isinstance(hint, UnionType):
        return any(_fits(value, each) for each in parts)
    kind = get_origin(hint) or hint
    if kind is list:
        return isinstance(value, list) and all(_fits(each, parts[0]) for each in value)  # pyright: ignore[reportUnknownVariableType]
    if kind is dict:
        return isinstance(value, dict) and all(_fits(each, parts[1]) for each in value.values())  # pyright: ignore[reportUnknownVariableType]
    if kind is JobState:
        return value in _STATES if isinstance(value, str) else False
    if kind is float:
        return type(value) in (int, float)
    return kind is Any or (isinstance(value, kind) and (kind is bool or type(value) is not bool))


def _strange(why: str) -> ServerUnreachable:
    return ServerUnreachable(
        f"what answered there is not a Retarget server, or not one of version {__version__}: {why}"
    )
