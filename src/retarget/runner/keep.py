"""Keeps what the script wrote outside of outputs/ and logs/, up to a limit, as workdir/…"""

from __future__ import annotations

import json
import os
import time
from typing import Any, BinaryIO, Iterator, NamedTuple

from retarget.runner.errors import NoSpace, Refused
from retarget.runner.files import open_below
from retarget.runner.folder import Folder, Journal
from retarget.runner.keep_patterns import matches, reaches
from retarget.runner.outputs import printable_path
from retarget.runner.secrets import Secrets
from retarget.runner.server import Server
from retarget.runner.written_files import TOO_MANY, UNREADABLE, File, Missed, Written, find_written

TOP = "workdir"
NONE, ALL = "none", "all"
OVER_LIMIT, TOO_LONG = "over the limit", "its path is too long"
NO_SPACE = "the server's disk is full"
CHANGED, REFUSED = "it changed while it was read", "the server refused it"
_LIST = "keep.json"  # the chosen files, once they are chosen
_MAX_FILES = 10_000  # of one job, unless --keep asks for more
_MAX_PATH_BYTES = 1000
_CHUNK_BYTES = 1 << 20  # a file of this size is sent on its own
_BATCH_BYTES = 8 << 20
_BATCH_FILES = 1000
_FULL_SECONDS = 60.0  # without space on the server's disk, after which files are given up
_MAX_PATHS, _MAX_MISSED = 20, 50  # that the report names


class Choice(NamedTuple):
    """What is kept, what cannot be, and the patterns that match nothing."""

    files: list[File]
    missed: list[Missed]
    unmatched: list[str]


def choose(written: Written, patterns: list[str], limit: int) -> Choice:
    """Choose the files to keep. Patterns choose without a limit; without any, small files win."""
    files, missed, unmatched = written.files, written.missed, []
    if patterns and patterns != [ALL]:
        files = [file for file in files if _is_named(patterns, file.path)]
        missed = [row for row in missed if _is_named(patterns, row.path) or _hides(row, patterns)]
        paths = [item.path for item in (*files, *missed)]
        unmatched = [
            pattern for pattern in patterns if not any(matches(pattern, path) for path in paths)
        ]
    too_long = [file for file in files if len(os.fsencode(file.path)) > _MAX_PATH_BYTES]
    missed = [*missed, *(Missed(file.path, 1, file.size, TOO_LONG) for file in too_long)]
    files = sorted(set(files).difference(too_long), key=lambda file: (file.size, file.path))
    count = len(files) if patterns else _count_within(files, limit)
    over = [Missed(file.path, 1, file.size, OVER_LIMIT) for file in files[count:]]
    return Choice(files[:count], [*missed, *over], unmatched)


def _hides(row: Missed, patterns: list[str]) -> bool:
    """Return whether files that the patterns name may be among those that were not looked at."""
    if row.reason == TOO_MANY or row.path == ".":
        return True
    is_folder = row.reason == UNREADABLE and row.path.endswith("/")
    return is_folder and any(reaches(pattern, row.path) for pattern in patterns)


def parse_choice(stored: dict[str, Any]) -> Choice:
    """Read a choice from its file, or raise ValueError, TypeError or KeyError."""
    choice = Choice(
        [File(*row) for row in stored["files"]],
        [Missed(*row) for row in stored["missed"]],
        list(stored["unmatched"]),
    )
    for item in (*choice.files, *choice.missed):
        if type(item.path) is not str or type(item.size) is not int or item.size < 0:
            raise ValueError("a path or a size is wrong")
    if any(".." in file.path.split("/") for file in choice.files):
        raise ValueError("a path is wrong")
    if not all(type(text) is str for text in _texts(choice)):
        raise TypeError("a string is wrong")
    return choice


