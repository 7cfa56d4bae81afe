"""Write the training script once. Run it on any compute target."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import, and scripts import this for `track`
if TYPE_CHECKING:
    from typing import Any

    from retarget import track
    from retarget.core.errors import (
        Conflict,
        Forbidden,
        Invalid,
        LaunchRejected,
        NotFound,
        RetargetError,
        ServerUnreachable,
        StorageFull,
        TargetError,
        TargetUnreachable,
        Unauthorized,
    )
    from retarget.core.states import JobState
    from retarget.sdk.environments import Environment
    from retarget.sdk.jobs import Job
    from retarget.sdk.workspace import Workspace

__version__ = "0.1.0"

__all__ = [
    "Conflict",
    "Environment",
    "Forbidden",
    "Invalid",
    "Job",
    "JobState",
    "LaunchRejected",
    "NotFound",
    "RetargetError",
    "ServerUnreachable",
    "StorageFull",
    "TargetError",
    "TargetUnreachable",
    "Unauthorized",
    "Workspace",
    "__version__",
    "track",
]

_ELSEWHERE = {
    "Environment": "retarget.sdk.environments",
    "Job": "retarget.sdk.jobs",
    "JobState": "retarget.core.states",
    "Workspace": "retarget.sdk.workspace",
}


def __getattr__(name: str) -> Any:
    # `import retarget` stays cheap: the runner's helpers and `retarget --help` need none of this
    if name not in __all__:
        raise AttributeError(f"module 'retarget' has no attribute {name!r}")
    from importlib import import_module

    if name == "track":
        return import_module("retarget.track")
    return getattr(import_module(_ELSEWHERE.get(name, "retarget.core.errors")), name)


def __dir__() -> list[str]:
    return sorted(__all__)
