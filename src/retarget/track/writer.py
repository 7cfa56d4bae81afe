"""Writes to a file per process, which is created at the first call and again after a fork."""

from __future__ import annotations

import errno
import os
import sys
import time
from _thread import RLock

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable

_LOCAL_FOLDER = "retarget-track"
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC


class Writer:
    def __init__(self) -> None:
        self.lock = RLock()  # reentrant: a signal handler may log while its thread does
        self._pid = 0
        self._file = -1
        self._root = ""
        self._artifacts = ""
        os.register_at_fork(after_in_child=self._forget)

    def write(self, lines: str) -> None:
        """Append complete lines. When this returns, the operating system has them."""
        content = lines.encode("utf-8")
        with self.lock:
            self._ensure()
            written = os.write(self._file, content)
            if written != len(content):
                self._undo(written)

    def sync(self) -> None:
        with self.lock:
            if self._pid == os.getpid():
                os.fsync(self._file)

    def keep(self, name: str, fill: Callable[[str], object]) -> None:
        """Let `fill` write a file, and make it the artifact `name` atomically."""
        with self.lock:
            self._ensure()
        part = os.path.join(self._root, f".{os.getpid()}-{os.urandom(4).hex()}")
        target = os.path.join(self._artifacts, name)
        try:
            fill(part)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.rename(part, target)
        except BaseException:
            if os.path.exists(part):
                os.unlink(part)
            raise

    def _ensure(self) -> None:
        if self._pid != os.getpid():
            self._open()
            self._pid = os.getpid()

    def _open(self) -> None:
        root = os.environ.get("RETARGET_TRACK", "")
        unique = f"{os.getpid()}-{os.urandom(4).hex()}"
        if root and os.path.isdir(os.path.dirname(root)):
            os.makedirs(root, mode=0o700, exist_ok=True)
            self._root, self._artifacts = root, os.path.join(root, "artifacts")
            self._file = os.open(os.path.join(root, f"{unique}.jsonl"), _NEW_FILE, 0o600)
        else:
            self._open_local(root)

    def _open_local(self, missing: str) -> None:
        """Write to a file below the current folder, and print that once."""
        is_first = not self._root
        stem = os.path.abspath(
            os.path.join(_LOCAL_FOLDER, f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
        )
        self._root, self._artifacts = os.path.dirname(stem), stem
        os.makedirs(self._root, exist_ok=True)
        with open(os.path.join(self._root, ".gitignore"), "w") as file:
            file.write("*\n")  # so that neither git nor a snapshot includes it
        self._file = os.open(f"{stem}.jsonl", _NEW_FILE, 0o644)
        if is_first:
            reason = f"folder {missing} not found" if missing else "not running in a Retarget job"
            sys.stderr.write(f"retarget.track: {reason}; writing to {_LOCAL_FOLDER}/\n")

    def _undo(self, written: int) -> None:
        """Remove a line that did not fit, so that later ones are not joined to it."""
        os.ftruncate(self._file, os.fstat(self._file).st_size - written)
        raise OSError(errno.ENOSPC, "the disk is full: the call was not logged")

    def _forget(self) -> None:
        """Start over in a child: the file is its parent's, and the lock may be held there."""
        self.lock = RLock()
        file, self._pid, self._file = self._file, 0, -1
        try:
            os.close(file)
        except OSError:
            pass  # there was none, or it has been closed