class Keeper:
    """Works at the end of a launch, once its script has ended."""

    def __init__(self, folder: Folder, journal: Journal, secrets: Secrets, node: int) -> None:
        content = folder.read("launch.json")
        self._folder = folder
        self._journal = journal
        self._secrets = secrets
        self._launch: dict[str, Any] = content["launch"]
        self._host: dict[str, Any] = content["node"]
        self._patterns: list[str] = list(self._launch.get("keep", [NONE]))
        self._limit = int(self._launch.get("keep_limit", 0))
        self._folder_name = f"node-{node}/" if node else ""
        self._choice: Choice | None = None
        self._pending: list[File] = []
        self._missed: dict[str, Missed] = {}
        self._kept: dict[str, File] = {}
        self._full_since = 0.0

    def choose(self) -> int:
        """Choose what to keep, unless it is chosen. Return how many bytes are to be sent."""
        is_due = self._patterns != [NONE] and self._journal.find("starting") is not None
        if is_due and self._choice is None and self._journal.find("kept") is None:
            self._choice = self._read_choice() or self._make_choice()
            self._pending = list(self._choice.files)
            self._missed = {row.path: row for row in self._choice.missed}
        return sum(file.size for file in self._pending)

    def send(self, server: Server) -> None:
        """Send the chosen files, and record what was kept: once, even if a runner is killed."""
        if self._choice is None or self._journal.find("kept") is not None:
            return
        while self._pending:
            batch = _first_batch(self._pending)
            self._send(server, batch)
            del self._pending[: len(batch)]
        if self._kept or self._missed or self._choice.unmatched:
            self._journal.add("kept", **self._report(self._choice.unmatched, server))

    def _read_choice(self) -> Choice | None:
        """Return the choice of an earlier runner that was killed."""
        try:
            return parse_choice(self._folder.read(_LIST))
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None  # there is none, or the script has written to it

    def _make_choice(self) -> Choice:
        try:
            written = find_written(self._folder, self._launch, self._host)
        except OSError:
            written = Written([], [Missed(".", 0, 0, UNREADABLE)])
        choice = choose(written, self._patterns, self._limit)
        if choice.files:
            try:
                self._folder.write(_LIST, choice._asdict())
            except OSError:
                pass  # the disk is full: a later runner chooses again
        return choice

    def _send(self, server: Server, batch: list[File]) -> None:
        frames = self._within_limit(self._open(batch, server))
        if not frames:
            return
        try:
            length = sum(len(frame.head) + frame.file.size for frame in frames)
            refused = server.send_files(_bytes_of(frames), length)
        except _Changed:
            server.close()  # it waits for the rest of a file that cannot be read
            self._send_apart(server, [frame.file for frame in frames], CHANGED)
        except NoSpace:
            self._wait_for_space([frame.file for frame in frames])
        except Refused as error:
            self._send_apart(server, [frame.file for frame in frames], str(error))
        else:
            self._kept.update({frame.file.path: frame.file for frame in frames})
            self._missed.update({text: Missed(text, 0, 0, REFUSED) for text in refused})
        finally:
            for frame in frames:
                frame.close()

    def _open(self, batch: list[File], server: Server) -> list[Frame]:
        frames: list[Frame] = []
        for file in batch:
            try:
                frames.append(self._frame(file, server))
            except OSError:
                self._miss(file, UNREADABLE)
        return frames

    def _wait_for_space(self, batch: list[File]) -> None:
        """Retry the batch for a while, then drop it: these files may be what fills the disk."""
        self._full_since = self._full_since or time.monotonic()
        if time.monotonic() - self._full_since < _FULL_SECONDS:
            raise NoSpace("the server's disk is full")
        for file in batch:
            self._miss(file, NO_SPACE)

    def _within_limit(self, frames: list[Frame]) -> list[Frame]:
        """Drop files that would exceed the limit, as they have grown since they were chosen."""
        total = sum(file.size for file in self._kept.values())
        accepted: list[Frame] = []
        for frame in frames:
            total += frame.file.size
            if self._patterns or total <= self._limit:
                accepted.append(frame)
            else:
                total -= frame.file.size
                frame.close()
                self._miss(frame.file, OVER_LIMIT)
        return accepted

    def _send_apart(self, server: Server, batch: list[File], reason: str) -> None:
        """Send the files of a failed batch one by one: only one of them may be to blame."""
        if len(batch) == 1:
            self._miss(batch[0], reason)
            return
        for file in batch:
            self._send(server, [file])

    def _frame(self, file: File, server: Server) -> Frame:
        """Open a file in its current state. A small one is read at once."""
        opened = open_below(self._folder.work, file.path)
        content: bytes | BinaryIO = opened
        size = os.fstat(opened.fileno()).st_size
        if size < _CHUNK_BYTES:
            with opened:
                content = opened.read(size)
            size = len(content)
        name = f"{TOP}/{self._name(file.path, server)}"
        header = json.dumps({"path": name, "size": size}).encode()
        return Frame(File(file.path, size), len(header).to_bytes(4, "big") + header, content)

    def _miss(self, file: File, reason: str) -> None:
        self._missed[file.path] = Missed(file.path, 1, file.size, reason)

    def _name(self, path: str, server: Server) -> str:
        return self._folder_name + self._secrets.mask_path(printable_path(path), server)

    def _report(self, unmatched: list[str], server: Server) -> dict[str, Any]:
        """Return the report for the server and the user."""
        paths = sorted(self._name(path, server) for path in self._kept)
        rows = sorted(self._missed.values(), key=lambda row: (-row.size, row.path))
        named = [
            {**row._asdict(), "path": self._name(row.path, server)} for row in rows[:_MAX_MISSED]
        ]
        rest = rows[_MAX_MISSED:]
        if rest:
            files, size = sum(row.files for row in rest), sum(row.size for row in rest)
            named.append({"path": "*", "files": files, "size": size, "reason": rest[0].reason})
        return {
            "files": len(self._kept),
            "size": sum(file.size for file in self._kept.values()),
            "paths": paths[:_MAX_PATHS],
            "missed": named,
            "unmatched": unmatched,
            "limit": self._limit,
        }


