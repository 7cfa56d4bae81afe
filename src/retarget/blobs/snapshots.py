"""Which snapshots are here as a whole, so that one sent before need not be looked at file by file.

A snapshot that is whole has a mark, a file named by its digest. Whoever asks for it renews the mark
alone. A collection takes marks away before the files, and spares what a young mark stands for.
"""

import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from retarget.blobs.folder import Blobs
from retarget.core.errors import NotFound
from retarget.core.snapshots import decode, is_digest


class Snapshots:
    def __init__(self, root: Path, blobs: Blobs) -> None:
        self._root, self._blobs = root, blobs
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = threading.Lock()
        self._collections = 0  # how many have begun
        self._under_way = 0

    def is_whole(self, digest: str, *, now: float) -> bool:
        """Tell whether a snapshot is here with all its files; it counts as new then."""
        with self._lock:
            return self._renew(digest, now)

    def missing(self, digest: str, files: Callable[[], Iterable[str]], *, now: float) -> list[str]:
        """Return the files of a snapshot that are not here. If all are, it gets its mark."""
        with self._lock:
            if self._renew(digest, now):
                return []
            begun = self._collections
        found = self._blobs.missing(files(), now=now)
        with self._lock:  # a collection meanwhile may have taken what was there
            if not found and begun == self._collections and not self._under_way:
                self._mark(digest).touch(mode=0o600)
        return found

    def collect(self, wanted: set[str], *, before: float) -> tuple[int, int]:
        """Remove blobs that nothing refers to and that were not asked for since `before`."""
        with self._lock:
            self._collections += 1
            self._under_way += 1
            young = [mark.name for mark in self._root.iterdir() if not _gone(mark, wanted, before)]
        try:
            spared = set(wanted)
            for digest in young:
                spared |= {digest, *self._files_of(digest)}
            return self._blobs.collect(spared, before=before)
        finally:
            with self._lock:
                self._under_way -= 1

    def _renew(self, digest: str, now: float) -> bool:
        try:
            os.utime(self._mark(digest), (now, now))
        except FileNotFoundError:
            return False
        return True

    def _mark(self, digest: str) -> Path:
        return self._root / (digest if is_digest(digest) else "none")

    def _files_of(self, digest: str) -> set[str]:
        try:
            return decode(self._blobs.path(digest).read_bytes()).digests()
        except NotFound:
            return set()


def _gone(mark: Path, wanted: set[str], before: float) -> bool:
    """Take an old mark away that no job needs; tell if it is."""
    if mark.name in wanted or mark.stat().st_mtime >= before:
        return False
    mark.unlink()
    return True
