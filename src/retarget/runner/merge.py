"""Merges stdout and stderr of a script into one log, if the script writes two files.

The merged log has whole lines, in the order in which the runner sees the files grow. It follows
from the two files and an index, to which a line is added before anything is copied. So a runner
that takes over continues exactly where the last one was killed.
"""

from __future__ import annotations

import errno
import json
import os

from retarget.runner.files import open_plain

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from retarget.runner.folder import Folder

STDOUT, STDERR, MERGED = "stdout", "stderr", "output"
_SOURCES = (STDOUT, STDERR)
_INDEX = "merge.jsonl"  # lines of [index of the source, bytes]
_CHUNK_BYTES = 1 << 20  # a longer line is split


class Merge:
    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._path = folder.file(_INDEX)
        self._indexed = [0, 0]  # bytes of each source that are in the index
        self._copied = [0, 0]  # bytes of each source that are in the merged log
        self._pending: list[tuple[int, int]] = []  # parts of the index that are not copied yet
        self._load()

    def update(self, *, final: bool) -> None:
        """Add what the script has written since; a last line without an end only if `final`."""
        self._copy()
        while True:
            parts = [(at, self._complete_bytes(at, final=final)) for at in range(len(_SOURCES))]
            parts = [(at, size) for at, size in parts if size]
            if not parts:
                return
            for at, size in parts:
                self._add(at, size)
            self._copy()

    def _complete_bytes(self, at: int, *, final: bool) -> int:
        """Return the size of the whole lines that a source has next."""
        content = self._read(at, self._indexed[at], _CHUNK_BYTES)
        if final or len(content) == _CHUNK_BYTES:
            return len(content)
        return max(content.rfind(b"\n"), content.rfind(b"\r")) + 1

    def _add(self, at: int, size: int) -> None:
        with open(self._path, "ab", 0) as index:
            before = os.fstat(index.fileno()).st_size
            line = (json.dumps([at, size]) + "\n").encode()
            if index.write(line) != len(line):  # the disk is full
                index.truncate(before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
        self._indexed[at] += size
        self._pending.append((at, size))

    def _copy(self) -> None:
        """Bring the merged log up to the end of the index."""
        if not self._pending:
            return
        merged = self._folder.open_stream(MERGED)
        try:
            size = os.fstat(merged).st_size
            while self._pending:
                at, length = self._pending[0]
                missing = sum(self._copied) + length - size
                if missing > 0:
                    content = self._read(at, self._copied[at] + length - missing, missing)
                    written = os.write(merged, content)
                    size += written
                    if written < missing:
                        return  # the disk is full: a later call copies the rest
                self._copied[at] += length
                del self._pending[0]
        finally:
            os.close(merged)

    def _read(self, at: int, offset: int, size: int) -> bytes:
        try:
            with open_plain(os.path.join(self._folder.streams, _SOURCES[at])) as file:
                file.seek(offset)
                return file.read(size)
        except FileNotFoundError:
            return b""

    def _load(self) -> None:
        """Continue an index. What a kill cut short, or the script has damaged, is removed."""
        try:
            index = open(self._path, "r+b")
        except FileNotFoundError:
            return
        merged = _size(os.path.join(self._folder.streams, MERGED))
        with index:
            length = 0
            for line in index:
                part = _parse_part(line)
                if part is None:
                    break
                length += len(line)
                self._indexed[part[0]] += part[1]
                if sum(self._indexed) > merged:
                    self._pending.append(part)
                else:
                    self._copied[part[0]] += part[1]
            index.truncate(length)


def _parse_part(line: bytes) -> tuple[int, int] | None:
    try:
        at, size = json.loads(line)
        if at in (0, 1) and type(size) is int and size > 0 and line.endswith(b"\n"):
            return at, size
    except (ValueError, TypeError, RecursionError):
        pass
    return None


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