class Frame(NamedTuple):
    """A file to send: its size now, its header, and its content or where to read it."""

    file: File
    head: bytes
    content: bytes | BinaryIO

    def close(self) -> None:
        if not isinstance(self.content, bytes):
            self.content.close()


class _Changed(Exception):
    """A file became shorter while it was sent."""


def _first_batch(files: list[File]) -> list[File]:
    """Return the first files that are sent together. A large one is sent on its own."""
    volume = 0
    for count, file in enumerate(files[:_BATCH_FILES]):
        volume += file.size
        if count and (file.size >= _CHUNK_BYTES or volume > _BATCH_BYTES):
            return files[:count]
    return files[:_BATCH_FILES]


def _bytes_of(frames: list[Frame]) -> Iterator[bytes]:
    for frame in frames:
        yield frame.head
        if isinstance(frame.content, bytes):
            yield frame.content
            continue
        rest = frame.file.size
        while rest:
            chunk = _read(frame.content, min(rest, _CHUNK_BYTES))
            rest -= len(chunk)
            yield chunk


def _read(file: BinaryIO, length: int) -> bytes:
    try:
        chunk = file.read(length)
    except OSError:
        chunk = b""
    if not chunk:
        raise _Changed
    return chunk


def _texts(choice: Choice) -> Iterator[Any]:
    yield from choice.unmatched
    for row in choice.missed:
        yield row.reason


def _is_named(patterns: list[str], path: str) -> bool:
    return any(matches(pattern, path) for pattern in patterns)


def _count_within(files: list[File], limit: int) -> int:
    """Return how many of the files, smallest first, are within the limits of a job."""
    total = 0
    for count, file in enumerate(files[:_MAX_FILES]):
        total += file.size
        if total > limit:
            return count
    return min(len(files), _MAX_FILES)
