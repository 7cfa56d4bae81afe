"""Shows progress while a folder is read and sent, if that takes longer than a second."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from retarget.cli.live_bar import Transfer
from retarget.cli.terminal import cut_middle, is_terminal, print_status
from retarget.core.units import show_memory

_DELAY_SECONDS = 1.0
_REFRESH_SECONDS = 0.2


class FolderProgress:
    """The progress of one folder; `reading` and `sending` may be called at any rate."""

    def __init__(self) -> None:
        self._line = _ReadingLine()
        self._transfer: Transfer | None = None
        self._folder = Path()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._line.clear()
        if self._transfer is not None:
            self._transfer.stop()

    def reading(self, folder: Path, files: int, size: int) -> None:
        """Report the files and bytes read so far."""
        self._folder = folder
        self._line.update(folder, files, size)

    def report(self, show: Callable[..., None]) -> Callable[..., None]:
        """Return `show`, called on a clear line."""

        def shown(*arguments: object) -> None:
            self._line.clear()
            show(*arguments)

        return shown

    def sending(self, sent: int, total: int) -> None:
        """Report the bytes sent so far, and their total."""
        self._line.clear()
        if self._transfer is None:
            self._transfer = Transfer(f"sending {self._folder}", f"sent {self._folder}")
        self._transfer.update(sent, total)


class _ReadingLine:
    """One line: redrawn on a terminal, printed once elsewhere."""

    def __init__(self) -> None:
        self._live = is_terminal(sys.stderr)
        self._next_update_at: float | None = None
        self._shown = False

    def update(self, folder: Path, files: int, size: int) -> None:
        now = time.monotonic()
        if self._next_update_at is None:
            self._next_update_at = now + _DELAY_SECONDS
        if now < self._next_update_at or (self._shown and not self._live):
            return
        self._next_update_at = now + _REFRESH_SECONDS
        self._shown = True
        text = f"reading {folder}: {files} file{'s' * (files != 1)}, {show_memory(size)}"
        if self._live:
            _write(f"\r\x1b[K{_fit(text)}")
        else:
            print_status(text)

    def clear(self) -> None:
        if self._shown and self._live:
            _write("\r\x1b[K")
            self._shown = False


def _fit(text: str) -> str:
    import shutil

    # a line that wraps cannot be erased
    return cut_middle(text, shutil.get_terminal_size().columns - 1)


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
