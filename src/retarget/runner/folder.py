"""A launch's folder: what it is told, what it has done, and what came out, all on disk first.

launch.json   what to run, what this machine offers, and where the server is now; written again at
              every launch, because of the last
runner.log    what the runner says of itself; locked by the one at work here, else there is none
orders        a FIFO: a byte written to it makes the runner look at `cancel`
cancel        there when the launch was told to stop
events.jsonl  what happened, in order; the runner's memory and what it reports
streams/      the bytes of each stream
track/        what the script logs with `retarget.track`, and the artifacts it keeps with it
work/         the user's code, `outputs/` and `logs/`
done          what was events.jsonl, when nothing is left to do
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from typing import Any


class Folder:
    def __init__(self, path: str) -> None:
        self.path = path
        self.work = os.path.join(path, "work")
        self.streams = os.path.join(path, "streams")
        self.track = os.path.join(path, "track")
        self.lock = -1

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def acquire(self) -> bool:
        """Take the lock, for this process or a runner it starts; False when another has it."""
        self.lock = self.open_log()
        while not _flock(self.lock, fcntl.LOCK_EX):
            # A driver that looks whether a runner is here shares the lock for an instant.
            if not _flock(self.lock, fcntl.LOCK_SH):
                self.release()
                return False
            fcntl.flock(self.lock, fcntl.LOCK_UN)
            time.sleep(0.001)
        return True

    def inherit(self, lock: int) -> None:
        """Keep the lock that whoever started this runner took for it."""
        os.set_inheritable(lock, False)  # nothing the script leaves behind may hold it
        self.lock = lock

    def release(self) -> None:
        """Let go of the lock; one that a runner was given stays with it."""
        os.close(self.lock)
        self.lock = -1

    def read(self, name: str) -> dict[str, Any]:
        with open(self.file(name), encoding="utf-8") as file:
            return json.load(file)

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Write a file that is there wholly or not at all."""
        part = self.file(f"{name}.{os.getpid()}.part")
        with open(part, "w", encoding="utf-8") as file:
            json.dump(content, file)
        os.rename(part, self.file(name))

    def has(self, name: str) -> bool:
        return os.path.exists(self.file(name))

    def open_log(self) -> int:
        """Open what the runner says of itself, which is also what is locked."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.open(self.file("runner.log"), flags, 0o600)

    def say(self, text: str) -> None:
        """Add a line of the runner's own to the stream the user reads before the script's."""
        descriptor = self.open_stream("prepare")
        os.write(descriptor, (text.rstrip("\n") + "\n").encode("utf-8", "backslashreplace"))
        os.close(descriptor)

    def open_stream(self, name: str) -> int:
        """Open a stream for appending. Several processes may write to it at once."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.open(os.path.join(self.streams, name), flags, 0o600)


def address(contact: dict[str, Any]) -> str:
    """Return where the server is now: at the door that an agent keeps, if there is one."""
    try:
        with open(contact["door"], encoding="utf-8") as file:
            return f"http://127.0.0.1:{int(json.load(file)['port'])}"
    except (OSError, ValueError, LookupError, TypeError):
        return str(contact["url"])


def is_full(error: OSError) -> bool:
    """Tell whether a disk has no room: it may have some later."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _flock(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        return False
    return True


class Journal:
    """The events of a launch. The last line may be torn by a kill; it then never happened."""

    def __init__(self, folder: Folder) -> None:
        self._path, self._done = folder.file("events.jsonl"), folder.file("done")
        self.events: list[dict[str, Any]] = []
        self._load()

    def add(self, kind: str, **facts: Any) -> dict[str, Any]:
        """Write an event down. Once this returns, a runner that takes over knows of it."""
        event = dict(facts, seq=len(self.events) + 1, at=time.time(), kind=kind)
        self._append((json.dumps(event) + "\n").encode())
        self.events.append(event)
        return event

    def finish(self) -> None:
        """Say that nothing is left to do."""
        os.rename(self._path, self._done)
        os.close(self._file)

    def find(self, kind: str) -> dict[str, Any] | None:
        """Return the last event of this kind."""
        return next((event for event in reversed(self.events) if event["kind"] == kind), None)

    def _append(self, line: bytes) -> None:
        """Write a line wholly. On a full disk this waits for room: it must not be forgotten."""
        size = os.fstat(self._file).st_size
        while True:
            try:
                if os.write(self._file, line) == len(line):
                    return
            except OSError as error:
                if not is_full(error):
                    raise
            os.ftruncate(self._file, size)
            time.sleep(0.2)

    def _load(self) -> None:
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        whole = 0
        with open(self._path, "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self.events.append(json.loads(line))
                whole += len(line)
        os.ftruncate(self._file, whole)
