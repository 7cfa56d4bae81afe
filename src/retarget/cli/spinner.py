"""Shows what a command waits for: a spinner on a terminal, plain lines elsewhere."""

import sys
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from retarget.cli.terminal import console, is_terminal, print_status
from retarget.core.states import JobState

if TYPE_CHECKING:
    from rich.status import Status


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The state of a job, and why it is in that state."""

    state: JobState
    reason: str

    @property
    def text(self) -> str:
        state = "waiting" if self.state is JobState.QUEUED else self.state.value
        if self.reason.startswith(state):
            return self.reason
        return f"{state}: {self.reason}" if self.reason else state


class Spinner:
    def __init__(self) -> None:
        self._live = is_terminal(sys.stderr)
        self._rich_status: Status | None = None
        self._last_line = ""
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.hide()

    def show(self, status: JobStatus) -> None:
        """Show what the job waits for, until `hide`."""
        self._shown = True
        if not self._live:
            self._print_line(status)
        elif self._rich_status is None:
            self._spin(status.text)
        else:
            self._rich_status.update(_escape(status.text))

    def work(self, text: str) -> None:
        """Show what the command does, on a terminal only."""
        if self._live and self._rich_status is None:
            self._spin(text)

    def update(self, status: JobStatus) -> None:
        """Change the shown status, if one is shown."""
        if self._shown:
            self.show(status)

    def hide(self) -> None:
        self._shown = False
        if self._rich_status is not None:
            self._rich_status.stop()
            self._rich_status = None

    def _print_line(self, status: JobStatus) -> None:
        # once the job has left the queue, its log shows what happens
        if status.state is JobState.QUEUED and status.text != self._last_line:
            self._last_line = status.text
            print_status(status.text)

    def _spin(self, text: str) -> None:
        from rich.status import Status

        self._rich_status = Status(_escape(text), console=console(err=True))
        self._rich_status.start()


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
