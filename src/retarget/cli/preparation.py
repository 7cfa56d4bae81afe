"""Shows the preparation of a job in few lines; `retarget job logs` has all of it."""

import re
import sys
from collections import deque

from retarget.cli.live_bar import LiveBar
from retarget.cli.terminal import is_terminal, print_status, printable

_STEP = re.compile(r"(environment|image|packages) (\S+(?:, \S+)*): (.*)")
_NOTICE = re.compile(r"(retarget|environment): ")
_DONE = "ready after "
_KEPT_LINES = 15  # of the details, which are shown if the preparation fails


class Preparation:
    """The stream `prepare`: one line when a build begins and one when it is done.

    On a terminal a bar takes the place of the first one, with what the build does at the moment.
    """

    def __init__(self) -> None:
        self._live = is_terminal(sys.stderr)
        self._bar = LiveBar()
        self._step = ""
        self._incomplete = b""
        self._details: deque[str] = deque(maxlen=_KEPT_LINES)
        self._count = 0

    @property
    def is_live(self) -> bool:
        """Whether the bar is on the screen."""
        return self._live and bool(self._step)

    def feed(self, content: bytes) -> None:
        *lines, self._incomplete = (self._incomplete + content).split(b"\n")
        for line in lines:
            self._take(line.decode(errors="backslashreplace").rstrip("\r"))

    def close(self) -> None:
        """End the bar: the script has started, or the job has ended."""
        if self._incomplete:
            self.feed(b"\n")
        self._bar.hide()
        self._step = ""

    def show_details(self, job: str) -> None:
        """Show how the build ended: it failed."""
        self.close()
        if self._count > len(self._details):
            print_status(f"the last {_KEPT_LINES} lines of `retarget job logs {job}`:", "dim")
        for line in self._details:
            print_status(line)
        self._details.clear()

    def _take(self, line: str) -> None:
        step = _STEP.fullmatch(line)
        if step is not None:
            self._show_step(line, is_done=step[3].startswith(_DONE))
        elif _NOTICE.match(line):
            self._print(line)
        else:
            self._count += 1
            self._details.append(line)
            if self.is_live and line.strip():
                self._bar.show(printable(f"{self._step}: {line.strip()}"))

    def _show_step(self, line: str, *, is_done: bool) -> None:
        if is_done:
            self._details.clear()
            self._count = 0
        if self._live and not is_done:
            self._step = line
            self._bar.show(printable(line))
            return
        self._step = "" if is_done else line
        self._print(line)

    def _print(self, line: str) -> None:
        self._bar.hide()
        print_status(line, "dim")
        if self.is_live:
            self._bar.show(printable(self._step))
