"""Signs of life while a folder is read and sent, once that takes longer than a second."""

import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from retarget.cli.terminal import console, is_terminal, say
from retarget.core.units import show_memory

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_PATIENCE = 1.0
_REFRESH = 0.2


class FolderProgress:
    """Tells of one folder: `reading` and `sending` are called as often as one likes."""

    def __init__(self) -> None:
        self._line = _ReadingLine()
        self._bar: _UploadBar | None = None
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
        if self._bar is not None:
            self._bar.stop()

    def reading(self, folder: Path, files: int, size: int) -> None:
        """Tell of the files and bytes read so far."""
        self._folder = folder
        self._line.update(folder, files, size)

    def sending(self, done: int, total: int) -> None:
        """Tell of the bytes sent and to send."""
        self._line.clear()
        if self._bar is None:
            self._bar = _UploadBar(self._folder)
        self._bar.update(done, total)


class _ReadingLine:
    """One line that is renewed on a terminal, and said once elsewhere."""

    def __init__(self) -> None:
        self._live = is_terminal(sys.stderr)
        self._due: float | None = None
        self._shown = False

    def update(self, folder: Path, files: int, size: int) -> None:
        now = time.monotonic()
        if self._due is None:
            self._due = now + _PATIENCE
        if now < self._due or (self._shown and not self._live):
            return
        self._due = now + _REFRESH
        self._shown = True
        text = f"reading {folder}: {files} file{'s' * (files != 1)}, {show_memory(size)}"
        if self._live:
            _write(f"\r\x1b[K{_cut(text)}")
        else:
            say(text)

    def clear(self) -> None:
        if self._shown and self._live:
            _write("\r\x1b[K")
            self._shown = False


class _UploadBar:
    """A bar, on a terminal only."""

    def __init__(self, folder: Path) -> None:
        self._live = is_terminal(sys.stderr)
        self._text = f"sending {folder}"
        self._began = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, total: int) -> None:
        if not self._live or time.monotonic() - self._began < _PATIENCE:
            return
        if self._bar is None:
            self._bar = _begun()
            self._task = self._bar.add_task(self._text, total=total)
        if self._task is not None:
            self._bar.update(self._task, completed=done, total=total)


def _begun() -> "Progress":
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    text = TextColumn("{task.description}", markup=False)
    columns = text, BarColumn(), DownloadColumn(), TransferSpeedColumn()
    bar = Progress(*columns, console=console(err=True), transient=True)
    bar.start()
    return bar


def _cut(text: str) -> str:
    import shutil

    room = shutil.get_terminal_size().columns - 1  # a line that wraps cannot be erased
    return text if len(text) <= room else f"{text[: max(0, room - 31)]}…{text[-30:]}"


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
