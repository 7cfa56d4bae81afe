"""What a server tells, as plain values. Fields a newer server adds are passed over."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from retarget.core.states import JobState

_Record = TypeVar("_Record")


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

    def to_json(self) -> dict[str, Any]:
        """Return the definition as a job takes it."""
        return {
            "kind": self.kind,
            "python": self.python,
            "channels": self.channels,
            "conda": self.conda,
            "pip": self.pip,
            "name": self.name,
        }


def record(kind: type[_Record], raw: Mapping[str, Any]) -> _Record:
    """Read one record from an answer."""
    known = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    given = {name: value for name, value in raw.items() if name in known}
    if given.get("state") is not None:
        given["state"] = JobState(given["state"])
    return kind(**given)
