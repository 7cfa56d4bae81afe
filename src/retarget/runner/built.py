"""The built environments of this host: their folders, records and locks."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import subprocess
from typing import Any

from retarget.runner.failed_builds import clear_failure, list_failures


def list_built(root: str) -> list[dict[str, Any]]:
    """List the built environments, and the failed builds."""
    names = sorted(os.listdir(root)) if os.path.isdir(root) else []
    records = {name: read_record(os.path.join(root, name, "ready.json")) for name in names}
    built = [
        dict(ready, size=ready.get("size", 0) + _size(os.path.join(root, name)))
        for name, ready in records.items()
        if ready
    ]
    return built + list_failures(root)


def remove(root: str, digest: str) -> str:
    """Remove a built environment: `removed`, `absent`, or `used` while a job uses it."""
    clear_failure(root, digest)
    results = [_remove_one(root, name) for name in folder_names(root, digest)]
    return next((result for result in ("used", "removed") if result in results), "absent")


def folder_names(root: str, digest: str) -> list[str]:
    """Return the folders of an environment: several if it was built with several locks, or also
    from PyPI instead of its channels.
    """
    names = os.listdir(root) if os.path.isdir(root) else []
    is_of = re.compile(re.escape(digest) + r"(-pypi)?(-[0-9a-f]+)?")
    return sorted(name for name in names if is_of.fullmatch(name))


def _remove_one(root: str, name: str) -> str:
    folder = os.path.join(root, name)
    lock = take_lock(os.path.join(root, f"{name}.lock"), fcntl.LOCK_EX)
    if lock is None:
        return "used"
    _remove_image(read_record(os.path.join(folder, "ready.json")) or {})
    trash = f"{folder}.gone"
    os.rename(folder, trash)
    shutil.rmtree(trash, ignore_errors=True)
    os.unlink(os.path.join(root, f"{name}.lock"))
    os.close(lock)
    return "removed"


def _remove_image(ready: dict[str, Any]) -> None:
    """Remove the image of an environment. A missing engine is not an error."""
    if "image" in ready:
        command = [ready["engine"], "rmi", "-f", ready["image"]]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(command, check=False, capture_output=True, timeout=60)


def take_lock(path: str, kind: int) -> int | None:
    """Lock a file, which is created if needed; None if another process holds it."""
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            return None
        if _is_at(lock, path):
            return lock
        os.close(lock)  # the file was removed with its environment after it was opened


def _is_at(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _size(folder: str) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            total += os.lstat(os.path.join(parent, name)).st_size
    return total


def read_record(path: str) -> dict[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
