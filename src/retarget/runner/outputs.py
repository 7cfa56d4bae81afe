"""Collects what the script leaves under outputs/ and logs/, and the artifacts it keeps."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator

from retarget.runner.files import open_below
from retarget.runner.folder import Folder
from retarget.runner.server import Server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

_SMALL = 1 << 20
_BATCH = 8 << 20
_MOST = 1000  # files in one request
_DAMAGED = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)


class Collector:
    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._root = os.path.realpath(folder.path)
        self._sent: dict[str, tuple[int, int]] = {}
        self._told: set[str] = set()
        self._given: dict[str, tuple[int, int]] | None = None

    def send(self, server: Server, *, settled: float) -> None:
        """Send every file that is new or changed, and was left alone for `settled` seconds."""
        self._send_all(server, self._fresh(("outputs", "logs"), settled))

    def send_artifacts(self, server: Server) -> None:
        """Send every artifact that is new or was kept again. They are whole from the start."""
        if os.path.isdir(self._full("artifacts")):
            self._send_all(server, self._fresh(("artifacts",), 0.0))

    def paths(self) -> Iterator[str]:
        """Yield where all that is to be kept lies."""
        for top in ("outputs", "artifacts"):
            for path in self.files(top):
                yield self._full(path)

    def note_given(self) -> None:
        """Write down what of outputs/ and logs/ came with the code."""
        paths = [path for top in ("outputs", "logs") for path in self.files(top)]
        if paths:
            seen = {path: os.stat(self._full(path)) for path in paths}
            given = {path: [found.st_size, found.st_mtime_ns] for path, found in seen.items()}
            self._folder.write("given.json", given)

    def gone(self) -> list[str]:
        """List what was sent while the script ran and is no longer there."""
        return [shown(path) for path in self._ever_sent() if not os.path.exists(self._full(path))]

    def _ever_sent(self) -> list[str]:
        """Return what this runner, and those before it that were killed, have sent."""
        try:
            with open(self._folder.file("sent.jsonl"), "rb") as file:
                paths = [_path_in(line) for line in file]
        except FileNotFoundError:
            return []
        return list(dict.fromkeys(path for path in paths if path))

    def files(self, top: str) -> Iterator[str]:
        """Yield the paths of the plain files below one of these folders."""
        for path in (self._folder.work, self._full(top)):
            if os.path.islink(path):
                self._complain(os.path.basename(path), "the script has made it a link")
                return
        todo = [top]
        while todo:
            folders: list[str] = []
            where = todo.pop()
            for entry in self._entries(where):
                path = f"{where}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    folders.append(path)
                elif self._is_ours(entry, path):
                    yield path
            todo.extend(reversed(folders))

    def open(self, path: str) -> BinaryIO:
        """Open one of the files. A link that is put in its place by now leads nowhere."""
        base, full = self._base(path), self._full(path)
        if os.path.islink(full):
            full = os.path.realpath(full)
            if not full.startswith(base + os.sep):
                raise OSError(f"{path} is a link to a file elsewhere")
        return open_below(base, os.path.relpath(full, base))

    def _send_all(self, server: Server, fresh: Iterator[tuple[str, int, int]]) -> None:
        batch: list[tuple[str, int, int]] = []
        volume = 0
        for path, size, changed in fresh:
            if size >= _SMALL:
                self._send(server, [(path, size, changed)])
                continue
            batch.append((path, size, changed))
            volume += size
            if volume >= _BATCH or len(batch) >= _MOST:
                self._send(server, batch)
                batch, volume = [], 0
        if batch:
            self._send(server, batch)

    def _fresh(self, tops: tuple[str, ...], settled: float) -> Iterator[tuple[str, int, int]]:
        for top in tops:
            for path in self.files(top):
                try:
                    found = os.stat(self._full(path))
                except OSError:
                    continue
                version = (found.st_size, found.st_mtime_ns)
                young = settled and time.time() - found.st_mtime < settled
                if not young and version not in (self._sent.get(path), self._before().get(path)):
                    yield (path, *version)

    def _before(self) -> dict[str, tuple[int, int]]:
        """Return what came with the code: it is not an output unless the script changed it."""
        if self._given is None:
            try:
                rows = self._folder.read("given.json")
                self._given = {path: (row[0], row[1]) for path, row in rows.items()}
            except (FileNotFoundError, *_DAMAGED):
                self._given = {}  # better too many outputs than none
        return self._given

    def _send(self, server: Server, batch: list[tuple[str, int, int]]) -> None:
        frames: list[tuple[bytes, str, int]] = []
        for path, size, _ in batch:
            if not os.access(self._full(path), os.R_OK):
                self._complain(path, "it cannot be read")
                continue
            name = shown(path)
            header = json.dumps({"path": name, "size": size}).encode()
            frames.append((len(header).to_bytes(4, "big") + header, path, size))
        length = sum(len(header) + size for header, _, size in frames)
        if frames:
            with open(self._folder.file("sent.jsonl"), "a", encoding="ascii") as file:
                file.write("\n")  # a line that was cut by a kill must not spoil the next one
                file.writelines(json.dumps(path) + "\n" for _, path, _ in frames)
            for reason in server.collect(self._bytes_of(frames), length):
                self._folder.say(f"retarget: a file is not kept: {reason}")
        for path, size, changed in batch:
            self._sent[path] = (size, changed)

    def _bytes_of(self, frames: list[tuple[bytes, str, int]]) -> Iterator[bytes]:
        for header, path, size in frames:
            yield header
            left = size
            with self.open(path) as file:
                while left:
                    chunk = file.read(min(left, _SMALL))
                    if not chunk:
                        raise OSError(f"{path} became shorter while it was read")
                    left -= len(chunk)
                    yield chunk

    def _entries(self, path: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self._full(path)) as found:
                return sorted(found, key=lambda entry: entry.name)
        except FileNotFoundError:
            return []  # the script has removed it
        except OSError as error:
            self._complain(path, f"it cannot be read: {error.strerror}")
            return []

    def _is_ours(self, entry: os.DirEntry[str], path: str) -> bool:
        """Tell whether this is a plain file, or a link to one inside the work folder."""
        if not entry.is_symlink():
            if not entry.is_file(follow_symlinks=False):
                self._complain(path, "it is not a plain file")
                return False
            return True
        try:
            mode = os.stat(entry.path).st_mode
        except OSError:
            return False  # it leads nowhere, or round and round
        if not os.path.realpath(entry.path).startswith(self._base(path) + os.sep):
            self._complain(path, "it is a link to a file elsewhere")
            return False
        return stat.S_ISREG(mode)

    def _complain(self, path: str, why: str) -> None:
        if path not in self._told:
            self._told.add(path)
            self._folder.say(f"retarget: {path} is not kept: {why}")

    def _full(self, path: str) -> str:
        return os.path.join(self._base(path), path)

    def _base(self, path: str) -> str:
        is_artifact = path.split("/", 1)[0] == "artifacts"
        return os.path.join(self._root, "track" if is_artifact else "work")


def _path_in(line: bytes) -> str | None:
    """Return the path in a line of `sent.jsonl`; None if it was cut, or scripts wrote there."""
    try:
        path = json.loads(line)
        shown(path)
    except _DAMAGED:
        return None
    return path


def shown(path: str) -> str:
    """Return a path that JSON can carry: bytes that are not UTF-8 are written as escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
