"""Frames of logs between the events of a stream: pieces of the bytes, each with its offset."""

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from retarget.control.context import Context
from retarget.core.errors import Invalid, NotFound
from retarget.core.jobs import Attempt
from retarget.server.stream import check_stream, is_complete

_FRAME_BYTES = 64 * 1024
_MAX_NUMBER_DIGITS = 18
_FORM = "write JOB, JOB:ATTEMPT:OFFSET or JOB:ATTEMPT:OFFSET:STREAM"


class LogFrame(BaseModel):
    """A piece of a log, or its end."""

    noun: str = "log"
    job: str
    attempt: int | None = None  # None if the job had none
    stream: str
    offset: int
    data: str = ""  # base64: a piece may end inside a character
    is_last: bool = False  # the job has ended, and nothing follows


@dataclass
class LogPosition:
    """How far a client has read the log of a job. After a retry, the next attempt follows."""

    job: str  # its id
    number: int | None  # of the attempt; None: the latest one, or the first to come
    offset: int
    stream: str
    is_at_end: bool = False

    def next_frame(self, context: Context) -> LogFrame | None:
        """Return what follows, or None if it has not arrived yet."""
        while not self.is_at_end:
            job_is_over = _is_over(context, self.job)  # first: then all its attempts are known
            attempts = context.store.jobs.attempts(self.job)
            attempt = self._current(attempts)
            if attempt is not None:
                complete = is_complete(context, attempt, self.stream)
                content = context.files.streams.read(
                    attempt.key, self.stream, self.offset, _FRAME_BYTES
                )
                if content:
                    return self._frame(content)
                if not complete:
                    return None
            if not self._go_on(attempts):
                return self._end() if job_is_over else None
        return None

    def _current(self, attempts: Sequence[Attempt]) -> Attempt | None:
        if self.number is None and attempts:
            self.number = attempts[-1].number
        return next((attempt for attempt in attempts if attempt.number == self.number), None)

    def _go_on(self, attempts: Sequence[Attempt]) -> bool:
        """Continue with the next attempt, if there is one."""
        later = [attempt.number for attempt in attempts if attempt.number > (self.number or 0)]
        if later:
            self.number, self.offset = min(later), 0
        return bool(later)

    def _frame(self, content: bytes) -> LogFrame:
        frame = self._empty()
        frame.data = base64.b64encode(content).decode()
        self.offset += len(content)
        return frame

    def _end(self) -> LogFrame:
        self.is_at_end = True
        frame = self._empty()
        frame.is_last = True
        return frame

    def _empty(self) -> LogFrame:
        return LogFrame(job=self.job, attempt=self.number, stream=self.stream, offset=self.offset)


class LogReader:
    """Reads the logs that a client follows, in turn, a frame of each."""

    def __init__(self, context: Context, positions: Sequence[LogPosition]) -> None:
        self._context = context
        self._positions = positions
        self._unread = {position.job for position in positions}

    @property
    def jobs(self) -> frozenset[str]:
        return frozenset(position.job for position in self._positions)

    @property
    def has_unread(self) -> bool:
        """Whether there may be something to read now."""
        return bool(self._unread)

    def arrived(self, jobs: Iterable[str]) -> None:
        """Note that the logs of these jobs may have grown."""
        self._unread |= self.jobs.intersection(jobs)

    def read(self) -> list[LogFrame]:
        """Return at most one frame of each log. Call it again while `has_unread`."""
        unread, self._unread = self._unread, set[str]()
        frames: list[LogFrame] = []
        for position in self._positions:
            frame = position.next_frame(self._context) if position.job in unread else None
            if frame is not None:
                frames.append(frame)
                self._unread.add(position.job)
        return frames


def log_positions(context: Context, texts: Sequence[str]) -> list[LogPosition]:
    """Return where to begin: `JOB`, `JOB:ATTEMPT:OFFSET` or `JOB:ATTEMPT:OFFSET:STREAM`."""
    return [_log_position(context, text) for text in texts]


def _log_position(context: Context, text: str) -> LogPosition:
    name, *rest = text.split(":", 3)
    if len(rest) == 1 or not all(map(_is_number, rest[:2])):
        raise Invalid(f"log: cannot read {text!r}; {_FORM}", field="log")
    job = context.store.jobs.find(name)
    number, offset = map(int, rest[:2] or ("0", "0"))
    stream = rest[2] if len(rest) > 2 else "output"
    attempts = context.store.jobs.attempts(job.id)
    if number and number not in {attempt.number for attempt in attempts}:
        raise NotFound(f"job {job.name!r} has no attempt {number}; it has {len(attempts)}")
    for attempt in attempts[-1:]:
        check_stream(context, job, attempt, stream, may_appear=True)
    return LogPosition(job.id, number or None, offset, stream)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MAX_NUMBER_DIGITS


def _is_over(context: Context, job_id: str) -> bool:
    """Whether a job has ended or was deleted."""
    state = context.store.jobs.states([job_id]).get(job_id)
    return state is None or state.is_final
