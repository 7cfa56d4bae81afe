"""Ctrl-C while a job runs: signals become events, so that no byte on its way is lost."""

import signal
import sys
from enum import Enum
from queue import SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Self


class Choice(Enum):
    DETACH = "detach"
    CANCEL = "cancel"
    WAIT = "wait"


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


def ask() -> Choice:
    """Ask what to do with the job. Ctrl-C is an answer too: cancel."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.stderr.write("\n[d]etach, [c]ancel, or Enter to keep waiting? ")
        sys.stderr.flush()
        answer = sys.stdin.readline()
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return Choice.CANCEL
    finally:
        signal.signal(signal.SIGINT, before)
    return _choice(answer)


def _choice(answer: str) -> Choice:
    word = answer.strip().lower()
    if not answer or (word and "detach".startswith(word)):  # end of input: nobody is there
        return Choice.DETACH
    return Choice.CANCEL if word and "cancel".startswith(word) else Choice.WAIT
