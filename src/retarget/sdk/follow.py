"""Follows a job's log: every byte once, in order, even if the server restarts meanwhile."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from queue import SimpleQueue
from typing import Any

from retarget.core.errors import NotFound, ServerUnreachable
from retarget.core.states import JobState
from retarget.sdk.arguments import address
from retarget.sdk.http import Connection
from retarget.sdk.records import JOB_FIELDS, Stream, records, view

LogPiece = tuple[str, bytes]  # the name of a stream, and some of its bytes
JobView = dict[str, Any]

_LONG_POLL_SECONDS = 30.0
_MAX_SILENCE_SECONDS = 60.0  # after this long without a byte, a stream is requested again
_RECONNECT_SECONDS = 300.0  # how long an unreachable server may take to come back
_RETRY_SECONDS = 1.0
_MAX_QUEUED_PIECES = 64  # read ahead of the consumer


class Expired(Exception):
    """The deadline of a wait has passed."""


@dataclass
class Watch:
    """Watches one job over a connection that may break at any moment."""

    connection: Connection
    view: JobView
    deadline: float | None = None
    on_change: Callable[[JobView], None] = lambda view: None
    split: bool = False  # whether to read stdout and stderr apart, if the job has them
    _offsets: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))
    _last_answer_at: float = field(default_factory=time.monotonic)

    @property
    def path(self) -> str:
        return job_path(self.view["id"])

    @property
    def is_final(self) -> bool:
        return JobState(self.view["state"]).is_final

    def skip(self, attempt: int, offsets: Mapping[str, int]) -> None:
        """Begin the streams of an attempt at these offsets."""
        for stream, offset in offsets.items():
            self._offsets[attempt, stream] = offset

    def wait(self) -> None:
        """Return when the job is final; raise Expired if the deadline comes first."""
        while not self.is_final:
            self.wait_for_change()

    def wait_for_all(self, ids: list[str]) -> list[JobView]:
        """Return these jobs when all are final; raise Expired if the deadline comes first.

        Jobs that were deleted meanwhile are omitted.
        """
        while True:
            timeout = round(self._remaining(_LONG_POLL_SECONDS), 3)
            body = {"jobs": ids, "timeout_seconds": timeout}
            try:
                answer = self.connection.post("/api/jobs/wait", body, repeatable=True)
            except ServerUnreachable as error:
                self._reconnect(error)
                continue
            self._last_answer_at = time.monotonic()
            if view(answer, {"done": bool, "jobs": list[dict[str, Any]]})["done"]:
                return [view(job, JOB_FIELDS) for job in answer["jobs"]]

    def wait_for_change(self) -> None:
        """Wait until the version of the job changes, but no longer than one long poll."""
        timeout = self._remaining(_LONG_POLL_SECONDS)
        query = {"wait": f"{timeout:.3f}", "version": self.view["version"]}
        while True:
            try:
                answer = self.connection.get(self.path, query)
                break
            except ServerUnreachable as error:
                self._reconnect(error)
        self._last_answer_at = time.monotonic()
        last_version, self.view = self.view["version"], view(answer, JOB_FIELDS)
        if self.view["version"] != last_version:
            self.on_change(self.view)

    def follow(self) -> Iterator[LogPiece]:
        """Yield the log of this and every later attempt; each begins with `prepare`."""
        last_number = 0
        while True:
            if self.view["attempt"] > last_number:
                last_number = self.view["attempt"]
                yield from self._read_attempt(last_number)
            elif self.is_final:
                return
            else:
                self.wait_for_change()

    def read_stream(self, attempt: int, stream: str) -> Iterator[LogPiece]:
        """Yield the bytes of `stream` that were not yielded before, until no more can come."""
        while True:
            try:
                for piece in self._pieces(attempt, stream):
                    self._offsets[attempt, stream] += len(piece)
                    yield stream, piece
                return
            except TimeoutError:
                continue
            except NotFound:
                return  # the attempt ended before it had such a stream
            except ServerUnreachable as error:
                self._reconnect(error)

    def read_output(self, attempt: int) -> Iterator[LogPiece]:
        """Yield the output of the script; of several processes, the streams `rank-N`."""
        names = self.output_streams()
        if len(names) == 1:
            return self.read_stream(attempt, names[0])
        return _read_concurrently([self.read_stream(attempt, name) for name in names])

    def read_until_over(
        self, attempt: int, read: Callable[[], Iterator[LogPiece]]
    ) -> Iterator[LogPiece]:
        """Repeat `read` until the attempt is over: a server that stops ends its streams early."""
        yield from read()
        while not self._is_over(attempt):
            self.wait_for_change()
            yield from read()

    def _pieces(self, attempt: int, stream: str) -> Iterator[bytes]:
        query = {
            "stream": stream,
            "attempt": attempt,
            "offset": self._offsets[attempt, stream],
            "follow": True,
        }
        silence = self._remaining(_MAX_SILENCE_SECONDS)
        with self.connection.stream(f"{self.path}/logs", query, max_silence=silence) as response:
            self._last_answer_at = time.monotonic()
            for piece in response:
                self._last_answer_at = time.monotonic()
                yield piece
                self._remaining(_MAX_SILENCE_SECONDS)  # raises at the deadline

    def _read_attempt(self, attempt: int) -> Iterator[LogPiece]:
        yield from self.read_until_over(
            attempt, lambda: chain(self.read_stream(attempt, "prepare"), self.read_output(attempt))
        )
        yield from self._read_rest(attempt)

    def _read_rest(self, attempt: int) -> Iterator[LogPiece]:
        # the runner may write to the log after its script has exited
        streams = self._streams({"attempt": attempt})
        unread = [stream.stream for stream in streams if self._has_more(attempt, stream)]
        for name in unread:
            yield from self.read_stream(attempt, name)

    def _streams(self, query: dict[str, Any]) -> list[Stream]:
        while True:
            try:
                answer = self.connection.get(f"{self.path}/streams", query)
                break
            except NotFound:
                return []
            except ServerUnreachable as error:
                self._reconnect(error)
        return records(Stream, answer)

    def _has_more(self, attempt: int, stream: Stream) -> bool:
        name = stream.stream
        is_shown = name in ("prepare", *self.output_streams())
        return is_shown and stream.size > self._offsets[attempt, name]

    def output_streams(self) -> list[str]:
        """Return the streams with the output of the script."""
        processes = self.view["nodes"] * self.view["processes_per_node"]
        if processes > 1:
            return [f"rank-{rank}" for rank in range(processes)]
        return ["stdout", "stderr"] if self.split and self.view["split_stderr"] else ["output"]

    def _is_over(self, attempt: int) -> bool:
        waits_for_another = self.view["state"] == JobState.QUEUED
        return self.is_final or waits_for_another or self.view["attempt"] > attempt

    def _remaining(self, max_seconds: float) -> float:
        """Return the seconds until the deadline, at most `max_seconds`; raise Expired at it."""
        if self.deadline is None:
            return max_seconds
        remaining = self.deadline - time.monotonic()
        if remaining <= 0:
            raise Expired
        return min(max_seconds, remaining)

    def _reconnect(self, error: ServerUnreachable) -> None:
        """Restart the server, or wait for someone else to; raise `error` after too long."""
        if time.monotonic() - self._last_answer_at > _RECONNECT_SECONDS:
            raise error
        if not self.connection.revive():
            time.sleep(self._remaining(_RETRY_SECONDS))


def label_ranks(pieces: Iterable[LogPiece]) -> Iterator[LogPiece]:
    """Merge the streams of ranks into one `output` of whole lines, labelled with their rank."""
    incomplete: dict[str, bytes] = {}
    for stream, piece in pieces:
        if not stream.startswith("rank-"):
            yield stream, piece
            continue
        *lines, incomplete[stream] = (incomplete.get(stream, b"") + piece).split(b"\n")
        if lines:
            yield "output", b"".join(_label(stream, line) for line in lines)
    for stream, line in incomplete.items():
        if line:
            yield "output", _label(stream, line)


def job_path(job: str) -> str:
    return address("/api/jobs", job, "a job")


def _label(stream: str, line: bytes) -> bytes:
    return b"[rank " + stream.removeprefix("rank-").encode() + b"] " + line + b"\n"


def _read_concurrently(sources: list[Iterator[LogPiece]]) -> Iterator[LogPiece]:
    """Read all sources at once, with one thread per source, and yield pieces as they arrive."""
    queue: SimpleQueue[LogPiece | BaseException | None] = SimpleQueue()
    free_slots = threading.Semaphore(_MAX_QUEUED_PIECES)
    closed = threading.Event()

    def read(source: Iterator[LogPiece]) -> None:
        end: BaseException | None = None
        try:
            for piece in source:
                free_slots.acquire()
                if closed.is_set():
                    return
                queue.put(piece)
        except BaseException as error:  # noqa: BLE001  raised again by the consumer
            end = error
        finally:
            queue.put(end)

    for source in sources:
        threading.Thread(target=read, args=(source,), daemon=True).start()
    try:
        yield from _consume(queue, free_slots, len(sources))
    finally:
        closed.set()
        free_slots.release(len(sources))


def _consume(
    queue: "SimpleQueue[LogPiece | BaseException | None]",
    free_slots: threading.Semaphore,
    open_sources: int,
) -> Iterator[LogPiece]:
    while open_sources:
        item = queue.get()
        if item is None:
            open_sources -= 1
        elif isinstance(item, BaseException):
            try:
                raise item
            finally:
                del item  # the exception refers to this frame, which must not refer to it
        else:
            free_slots.release()
            yield item
