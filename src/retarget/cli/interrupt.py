"""Ctrl-C while a job runs: signals become events, so no byte of output is lost."""

import os
import select
import signal
import sys
from collections.abc import Callable
from enum import Enum
from queue import SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Self

from retarget.cli.terminal import is_terminal

_QUESTION = "[d]etach, [c]ancel, or Enter to keep waiting? "
_POLL_SECONDS = 0.1


class Choice(Enum):
    DETACH = "detach"
    CANCEL = "cancel"
    WAIT = "wait"
    WITHDRAWN = "withdrawn"  # the question has become pointless


class Interrupts:
    """While entered, SIGINT and SIGTERM are put into `events` and interrupt nothing."""

    def __init__(self, events: "SimpleQueue[Any]") -> None:
        self._events = events
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._put)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _put(self, number: int, frame: FrameType | None) -> None:
        self._events.put(signal.Signals(number))  # SimpleQueue.put is safe in a signal handler


def ask(job: str, poll: Callable[[], Choice | None]) -> Choice:
    """Ask what to do with a job until the answer is valid.

    `poll` is called ten times per second; a choice that it returns ends the question.
    """
    _write(f"\njob {job}: {_QUESTION}")
    while True:
        choice = poll()
        if choice is not None:
            _write("\r\x1b[K" if _is_erasable(choice) else "\n")
            return choice
        if not select.select([sys.stdin], [], [], _POLL_SECONDS)[0]:
            continue
        answer = os.read(sys.stdin.fileno(), 4096)  # a terminal returns one line at a time
        choice = _parse(answer.decode(errors="replace"))
        if choice is not None:
            return choice
        _write(f"please answer d or c, or press Enter; {_QUESTION}")


def _parse(answer: str) -> Choice | None:
    word = answer.strip().lower()
    if not answer:  # end of input: the terminal is gone
        return Choice.DETACH
    if not word:
        return Choice.WAIT
    for choice in (Choice.DETACH, Choice.CANCEL):
        if choice.value.startswith(word):
            return choice
    return None


def _is_erasable(choice: Choice) -> bool:
    return choice is Choice.WITHDRAWN and is_terminal(sys.stderr)


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
