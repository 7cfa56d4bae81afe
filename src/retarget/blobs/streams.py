"""The streams of attempts: bytes that only grow, and are taken in by offset."""

import os
import shutil
import threading
from pathlib import Path
from urllib.parse import quote, unquote

from retarget.blobs.folder import storage_errors
from retarget.core.errors import Invalid

_LONGEST = 200


class Streams:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._locks = [threading.Lock() for _ in range(64)]
        root.mkdir(parents=True, exist_ok=True, mode=0o700)

    def append(self, attempt: str, stream: str, offset: int, content: bytes) -> int:
        """Take in bytes at `offset` and return the stream's size.

        What is here already is not written twice; what would leave a gap is not written at all.
        """
        path = self.path(attempt, stream)
        with self._locks[hash(path) % len(self._locks)], storage_errors():
            path.parent.mkdir(exist_ok=True, mode=0o700)
            with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
                size = file.seek(0, os.SEEK_END)
                if offset <= size < offset + len(content):
                    file.write(content[size - offset :])
                    return offset + len(content)
        return size

    def size(self, attempt: str, stream: str) -> int:
        try:
            return self.path(attempt, stream).stat().st_size
        except FileNotFoundError:
            return 0

    def names(self, attempt: str) -> list[str]:
        folder = self.root / attempt
        return sorted(unquote(path.name) for path in folder.iterdir()) if folder.exists() else []

    def read(self, attempt: str, stream: str, offset: int, most: int) -> bytes:
        try:
            with self.path(attempt, stream).open("rb") as file:
                # looked at first: no disk lets one go to every offset there is
                if offset >= file.seek(0, os.SEEK_END):
                    return b""
                file.seek(offset)
                return file.read(most)
        except FileNotFoundError:
            return b""

    def remove(self, attempt: str) -> None:
        shutil.rmtree(self.root / attempt, ignore_errors=True)

    def path(self, attempt: str, stream: str) -> Path:
        # Quoted whole, a name is one file of this folder, whatever is in it.
        name = quote(stream, safe="")
        if not attempt.isalnum() or name in ("", ".", "..") or len(name) > _LONGEST:
            raise Invalid(f"stream: {stream[:80]!r} is not the name of a stream", field="stream")
        return self.root / attempt / name
