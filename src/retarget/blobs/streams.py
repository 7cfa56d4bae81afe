"""The streams of attempts: files that only grow, written and read by offset."""

import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, unquote

from retarget.blobs.folder import storage_errors
from retarget.core.errors import Invalid

_MAX_NAME_LENGTH = 200  # characters, quoted
_TIMES = ".times"  # after the name of an attempt's folder: lines of size and time, by stream


Mark = tuple[int, float]  # the size of a stream, and when it had this size


class Streams:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._locks = [threading.Lock() for _ in range(64)]
        root.mkdir(parents=True, exist_ok=True, mode=0o700)

    def append(
        self, attempt: str, stream: str, offset: int, content: bytes, marks: Sequence[Mark] = ()
    ) -> int:
        """Write bytes at `offset` and return the size of the stream.

        Bytes that are stored already are not written again. Bytes beyond the end, which would
        leave a gap, are not written at all.
        """
        path = self.path(attempt, stream)
        with self._locks[hash(path) % len(self._locks)], storage_errors():
            path.parent.mkdir(exist_ok=True, mode=0o700)
            with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
                size = file.seek(0, os.SEEK_END)
                if offset <= size < offset + len(content):
                    # first the times: whoever sees a line finds when it was written
                    self._add_marks(path, [mark for mark in marks if mark[0] > size])
                    file.write(content[size - offset :])
                    return offset + len(content)
        return size

    def marks(self, attempt: str, stream: str) -> list[Mark]:
        """Return the known sizes of a stream over time, in order."""
        try:
            lines = _times_of(self.path(attempt, stream)).read_text("ascii").splitlines()
        except FileNotFoundError:
            return []
        marks: dict[int, float] = {}
        for line in lines:
            size, _, at = line.partition(" ")
            if size.isdigit() and at:
                marks[int(size)] = float(at)
        return sorted(marks.items())

    def _add_marks(self, path: Path, marks: Sequence[Mark]) -> None:
        if marks:
            times = _times_of(path)
            times.parent.mkdir(exist_ok=True, mode=0o700)
            with open(os.open(times, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
                lines = (f"\n{size} {at:.3f}" for size, at in marks)  # a torn line ends here
                file.write("".join(lines).encode())

    def size(self, attempt: str, stream: str) -> int:
        try:
            return self.path(attempt, stream).stat().st_size
        except FileNotFoundError:
            return 0

    def names(self, attempt: str) -> list[str]:
        folder = self.root / attempt
        return sorted(unquote(path.name) for path in folder.iterdir()) if folder.exists() else []

    def read(self, attempt: str, stream: str, offset: int, max_bytes: int) -> bytes:
        try:
            with self.path(attempt, stream).open("rb") as file:
                # check the size first: no disk can seek to every possible offset
                if offset >= file.seek(0, os.SEEK_END):
                    return b""
                file.seek(offset)
                return file.read(max_bytes)
        except FileNotFoundError:
            return b""

    def remove(self, attempt: str) -> None:
        for name in (attempt, f"{attempt}{_TIMES}"):
            shutil.rmtree(self.root / name, ignore_errors=True)

    def path(self, attempt: str, stream: str) -> Path:
        # Fully quoted, every name is a single file in this folder.
        name = quote(stream, safe="")
        if not attempt.isalnum() or name in ("", ".", "..") or len(name) > _MAX_NAME_LENGTH:
            raise Invalid(f"stream: {stream[:80]!r} is not a stream name", field="stream")
        return self.root / attempt / name


def _times_of(path: Path) -> Path:
    return path.parent.with_name(f"{path.parent.name}{_TIMES}") / path.name
