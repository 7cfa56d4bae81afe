"""Remember which snapshots are complete, so that their files need not be checked one by one.

A complete snapshot has a mark: an empty file named by its digest. A request for the snapshot renews
only the mark. Pruning removes old marks before files, and keeps the files of recent marks.
"""

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from retarget.blobs.folder import Blobs
from retarget.core.errors import NotFound
from retarget.core.snapshots import decode, is_digest


class Snapshots:
    def __init__(self, root: Path, blobs: Blobs) -> None:
        self._root, self._blobs = root, blobs
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = threading.Lock()
        self._prunes_started = 0  # how many have ever started
        self._prunes_running = 0

    def is_complete(self, digest: str, *, now: float) -> bool:
        """Return whether all files of a snapshot are stored. If so, the snapshot counts as new."""
        with self._lock:
            return self._renew(digest, now)

    def missing(
        self, digest: str, files: Callable[[], Mapping[str, int]], *, now: float
    ) -> list[str]:
        """Return the missing files of a snapshot. If there are none, mark it as complete.

        `files` returns their sizes by digest.
        """
        with self._lock:
            if self._renew(digest, now):
                return []
            prunes_before = self._prunes_started
        sizes = files()
        missing = self._blobs.missing(sizes, now=now, sizes=sizes)
        with self._lock:  # a prune meanwhile may have removed files
            if not missing and prunes_before == self._prunes_started and not self._prunes_running:
                self._mark(digest).touch(mode=0o600)
        return missing

    def clear_marks(self) -> None:
        """Check every file again before a snapshot counts as complete."""
        with self._lock:
            for mark in self._root.iterdir():
                mark.unlink(missing_ok=True)

    def prune(self, referenced: set[str], *, before: float) -> tuple[int, int]:
        """Remove blobs that nothing refers to and that nobody asked for since `before`.

        Return how many were removed, and their size in bytes.
        """
        with self._lock:
            self._prunes_started += 1
            self._prunes_running += 1
            recent = [
                mark.name
                for mark in self._root.iterdir()
                if not _remove_if_old(mark, referenced, before)
            ]
        try:
            kept = set(referenced)
            for digest in recent:
                kept |= {digest, *self._files_of(digest)}
            return self._blobs.prune(kept, before=before)
        finally:
            with self._lock:
                self._prunes_running -= 1

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


def _remove_if_old(mark: Path, referenced: set[str], before: float) -> bool:
    """Remove an old mark that nothing refers to. Return whether it was removed."""
    if mark.name in referenced or mark.stat().st_mtime >= before:
        return False
    mark.unlink()
    return True
