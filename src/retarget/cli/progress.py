"""A bar for an upload that takes longer than a second, on a terminal only."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from retarget.cli.terminal import console, is_terminal

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_PATIENCE = 1.0


class UploadBar:
    """Call it with the bytes sent and the bytes to send."""

    def __init__(self) -> None:
        self._live = is_terminal(sys.stderr)
        self._began = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int) -> None:
        if not self._live or time.monotonic() - self._began < _PATIENCE:
            return
        if self._bar is None:
            self._bar = _begun()
            self._task = self._bar.add_task("sending the code", total=total)
        if self._task is not None:
            self._bar.update(self._task, completed=done, total=total)


def _begun() -> "Progress":
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    bar = Progress(*columns, console=console(err=True), transient=True)
    bar.start()
    return bar
