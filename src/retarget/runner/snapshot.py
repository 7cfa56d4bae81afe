"""The user's code: taken from the blobs on this machine, or fetched, into the work folder."""

from __future__ import annotations

import json
import os
import time

from retarget.runner.errors import Unprepared
from retarget.runner.folder import Folder

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from typing import Any

    from retarget.runner.server import Server

_SMALL = 1 << 20
_BATCH = 8 << 20
_UNUSED = 30 * 86400.0  # seconds after which a blob that no launch has read is removed
_DAILY = 86400.0


class Blobs:
    """Blobs on this machine: the node's cache, and folders that others keep."""

    def __init__(self, cache: str, others: list[str], folder: Folder) -> None:
        self._cache = cache
        self._folders = [cache, *others]
        self._folder = folder
        self._part = part_of(cache, folder)
        self._connected: Server | None = None

    def find(self, digest: str) -> str | None:
        for folder in self._folders:
            path = os.path.join(folder, digest[:2], digest)
            if os.path.exists(path):
                return path
        return None

    def fetch(self, wanted: dict[str, int]) -> None:
        """Bring blobs that are not here, small ones many at a time. `wanted`: digest to size."""
        missing = {digest: size for digest, size in wanted.items() if self.find(digest) is None}
        batch: list[str] = []
        volume = 0
        for digest, size in missing.items():
            if size >= _SMALL:
                self._server.download(digest, self._place(digest), self._part)
                continue
            batch.append(digest)
            volume += size
            if volume >= _BATCH or len(batch) >= 2000:
                self._fetch_batch(batch)
                batch, volume = [], 0
        if batch:
            self._fetch_batch(batch)

    @property
    def _server(self) -> Server:
        """Connect, only when something is really missing here: the import alone takes time."""
        if self._connected is None:
            from retarget.runner.server import Server

            self._connected = Server(self._folder)
        return self._connected

    def _fetch_batch(self, digests: list[str]) -> None:
        for digest, content in self._server.download_many(digests):
            path = self._place(digest)
            with open(self._part, "wb") as file:
                file.write(content)
            os.rename(self._part, path)

    def _place(self, digest: str) -> str:
        folder = os.path.join(self._cache, digest[:2])
        os.makedirs(folder, exist_ok=True)
        return os.path.join(folder, digest)


def part_of(cache: str, folder: Folder) -> str:
    """Return the one file in which a launch has what is on its way, whichever runner fetches it."""
    return os.path.join(cache, f"{os.path.basename(folder.path)}.part")


def trim(cache: str) -> None:
    """Remove blobs that no launch has used for a month. Looks once a day, however often called."""
    now, mark = time.time(), os.path.join(cache, "trimmed")
    try:
        if now - os.stat(mark).st_mtime < _DAILY:
            return
    except FileNotFoundError:
        pass
    if not os.path.isdir(cache):
        return
    with open(mark, "w", encoding="ascii"):
        pass
    os.utime(mark)
    for folder, _, names in os.walk(cache):
        for path in (os.path.join(folder, name) for name in names):
            seen = os.stat(path)
            if now - max(seen.st_atime, seen.st_mtime) > _UNUSED:
                os.unlink(path)


def lay_out(digest: str, work: str, blobs: Blobs) -> None:
    """Put the snapshot into `work`, which is empty."""
    blobs.fetch({digest: 0})
    entries = _entries(_found(blobs, digest))
    blobs.fetch({entry["digest"]: entry["size"] for entry in entries if "digest" in entry})
    made: set[str] = set()
    for entry in entries:
        if "link" not in entry:
            target = _target(work, entry["path"], made)
            try:
                _copy(blobs.find(entry["digest"]) or "", target, entry)
            except FileNotFoundError:  # it was trimmed at this moment, or could not be had
                blobs.fetch({entry["digest"]: entry["size"]})
                _copy(_found(blobs, entry["digest"]), target, entry)
    # Links come last, so that no file is ever written through one.
    for entry in entries:
        if "link" in entry:
            os.symlink(entry["link"], _target(work, entry["path"], made))


def _entries(path: str) -> list[dict[str, Any]]:
    """Read a manifest. The server has checked it; what a bad disk made of it here, it has not."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)["entries"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Unprepared(f"the list of the code's files is damaged; remove {path}") from None


def _found(blobs: Blobs, digest: str) -> str:
    path = blobs.find(digest)
    if path is None:
        raise Unprepared(f"the server no longer has a part of the code ({digest[:12]}…)")
    return path


def _target(work: str, path: str, made: set[str]) -> str:
    parts = path.split("/")
    if path.startswith("/") or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise Unprepared(f"the snapshot names {path!r}, which is outside of its folder")
    folder = os.path.join(work, *parts[:-1])
    if folder not in made:
        os.makedirs(folder, exist_ok=True)
        made.add(folder)
    return os.path.join(folder, parts[-1])


def _copy(source: str, target: str, entry: dict[str, Any]) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    writing = os.open(target, flags, 0o755 if entry.get("executable") else 0o644)
    try:
        copied = 0
        while copied < entry["size"]:
            count = os.sendfile(writing, reading, copied, min(entry["size"] - copied, 1 << 30))
            if count == 0:
                raise Unprepared(f"the blob of {entry['path']!r} is cut short")
            copied += count
    finally:
        os.close(reading)
        os.close(writing)
