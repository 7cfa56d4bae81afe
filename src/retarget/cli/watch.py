"""Shows a job while it runs: its log byte by byte, why it waits, and how it ended."""

import copy
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TextIO

from retarget.cli.endings import print_ending
from retarget.cli.interrupt import Choice, Interrupts, ask
from retarget.cli.log_writer import LogWriter
from retarget.cli.preparation import Preparation
from retarget.cli.spinner import JobStatus, Spinner
from retarget.cli.terminal import print_result, print_status, write_json
from retarget.core.errors import Conflict, RetargetError
from retarget.core.states import JobState
from retarget.sdk.follow import label_ranks
from retarget.sdk.job import Job

_QUIET_SECONDS = 0.3  # silence after which the user sees what the job waits for
_POLL_SECONDS = 2.0  # between two requests for the state of a silent job
_HELD_SECONDS = 0.2  # that the terminal waits for the end of a path
_READ_AHEAD = 64  # pieces of log that are read before the terminal has shown them
_EXIT_SIGINT, _EXIT_SIGTERM = 128 + signal.SIGINT, 128 + signal.SIGTERM


@dataclass(frozen=True, slots=True)
class LogPiece:
    stream: str
    content: bytes


@dataclass(frozen=True, slots=True)
class StateChange:
    status: JobStatus
    is_retry: bool


@dataclass(frozen=True, slots=True)
class FollowerDone:
    error: BaseException | None = None


Event = LogPiece | StateChange | FollowerDone | signal.Signals
Events = SimpleQueue[Event]


def submit_and_watch(
    submit: Callable[[], Job],
    *,
    detach: bool,
    as_json: bool = False,
    code: Path | None = None,
    is_build: bool = False,
) -> int:
    """Submit a job and watch it, or with `detach` print its name or JSON; return the exit code.

    `code` is the folder that was sent: a terminal shows the job's paths as paths in it. The result
    of a job that only builds is shown only if it failed.
    """
    events: Events = SimpleQueue()
    with Interrupts(events):  # from here on Ctrl-C is about a job
        job = submit()
        for notice in job.notices:
            print_status(notice)
        if detach:
            write_json(job.to_json()) if as_json else print_result(job.name)
            return 0
        print_status(f"{job.name} on {job.target}", "dim")
        return watch(job, events, LogWriter(code), is_build=is_build)


def watch(job: Job, events: Events, log: LogWriter, *, is_build: bool = False) -> int:
    """Show `job` until it is final or the user detaches; return the exit code for the shell."""
    unread = threading.Semaphore(_READ_AHEAD)
    threading.Thread(target=_follow, args=(job, events, unread), daemon=True).start()
    with Spinner() as spinner:
        return _Screen(job, spinner, unread, log, is_build=is_build).show(events)


def _follow(job: Job, events: Events, unread: threading.Semaphore) -> None:
    def on_change(job: Job) -> None:
        is_retry = job.state is JobState.QUEUED and job.to_json()["attempt"] > 0
        events.put(StateChange(JobStatus(job.state, job.reason), is_retry))

    try:
        for stream, content in label_ranks(job.follow(on_change=on_change, split=True)):
            unread.acquire()
            events.put(LogPiece(stream, content))
        events.put(FollowerDone())
    except BaseException as error:  # noqa: BLE001  the main thread raises it again
        events.put(FollowerDone(error))


