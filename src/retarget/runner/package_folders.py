"""Folders of packages that jobs add to their environment. A host makes each of them once."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from typing import Any, Callable

from retarget.runner.built import take_lock
from retarget.runner.environments import Environments
from retarget.runner.errors import Stopped

_UNUSED_SECONDS = 30 * 86400.0


class PackageFolders(Environments):
    """They are named by a digest of everything that determines their content."""

    def __init__(self, node: dict[str, Any], folder: Any, stop_signal: Any) -> None:
        super().__init__(node, folder, stop_signal)
        self._root = os.path.join(node["cache"], "packages")

    def _find_or_make(
        self, key: str, make: Callable[[str], None], report: Callable[[], None]
    ) -> str:
        """Return the folder for a key. `make` writes it if it is missing, under a lock."""
        built = os.path.join(self._root, key, "packages")
        os.makedirs(self._root, exist_ok=True)
        while not os.path.isdir(built):
            report()
            self._lock = take_lock(self._lock_file(key), fcntl.LOCK_EX)
            if self._lock is not None:
                self._make_once(built, make, self._lock)
            elif self._stop_signal.pause(0.1):
                raise Stopped
        os.utime(built)
        return built

    def _make_once(self, built: str, make: Callable[[str], None], lock: int) -> None:
        try:
            if not os.path.isdir(built):
                make(built)
                self._trim()
        finally:
            os.close(lock)
            self._lock = None

    def _trim(self) -> None:
        """Remove what no job has used for a month."""
        for entry in os.scandir(self._root):
            built = os.path.join(entry.path, "packages")
            if os.path.isdir(built) and time.time() - os.stat(built).st_mtime > _UNUSED_SECONDS:
                shutil.rmtree(entry.path, ignore_errors=True)
