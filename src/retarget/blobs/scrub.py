"""Reads all blobs from time to time, slowly, to find damage before a job does."""

import threading
from contextlib import suppress

from retarget.blobs.folder import Blobs
from retarget.blobs.snapshots import Snapshots

_DELAY_SECONDS = 600.0  # after the start of the server
_PAUSE_SECONDS = 7 * 86400.0  # between two rounds
_BYTES_PER_SECOND = 20 << 20


class Scrub:
    def __init__(self, blobs: Blobs, snapshots: Snapshots) -> None:
        self._blobs, self._snapshots = blobs, snapshots
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scrub", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=10)

    def round(self) -> list[str]:
        """Verify every blob. Return the digests of damaged ones, moved to `damaged/`."""
        damaged: list[str] = []
        for digest in self._blobs.digests():
            size = self._size(digest)
            if not self._blobs.verify(digest):
                damaged.append(digest)
            if self._stopping.wait(size / _BYTES_PER_SECOND):
                break
        if damaged:
            self._snapshots.clear_marks()
        return damaged

    def _run(self) -> None:
        pause = _DELAY_SECONDS
        while not self._stopping.wait(pause):
            with suppress(OSError):  # a disk with errors: the next round tries again
                self.round()
            pause = _PAUSE_SECONDS

    def _size(self, digest: str) -> int:
        with suppress(OSError):
            return self._blobs.path(digest).stat().st_size
        return 0
