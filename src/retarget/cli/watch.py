"""Showing a job while it runs: its log byte by byte, why it waits, and how it ended."""

import copy
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from retarget.cli.interrupt import Choice, ask
from retarget.cli.spinner import News, Spinner
from retarget.cli.terminal import joined, say, write_bytes
from retarget.core.errors import Conflict, RetargetError
from retarget.core.states import JobState
from retarget.core.units import show_duration
from retarget.sdk.follow import labelled
from retarget.sdk.jobs import Job

_PAUSE = 0.3  # seconds of silence after which the user is told what is being waited for
_LOOK = 2.0  # seconds between two looks at a job that is silent
_AHEAD = 64  # pieces of log read ahead of the terminal
_STOPPED, _ENDED = 128 + signal.SIGINT, 128 + signal.SIGTERM


@dataclass(frozen=True, slots=True)
class Arrived:
    stream: str
    piece: bytes


@dataclass(frozen=True, slots=True)
class Changed:
    news: News
    retried: bool


@dataclass(frozen=True, slots=True)
class Done:
    error: BaseException | None = None


Event = Arrived | Changed | Done | signal.Signals
Events = SimpleQueue[Event]


def watch(job: Job, events: Events) -> int:
    """Show `job` until it is final or the user leaves it; return the exit code for the shell."""
    room = threading.Semaphore(_AHEAD)
    threading.Thread(target=_follow, args=(job, events, room), daemon=True).start()
    with Spinner() as spinner:
        return _Screen(job, spinner, room).show(events)


def describe_end(job: Job) -> str:
    """Say in one line how a final job ended."""
    view = job.to_json()
    began = view["started"] or view["created"]
    took = show_duration(max(0.0, (view["ended"] or view["changed"]) - began))
    if job.state is JobState.SUCCEEDED:
        count = sum(each.path.startswith("outputs/") for each in job.outputs())
        left = f", {count} output{'s' * (count != 1)}" if count else ""
        return f"{job.name} succeeded in {took}{left}"
    verb = "was canceled" if job.state is JobState.CANCELED else "failed"
    why = f": {job.reason}" if job.reason not in ("", job.state.value) else ""
    return f"{job.name} {verb} after {took}{why}"


def _follow(job: Job, events: Events, room: threading.Semaphore) -> None:
    def changed(now: Job) -> None:
        retried = now.state is JobState.QUEUED and now.to_json()["attempt"] > 0
        events.put(Changed(News(now.state, now.reason), retried))

    try:
        for stream, piece in labelled(job.follow(on_change=changed)):
            room.acquire()
            events.put(Arrived(stream, piece))
        events.put(Done())
    except BaseException as error:  # noqa: BLE001  raised again by the thread that shows it
        events.put(Done(error))


class _Screen:
    def __init__(self, job: Job, spinner: Spinner, room: threading.Semaphore) -> None:
        self._job = job
        self._spinner = spinner
        self._room = room
        self._running = False
        self._mid_line = False
        self._canceling = False
        self._held: deque[Event] = deque()  # what came while a question was open

    def show(self, events: Events) -> int:
        while True:
            event = self._next(events)
            if isinstance(event, Arrived):
                self._write(event)
            elif isinstance(event, Changed):
                self._note(event)
            elif isinstance(event, Done):
                return self._end(event)
            elif (code := self._interrupted(event, events)) is not None:
                return code

    def _next(self, events: Events) -> Event:
        if self._held:
            return self._held.popleft()
        if self._running:
            return events.get()
        pause = _PAUSE
        while True:
            try:
                return events.get(timeout=pause)
            except Empty:
                self._tell_what_it_does()
                pause = _LOOK

    def _tell_what_it_does(self) -> None:
        now = self._look()
        self._spinner.show(News(now.state, now.reason))

    def _look(self) -> Job:
        # who follows a silent log does not see the state move
        now = copy.copy(self._job)
        with suppress(RetargetError):
            now.refresh()
        return now

    def _write(self, event: Arrived) -> None:
        self._spinner.hide()
        self._room.release()
        self._running = event.stream != "prepare"
        write_bytes(event.piece, to=sys.stdout if self._running else sys.stderr)
        self._mid_line = not event.piece.endswith(b"\n")

    def _note(self, event: Changed) -> None:
        self._running = self._running and event.news.state is not JobState.QUEUED
        if event.retried:
            self._say(event.news.reason, "yellow")
        elif not self._running:
            self._spinner.update(event.news)

    def _end(self, event: Done) -> int:
        self._spinner.hide()
        if event.error is not None:
            raise event.error
        style = "dim" if self._job.state is JobState.SUCCEEDED else "red"
        text = describe_end(self._job)
        self._say(joined(text, f"see `retarget job show {self._job.name}`"), style)
        code = self._job.exit_code
        return 1 if code is None else code

    def _interrupted(self, number: signal.Signals, events: Events) -> int | None:
        """Return the exit code if watching ends here."""
        self._spinner.hide()
        if number == signal.SIGTERM:
            return self._detach(_ENDED)
        if self._canceling:
            self._say(f"{self._job.name} is being canceled; no longer watching it", "yellow")
            return _STOPPED
        choice = Choice.CANCEL
        if sys.stdin.isatty():
            choice = ask(self._job.name, self._settled(events))
            self._mid_line = False
        if choice is Choice.DETACH:
            return self._detach(0)
        if choice is Choice.CANCEL:
            self._cancel()
        return None

    def _settled(self, events: Events) -> Callable[[], Choice | None]:
        """Return who tells, while a question is open, that it needs no answer any more."""
        looks_at = time.monotonic() + _LOOK

        def settled() -> Choice | None:
            nonlocal looks_at
            while not events.empty():
                event = events.get()
                if event == signal.SIGINT:
                    return Choice.CANCEL
                self._held.append(event)
                if isinstance(event, Done | signal.Signals):
                    return Choice.WITHDRAWN
            if time.monotonic() < looks_at:
                return None
            looks_at = time.monotonic() + _LOOK
            # a log that is far behind keeps the follower from telling of the end
            return Choice.WITHDRAWN if self._look().state.is_final else None

        return settled

    def _detach(self, code: int) -> int:
        name = self._job.name
        self._say(f"{name} goes on; watch it with `retarget job logs {name} -f`", "dim")
        return code

    def _cancel(self) -> None:
        self._canceling = True
        self._say(f"canceling {self._job.name}; Ctrl-C again stops watching it", "yellow")
        with suppress(Conflict):  # it has just ended by itself
            copy.copy(self._job).cancel()  # the follower alone moves ours on

    def _say(self, text: str, style: str) -> None:
        if self._mid_line and sys.stdout.isatty():
            sys.stderr.write("\n")
        self._mid_line = False
        say(text, style)
