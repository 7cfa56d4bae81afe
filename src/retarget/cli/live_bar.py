"""One live line with a bar on a terminal; elsewhere one line at the start and one at the end."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from retarget.cli.terminal import console, is_terminal, print_status
from retarget.core.units import show_memory
from retarget.runner.durations import show_duration

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_DELAY_SECONDS = 1.0  # a transfer that takes less shows nothing
_BAR_WIDTH = 20


class LiveBar:
    """A bar and a label that are redrawn in place. `hide` removes them."""

    def __init__(self, *, transfer: bool = False) -> None:
        self._transfer = transfer
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def show(self, text: str, done: float = 0, total: float | None = None) -> None:
        """Show a label next to the bar, which moves back and forth if the total is unknown."""
        if self._progress is None or self._task is None:
            self._progress = _new_progress(transfer=self._transfer)
            self._task = self._progress.add_task(text, total=total)
            self._progress.start()
        self._progress.update(self._task, description=text, completed=done, total=total)

    def hide(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = self._task = None


class Transfer:
    """An upload or a download: `Transfer("sending data", "sent data")`."""

    def __init__(self, action: str, result: str) -> None:
        self._live = is_terminal(sys.stderr)
        self._action, self._result = action, result
        self._bar = LiveBar(transfer=True)
        self._started_at = time.monotonic()
        self._done = self._total = 0
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def update(self, done: int, total: int) -> None:
        """Show the bytes so far, at any rate of calls."""
        self._done, self._total = done, total
        if time.monotonic() - self._started_at < _DELAY_SECONDS:
            return
        if self._live:
            self._bar.show(self._action, done, total)
        elif not self._shown:
            print_status(f"{self._action}: {show_memory(total)}")
        self._shown = True

    def stop(self) -> None:
        """Remove the bar; what took a while and is complete gets a last line."""
        self._bar.hide()
        if self._shown and self._done >= self._total:
            seconds = time.monotonic() - self._started_at
            amount = show_memory(self._total)
            print_status(f"{self._result}: {amount} in {show_duration(seconds)}", "dim")


def _new_progress(*, transfer: bool) -> "Progress":
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TransferSpeedColumn,
    )
    from rich.table import Column

    # a narrow screen shortens only the text: a line that wraps cannot be erased
    text = TextColumn(
        "{task.description}",
        markup=False,
        table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
    )
    bar = BarColumn(_BAR_WIDTH)
    figures = (DownloadColumn(), TransferSpeedColumn()) if transfer else (TimeElapsedColumn(),)
    columns = (bar, *figures, text)
    return Progress(*columns, console=console(err=True), transient=True, expand=True)
