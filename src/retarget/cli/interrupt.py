"""Ctrl-C while a job runs: signals become events, so that no byte on its way is lost."""

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
_GLANCE = 0.1  # seconds between two looks at what else has happened


class Choice(Enum):
    DETACH = "detach"
    CANCEL = "cancel"
    WAIT = "wait"
    WITHDRAWN = "withdrawn"  # something else has settled it


class Interrupts:
    """While entered, SIGINT and SIGTERM are put into `events` and interrupt nothing."""

    def __init__(self, events: "SimpleQueue[Any]") -> None:
        self._events = events
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._put)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _put(self, number: int, frame: FrameType | None) -> None:
        self._events.put(signal.Signals(number))  # SimpleQueue.put may be called from anywhere


def ask(name: str, settled: Callable[[], Choice | None]) -> Choice:
    """Ask what to do with the job, until there is an answer that is one.

    `settled` is asked ten times a second whether there is a choice without an answer.
    """
    _write(f"\njob {name}: {_QUESTION}")
    while True:
        choice = settled()
        if choice is not None:
            _write("\r\x1b[K" if _is_erasable(choice) else "\n")
            return choice
        if not select.select([sys.stdin], [], [], _GLANCE)[0]:
            continue
        answer = os.read(sys.stdin.fileno(), 4096)  # a terminal gives one line at a time
        choice = _choice(answer.decode(errors="replace"))
        if choice is not None:
            return choice
        _write(f"please answer d, c or nothing; {_QUESTION}")


def _choice(answer: str) -> Choice | None:
    word = answer.strip().lower()
    if not answer:  # end of input: nobody is there
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