class _Screen:
    def __init__(
        self,
        job: Job,
        spinner: Spinner,
        unread: threading.Semaphore,
        log: LogWriter,
        *,
        is_build: bool,
    ) -> None:
        self._job = job
        self._is_build = is_build
        self._log = log
        self._spinner = spinner
        self._unread = unread
        self._preparation = Preparation()
        self._running = False
        self._has_output = False
        self._mid_line: dict[TextIO, bool] = {}  # files whose last line has no end yet
        self._canceling = False
        self._deferred: deque[Event] = deque()  # events that came while a question was open

    def show(self, events: Events) -> int:
        while True:
            event = self._next(events)
            if isinstance(event, LogPiece):
                self._write(event)
                continue
            self._log.flush()
            if isinstance(event, StateChange):
                self._show_change(event)
            elif isinstance(event, FollowerDone):
                return self._end(event)
            elif (code := self._interrupted(event, events)) is not None:
                return code

    def _next(self, events: Events) -> Event:
        if self._deferred:
            return self._deferred.popleft()
        if self._running:
            return self._next_while_running(events)
        timeout = _QUIET_SECONDS
        while True:
            try:
                return events.get(timeout=timeout)
            except Empty:
                job = self._fetch_job()
                if not self._preparation.is_live:
                    self._spinner.show(JobStatus(job.state, job.reason))
                timeout = _POLL_SECONDS

    def _next_while_running(self, events: Events) -> Event:
        if self._log.is_holding:
            with suppress(Empty):
                return events.get(timeout=_HELD_SECONDS)
            self._log.flush()
        return events.get()

    def _fetch_job(self) -> Job:
        # the follower of a silent log does not notice a change of state
        job = copy.copy(self._job)
        with suppress(RetargetError):
            job.refresh()
        return job

    def _write(self, piece: LogPiece) -> None:
        self._spinner.hide()
        self._unread.release()
        self._running = piece.stream != "prepare"
        if not self._running:
            self._end_line()
            self._preparation.feed(piece.content)
            return
        self._preparation.close()
        self._has_output = True
        file = sys.stderr if piece.stream == "stderr" else sys.stdout
        self._log.write(piece.content, to=file)
        self._mid_line[file] = not piece.content.endswith(b"\n")

    def _show_change(self, change: StateChange) -> None:
        self._running = self._running and change.status.state is not JobState.QUEUED
        if change.is_retry:
            self._print_status(change.status.reason, "yellow")
        elif not self._running:
            self._spinner.update(change.status)

    def _end(self, done: FollowerDone) -> int:
        self._hide()
        if done.error is not None:
            raise done.error
        if self._job.state is JobState.FAILED and not self._has_output:
            self._preparation.show_details(self._job.name)
        self._end_line()
        if not self._is_build or self._job.state is JobState.FAILED:
            print_ending(self._job, after_output=self._has_output)
        code = self._job.exit_code
        return 1 if code is None else code

    def _interrupted(self, number: signal.Signals, events: Events) -> int | None:
        """Return the exit code if watching ends here, or None to continue."""
        self._hide()
        if number == signal.SIGTERM:
            return self._detach(_EXIT_SIGTERM)
        if self._canceling:
            self._print_status(f"{self._job.name} is being canceled; stopped watching", "yellow")
            return _EXIT_SIGINT
        choice = Choice.CANCEL
        if sys.stdin.isatty():
            choice = ask(self._job.name, self._poll_during_question(events))
            self._mid_line.clear()
        if choice is Choice.DETACH:
            return self._detach(0)
        if choice is Choice.CANCEL:
            self._cancel()
        return None

    def _poll_during_question(self, events: Events) -> Callable[[], Choice | None]:
        """Return a function that says when an open question needs no answer any more."""
        next_fetch_at = time.monotonic() + _POLL_SECONDS

        def poll() -> Choice | None:
            nonlocal next_fetch_at
            while not events.empty():
                event = events.get()
                if event == signal.SIGINT:
                    return Choice.CANCEL
                self._deferred.append(event)
                if isinstance(event, FollowerDone | signal.Signals):
                    return Choice.WITHDRAWN
            if time.monotonic() < next_fetch_at:
                return None
            next_fetch_at = time.monotonic() + _POLL_SECONDS
            # a log that is far behind delays the follower's report of the end
            return Choice.WITHDRAWN if self._fetch_job().state.is_final else None

        return poll

    def _detach(self, code: int) -> int:
        name = self._job.name
        self._print_status(f"{name} continues; watch it: retarget job logs {name} -f", "dim")
        return code

    def _cancel(self) -> None:
        self._canceling = True
        name = self._job.name
        self._print_status(f"canceling {name}; press Ctrl-C again to stop watching", "yellow")
        with suppress(Conflict):  # the job has just ended by itself
            copy.copy(self._job).cancel()  # only the follower may change self._job

    def _hide(self) -> None:
        self._spinner.hide()
        self._preparation.close()

    def _print_status(self, text: str, style: str) -> None:
        self._preparation.close()
        self._end_line()
        print_status(text, style)

    def _end_line(self) -> None:
        is_on_terminal = sys.stdout.isatty() and self._mid_line.get(sys.stdout)
        if is_on_terminal or self._mid_line.get(sys.stderr):
            sys.stderr.write("\n")
        self._mid_line.clear()
