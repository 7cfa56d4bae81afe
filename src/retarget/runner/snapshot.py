"""Lays out the user's code in the work folder, from blobs on this host or from the server."""

from __future__ import annotations

import json
import os
import time

from retarget.runner.errors import Unprepared
from retarget.runner.folder import Folder
from retarget.runner.processes import boot

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from typing import Any

    from retarget.runner.server import Server

_SMALL_BYTES = 1 << 20  # smaller blobs are downloaded in batches
_BATCH_BYTES = 8 << 20
_BATCH_BLOBS = 2000
_UNUSED_SECONDS = 30 * 86400.0  # a blob that no launch has read for this long is removed
_TRIM_SECONDS = 86400.0
_YOUNG_SECONDS = 120.0


class Blobs:
    """The blobs on this host: the node's cache, and read-only folders of others."""

    def __init__(self, cache: str, others: list[str], folder: Folder) -> None:
        self._cache = cache
        self._folders = [cache, *others]
        self._folder = folder
        self._part = part_of(cache, folder)
        self._connected: Server | None = None
        self._damaged: set[str] = set()  # in folders of others

    def find(self, digest: str, size: int | None = None) -> str | None:
        """Return the path of a blob; None if it is not here. One of another size is damaged."""
        for folder in self._folders:
            path = os.path.join(folder, digest[:2], digest)
            try:
                status = os.stat(path)
            except FileNotFoundError:
                continue
            if path not in self._damaged and (size is None or status.st_size == size):
                return path
            self.discard(path)
        return None

    def discard(self, path: str) -> None:
        """Do not use this file again. The server has its own way to deal with a damaged one."""
        self._damaged.add(path)
        if path.startswith(self._cache + os.sep):
            self._damaged.discard(path)
            _remove(path)

    def fetch(self, sizes: dict[str, int | None]) -> None:
        """Download missing blobs, small ones in batches. `sizes`: by digest; None: not known."""
        missing = {
            digest: size or 0 for digest, size in sizes.items() if self.find(digest, size) is None
        }
        batch: list[str] = []
        volume = 0
        for digest, size in missing.items():
            if size >= _SMALL_BYTES:
                self._server.download(digest, self._cache_path(digest), self._part)
                continue
            batch.append(digest)
            volume += size
            if volume >= _BATCH_BYTES or len(batch) >= _BATCH_BLOBS:
                self._fetch_batch(batch)
                batch, volume = [], 0
        if batch:
            self._fetch_batch(batch)

    @property
    def _server(self) -> Server:
        """Connect only when a blob is missing: the import alone takes time."""
        if self._connected is None:
            from retarget.runner.server import Server

            self._connected = Server(self._folder)
        return self._connected

    def _fetch_batch(self, digests: list[str]) -> None:
        for digest, content in self._server.download_many(digests):
            path = self._cache_path(digest)
            with open(self._part, "wb") as file:
                file.write(content)
            os.rename(self._part, path)

    def _cache_path(self, digest: str) -> str:
        folder = os.path.join(self._cache, digest[:2])
        os.makedirs(folder, exist_ok=True)
        return os.path.join(folder, digest)


def part_of(cache: str, folder: Folder) -> str:
    """Return the file of a launch's partial download, the same for all its runners."""
    return os.path.join(cache, f"{os.path.basename(folder.path)}.part")


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass  # another launch was faster


def distrust_young(cache: str) -> None:
    """After a boot, remove the blobs that the last one may have lost bytes of.

    The system writes every file to disk within a minute, so a power cut damages only the youngest.
    """
    mark = os.path.join(cache, "boot")
    try:
        with open(mark, encoding="ascii") as file:
            if file.read() == boot():
                return
    except (FileNotFoundError, ValueError):
        pass
    os.makedirs(cache, exist_ok=True)
    walk = [os.path.join(folder, name) for folder, _, names in os.walk(cache) for name in names]
    times = {path: os.stat(path).st_mtime for path in walk}
    newest = max(times.values(), default=0.0)
    for path in (path for path, at in times.items() if newest - at < _YOUNG_SECONDS):
        _remove(path)
    with open(mark, "w", encoding="ascii") as file:
        file.write(boot())


def trim(cache: str) -> None:
    """Remove blobs that no launch has used for a month. Does so once a day at most."""
    now, mark = time.time(), os.path.join(cache, "trimmed")
    try:
        if now - os.stat(mark).st_mtime < _TRIM_SECONDS:
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
            status = os.stat(path)
            if now - max(status.st_atime, status.st_mtime) > _UNUSED_SECONDS:
                os.unlink(path)


def lay_out(digest: str, work: str, blobs: Blobs) -> None:
    """Write the files of a snapshot into `work`, which is empty."""
    entries = _fetch_manifest(digest, blobs)
    blobs.fetch({entry["digest"]: entry["size"] for entry in entries if "digest" in entry})
    folders: set[str] = set()
    for entry in entries:
        if "link" not in entry:
            destination = _destination(work, entry["path"], folders)
            try:
                _copy(blobs.find(entry["digest"]) or "", destination, entry)
            except FileNotFoundError:  # it has just been trimmed, or was not downloaded
                blobs.fetch({entry["digest"]: entry["size"]})
                _copy(_find(blobs, entry["digest"]), destination, entry)
    # Links come last, so that no file is written through one.
    for entry in entries:
        if "link" in entry:
            os.symlink(entry["link"], _destination(work, entry["path"], folders))


def _fetch_manifest(digest: str, blobs: Blobs) -> list[dict[str, Any]]:
    """Return the entries of a manifest. One that is damaged here is downloaded again, once."""
    blobs.fetch({digest: None})
    path = _find(blobs, digest)
    try:
        return read_manifest(path)
    except Unprepared:
        blobs.discard(path)
        blobs.fetch({digest: None})
        return read_manifest(_find(blobs, digest))


def read_entries(digest: str, blobs: Blobs) -> list[dict[str, Any]]:
    """Return the entries of a snapshot that has been laid out."""
    return read_manifest(_find(blobs, digest))


def read_manifest(path: str) -> list[dict[str, Any]]:
    """Return the entries of a manifest. The server has checked it, but a bad disk may damage it."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)["entries"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Unprepared(
            f"the manifest of the code is damaged ({path}); submit the job again to send it again"
        ) from None


def _find(blobs: Blobs, digest: str) -> str:
    path = blobs.find(digest)
    if path is None:
        raise Unprepared(f"part of the code is missing on the server ({digest[:12]}…)")
    return path


def _destination(work: str, path: str, folders: set[str]) -> str:
    """Return the full path of a file, in a folder that exists. `folders`: those made so far."""
    names = path.split("/")
    if path.startswith("/") or "\0" in path or any(name in ("", ".", "..") for name in names):
        raise Unprepared(f"the snapshot names {path!r}, which is outside of its folder")
    folder = os.path.join(work, *names[:-1])
    if folder not in folders:
        os.makedirs(folder, exist_ok=True)
        folders.add(folder)
    return os.path.join(folder, names[-1])


def _copy(source: str, destination: str, entry: dict[str, Any]) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    writing = os.open(destination, flags, 0o755 if entry.get("executable") else 0o644)
    try:
        copied = 0
        while copied < entry["size"]:
            count = os.sendfile(writing, reading, copied, min(entry["size"] - copied, 1 << 30))
            if count == 0:
                raise Unprepared(
                    f"the blob of {entry['path']!r} is cut short; submit the job again"
                )
            copied += count
    finally:
        os.close(reading)
        os.close(writing)
