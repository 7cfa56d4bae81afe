"""Keeps a server that has lost its lease of a target from acting on this host.

Each request names the epoch of the lease under which it was decided. A file holds the highest one
that this host has seen.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import time
from contextlib import contextmanager
from typing import Any, Generator

_NAME = re.compile(r"[0-9a-f]{1,64}")
_WAIT_SECONDS = 2.0  # for another server that acts on the same launch
_PAUSE_SECONDS = 0.001


class Epochs:
    def __init__(self, root: str) -> None:
        self._folder = os.path.join(root, "epochs")

    @contextmanager
    def passing(self, key: str, lease: dict[str, Any] | None) -> Generator[None, None, None]:
        """Let a server act on a launch, or raise OSError if its lease was taken over.

        Only one server at a time acts on a launch. One that is paused meanwhile may continue when
        its lease is long gone. So nobody else may finish and forget the launch before it has.
        """
        stripe = hashlib.blake2b(key.encode(), digest_size=1).hexdigest()
        with self._locked(f"{stripe}.lock"):
            self.check(lease)
            yield

    def check(self, lease: dict[str, Any] | None) -> None:
        """Raise OSError if this host has seen a higher epoch. None: a user decided the request."""
        if lease is None:
            return
        path = os.path.join(self._folder, _checked(lease["name"]))
        if lease["epoch"] > _read(path):
            with self._locked(f"{lease['name']}.lock"):
                if lease["epoch"] > _read(path):
                    _write(path, lease["epoch"])
        if lease["epoch"] < _read(path):
            raise OSError(errno.ESTALE, "another server looks after this target now")

    @contextmanager
    def _locked(self, name: str) -> Generator[None, None, None]:
        lock = self._open(os.path.join(self._folder, name))
        try:
            _acquire(lock)
            yield
        finally:
            os.close(lock)

    def _open(self, path: str) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            return os.open(path, flags, 0o600)
        except FileNotFoundError:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            return os.open(path, flags, 0o600)


def _acquire(lock: int) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise OSError(errno.EAGAIN, "another server is working on this launch") from None
        time.sleep(_PAUSE_SECONDS)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"invalid lease {name[:100]!r}")
    return name


def _read(path: str) -> int:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (FileNotFoundError, ValueError):
        return 0


def _write(path: str, epoch: int) -> None:
    part = f"{path}.part"
    with open(part, "w", encoding="ascii") as file:
        file.write(str(epoch))
        file.flush()
        os.fsync(file.fileno())  # a host that restarts must still know it
    os.rename(part, path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
