"""The folder of a launch, where everything is written to disk first.

launch.json   what to run, what this host offers, and where the server is now; written at every
              launch, because the server may have moved
runner.log    the runner's own log; locked while a runner is alive
stop          a FIFO: a byte written to it makes the runner check for `cancel`
cancel        exists once the launch has been canceled
exec          a socket that exists while the script runs: `retarget exec` runs commands beside it
events.jsonl  what happened, in order: the runner's memory, and what it reports
streams/      the bytes of each stream
merge.jsonl   which lines of stdout and stderr come next in the merged log, if they are two streams
track/        what the script logs with `retarget.track`, and its artifacts
work/         the user's code, `outputs/` and `logs/`
masked.part   a masked copy of a stream that will replace it, if the launch has secrets
done          events.jsonl, renamed when there is nothing left to do
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
        """Take the lock, for this process or a runner it starts; False if another holds it."""
        self.lock = self.open_log()
        while not _flock(self.lock, fcntl.LOCK_EX):
            # A driver that checks for a runner shares the lock for an instant.
            if not _flock(self.lock, fcntl.LOCK_SH):
                self.release()
                return False
            fcntl.flock(self.lock, fcntl.LOCK_UN)
            time.sleep(0.001)
        return True

    def inherit(self, lock: int) -> None:
        """Keep the lock that the parent process took for this runner."""
        os.set_inheritable(lock, False)  # processes that the script leaves must not hold it
        self.lock = lock

    def release(self) -> None:
        """Release the lock. A runner that inherited it keeps it."""
        os.close(self.lock)
        self.lock = -1

    def read(self, name: str) -> dict[str, Any]:
        with open(self.file(name), encoding="utf-8") as file:
            return json.load(file)

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Write a file atomically."""
        part = self.file(f"{name}.{os.getpid()}.part")
        with open(part, "w", encoding="utf-8") as file:
            json.dump(content, file)
        os.rename(part, self.file(name))

    def has(self, name: str) -> bool:
        return os.path.exists(self.file(name))

    def open_log(self) -> int:
        """Open the runner's own log, which is also the file that is locked."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.open(self.file("runner.log"), flags, 0o600)

    def log(self, text: str) -> None:
        """Add a line of the runner to `prepare`, which the user reads before the output."""
        descriptor = self.open_stream("prepare")
        os.write(descriptor, (text.rstrip("\n") + "\n").encode("utf-8", "backslashreplace"))
        os.close(descriptor)

    def open_stream(self, name: str) -> int:
        """Open a stream for appending. Several processes may write to it at once."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.open(os.path.join(self.streams, name), flags, 0o600)


def server_url(contact: dict[str, Any]) -> str:
    """Return the present URL of the server: that of the agent's relay port, if there is one."""
    try:
        with open(contact["relay_port"], encoding="utf-8") as file:
            return f"http://127.0.0.1:{int(json.load(file)['port'])}"
    except (OSError, ValueError, LookupError, TypeError):
        return str(contact["url"])


def is_full(error: OSError) -> bool:
    """Return whether an error says that the disk is full, which may change."""
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
    """The events of a launch. A last line that a kill cut short does not count.

    The number of an event is `seq`. Numbers have a gap if the journal lost events that the server
    has: then a `forgotten` event follows the gap. A `damaged` event replaces what is unreadable.
    """

    def __init__(self, folder: Folder, events_acked: int = 0) -> None:
        """`events_acked`: how many events the server had when this runner was launched."""
        self._folder = folder.path
        self._path, self._done = folder.file("events.jsonl"), folder.file("done")
        self.events: list[dict[str, Any]] = []
        self._file = self._open()
        self._load()
        if self.seq < events_acked:
            self._record("forgotten", {}, events_acked + 1)

    @property
    def seq(self) -> int:
        """The number of the last event."""
        return self.events[-1]["seq"] if self.events else 0

    def add(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Write an event. Once this returns, a runner that takes over knows about it."""
        return self._record(kind, fields, self.seq + 1)

    def sync(self) -> None:
        """Make the events outlive a power cut, together with the folder of the launch."""
        os.fdatasync(self._file)
        for folder in (self._folder, os.path.dirname(self._folder)):
            sync_folder(folder)

    def finish(self) -> None:
        """Record that there is nothing left to do."""
        os.rename(self._path, self._done)
        os.close(self._file)

    def find(self, kind: str) -> dict[str, Any] | None:
        """Return the last event of this kind."""
        return next((event for event in reversed(self.events) if event["kind"] == kind), None)

    def after(self, seq: int, until: int) -> list[dict[str, Any]]:
        """Return the events with numbers above `seq`, up to `until`."""
        return [event for event in self.events if seq < event["seq"] <= until]

    def _record(self, kind: str, fields: dict[str, Any], seq: int) -> dict[str, Any]:
        event = dict(fields, seq=seq, at=time.time(), kind=kind)
        self._append(_encode(event))
        self.events.append(event)
        return event

    def _append(self, line: bytes) -> None:
        """Write a whole line. On a full disk this waits, because no event may be lost."""
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

    def _open(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _load(self) -> None:
        size = 0
        with open(self._path, "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                event = parse_event(line)
                if event is None or event["seq"] <= self.seq:
                    self._replace_damaged()
                    return
                self.events.append(event)
                size += len(line)
        os.ftruncate(self._file, size)

    def _replace_damaged(self) -> None:
        """Keep the events before the damage. It is replaced as a whole: nothing may be lost."""
        event = {"seq": self.seq + 1, "at": time.time(), "kind": "damaged"}
        part = f"{self._path}.part"
        with open(part, "wb") as file:
            file.writelines(_encode(event) for event in [*self.events, event])
            file.flush()
            os.fsync(file.fileno())
        os.rename(part, self._path)
        os.close(self._file)
        self._file = self._open()
        self.events.append(event)


def parse_event(line: bytes) -> dict[str, Any] | None:
    """Return the event in a line of a journal; None if it is damaged."""
    try:
        event: dict[str, Any] = json.loads(line)
        is_event = type(event["seq"]) is int and type(event["kind"]) is str
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return event if is_event else None


def _encode(event: dict[str, Any]) -> bytes:
    return (json.dumps(event) + "\n").encode()


def sync_folder(path: str) -> None:
    """Make the names in a folder outlive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that cannot do this for folders
            raise
    finally:
        os.close(descriptor)
