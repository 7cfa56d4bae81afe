"""The failed builds of this host: why each failed, until it expires or a build succeeds."""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any

_EXPIRES_AFTER_SECONDS = 86_400.0


def record_failure(root: str, digest: str, reason: str) -> None:
    """Record why the build of an environment failed. A full disk must not hide the reason."""
    record = {"digest": digest, "reason": reason, "at": time.time()}
    with contextlib.suppress(OSError):
        os.makedirs(_folder(root), exist_ok=True)
        part = f"{_path(root, digest)}.{os.getpid()}.part"
        with open(part, "w", encoding="utf-8") as file:
            json.dump(record, file)
        os.replace(part, _path(root, digest))


def clear_failure(root: str, digest: str) -> None:
    """Forget a failure: the environment was built, or removed."""
    with contextlib.suppress(OSError):
        os.unlink(_path(root, digest))


def list_failures(root: str) -> list[dict[str, Any]]:
    """List the failures as `list_built` lists builds, without those that have expired."""
    failures: list[dict[str, Any]] = []
    names = os.listdir(_folder(root)) if os.path.isdir(_folder(root)) else []
    for name in sorted(names):
        record = _read(os.path.join(_folder(root), name))
        if record is None or time.time() - record["at"] > _EXPIRES_AFTER_SECONDS:
            continue
        failed = {"how": "failed", "size": 0, "seconds": 0.0, "python": None}
        failed.update(digest=record["digest"], built=record["at"], failed=record["reason"])
        failures.append(failed)
    return failures


def _folder(root: str) -> str:
    return os.path.join(os.path.dirname(root), "failed_builds")


def _path(root: str, digest: str) -> str:
    return os.path.join(_folder(root), f"{digest}.json")


def _read(path: str) -> dict[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as file:
            record = json.load(file)
        return record if isinstance(record.get("at"), float) else None
    except (OSError, ValueError, AttributeError):
        return None
