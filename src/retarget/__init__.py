"""Write the training script once. Run it on any compute target."""

from __future__ import annotations

TYPE_CHECKING = False  # importing `typing` takes 6 ms, and every script that uses `track` pays
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
    from retarget.sdk.job import Job
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

_MODULES = {
    "Environment": "retarget.sdk.environments",
    "Job": "retarget.sdk.jobs",
    "JobState": "retarget.core.states",
    "Workspace": "retarget.sdk.workspace",
}


def __getattr__(name: str) -> Any:
    # keeps `import retarget` fast: the runner and `retarget --help` need none of these names
    if name not in __all__:
        raise AttributeError(f"module 'retarget' has no attribute {name!r}")
    from importlib import import_module

    if name == "track":
        return import_module("retarget.track")
    return getattr(import_module(_MODULES.get(name, "retarget.core.errors")), name)


def __dir__() -> list[str]:
    return sorted(__all__)
