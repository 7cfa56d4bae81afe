"""A sign of life on a terminal while nothing else is to be seen; plain lines elsewhere."""

import sys
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from retarget.cli.terminal import console, is_terminal, say
from retarget.core.states import JobState

if TYPE_CHECKING:
    from rich.status import Status


@dataclass(frozen=True, slots=True)
class News:
    """Where a job stands."""

    state: JobState
    reason: str

    @property
    def text(self) -> str:
        word = "waiting" if self.state is JobState.QUEUED else self.state.value
        if self.reason.startswith(word):
            return self.reason
        return f"{word}: {self.reason}" if self.reason else word


class Spinner:
    def __init__(self) -> None:
        self._live = is_terminal(sys.stderr)
        self._status: Status | None = None
        self._said = ""
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

    def show(self, news: News) -> None:
        """Tell what is being waited for, from now on."""
        self._shown = True
        if not self._live:
            self._line(news)
        elif self._status is None:
            self._spin(news.text)
        else:
            self._status.update(_plain(news.text))

    def work(self, text: str) -> None:
        """Tell what is being done, where somebody may be watching."""
        if self._live and self._status is None:
            self._spin(text)

    def update(self, news: News) -> None:
        """Tell something else, if anything is being told."""
        if self._shown:
            self.show(news)

    def hide(self) -> None:
        self._shown = False
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _line(self, news: News) -> None:
        # once it has left the queue, what is done for it is in its log
        if news.state is JobState.QUEUED and news.text != self._said:
            self._said = news.text
            say(news.text)

    def _spin(self, text: str) -> None:
        from rich.status import Status

        self._status = Status(_plain(text), console=console(err=True))
        self._status.start()


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)
