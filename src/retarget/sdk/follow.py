"""Following a job: every byte of its log once, in order, through servers that come and go."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from queue import SimpleQueue
from typing import Any

from retarget.core.errors import NotFound, ServerUnreachable
from retarget.core.states import JobState
from retarget.sdk.given import address
from retarget.sdk.http import Connection
from retarget.sdk.records import JOB, Stream, records, view

Piece = tuple[str, bytes]  # the stream, and some of its bytes
View = dict[str, Any]

_LONG_POLL = 30.0
_QUIET = 60.0  # seconds without a byte after which a stream is asked for anew
_PATIENCE = 300.0  # seconds a lost server may take to come back
_AHEAD = 64  # pieces read ahead of who prints them


class Expired(Exception):
    """The time that was given to a wait is over."""


@dataclass
class Watch:
    """One job, seen through a connection that may break at any moment."""

    connection: Connection
    view: View
    deadline: float | None = None
    on_change: Callable[[View], None] = lambda view: None
    _offsets: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))
    _heard: float = field(default_factory=time.monotonic)

    @property
    def path(self) -> str:
        return job_path(self.view["id"])

    @property
    def is_final(self) -> bool:
        return JobState(self.view["state"]).is_final

    def wait(self) -> None:
        """Return when the job is final; raise Expired when the deadline comes first."""
        while not self.is_final:
            self.change()

    def wait_for_all(self, ids: list[str]) -> list[View]:
        """Return all these jobs when they are final; raise Expired when the deadline comes first.

        Those that were deleted meanwhile are left out.
        """
        while True:
            asked = {"jobs": ids, "timeout": round(self._left(_LONG_POLL), 3)}
            try:
                answer = self.connection.post("/api/jobs/wait", asked, repeatable=True)
            except ServerUnreachable as error:
                self._lost(error)
                continue
            self._heard = time.monotonic()
            if view(answer, {"done": bool, "jobs": list[dict[str, Any]]})["done"]:
                return [view(each, JOB) for each in answer["jobs"]]

    def change(self) -> None:
        """Wait until the job's version moves on, or half a minute."""
        wait = self._left(_LONG_POLL)
        query = {"wait": f"{wait:.3f}", "version": self.view["version"]}
        while True:
            try:
                answer = self.connection.get(self.path, query)
                break
            except ServerUnreachable as error:
                self._lost(error)
        self._heard = time.monotonic()
        before, self.view = self.view["version"], view(answer, JOB)
        if self.view["version"] != before:
            self.on_change(self.view)

    def follow(self) -> Iterator[Piece]:
        """Yield the log of this and every later attempt; each begins with `prepare`."""
        done = 0
        while True:
            if self.view["attempt"] > done:
                done = self.view["attempt"]
                yield from self._attempt(done)
            elif self.is_final:
                return
            else:
                self.change()

    def stream(self, attempt: int, stream: str) -> Iterator[Piece]:
        """Yield what `stream` has beyond what was yielded before, until no more can come."""
        while True:
            try:
                for piece in self._pieces(attempt, stream):
                    self._offsets[attempt, stream] += len(piece)
                    yield stream, piece
                return
            except TimeoutError:
                continue
            except NotFound:
                return  # an attempt that ended before it had such a stream
            except ServerUnreachable as error:
                self._lost(error)

    def output(self, number: int) -> Iterator[Piece]:
        """Yield what the script writes in one attempt; several processes as `rank-N`."""
        processes = self.view["nodes"] * self.view["processes_per_node"]
        if processes == 1:
            return self.stream(number, "output")
        return _side_by_side([self.stream(number, f"rank-{rank}") for rank in range(processes)])

    def to_the_end(self, number: int, read: Callable[[], Iterator[Piece]]) -> Iterator[Piece]:
        """Read again until the attempt is over: a server that stops ends its streams early."""
        yield from read()
        while not self._is_over(number):
            self.change()
            yield from read()

    def _pieces(self, attempt: int, stream: str) -> Iterator[bytes]:
        query = {
            "stream": stream,
            "attempt": attempt,
            "offset": self._offsets[attempt, stream],
            "follow": True,
        }
        quiet = self._left(_QUIET)
        with self.connection.stream(f"{self.path}/logs", query, quiet=quiet) as answer:
            self._heard = time.monotonic()
            for piece in answer:
                self._heard = time.monotonic()
                yield piece
                self._left(_QUIET)

    def _attempt(self, number: int) -> Iterator[Piece]:
        yield from self.to_the_end(
            number, lambda: chain(self.stream(number, "prepare"), self.output(number))
        )
        yield from self._rest(number)

    def _rest(self, number: int) -> Iterator[Piece]:
        # a runner may have a last word after its script
        query = {"attempt": number}
        known = [row.stream for row in self._streams(query) if self._has_more(number, row)]
        for stream in known:
            yield from self.stream(number, stream)

    def _streams(self, query: dict[str, Any]) -> list[Stream]:
        while True:
            try:
                answer = self.connection.get(f"{self.path}/streams", query)
                break
            except NotFound:
                return []
            except ServerUnreachable as error:
                self._lost(error)
        return records(Stream, answer)

    def _has_more(self, number: int, row: Stream) -> bool:
        shown = row.stream in ("prepare", "output") or row.stream.startswith("rank-")
        return shown and row.size > self._offsets[number, row.stream]

    def _is_over(self, number: int) -> bool:
        waits_for_another = self.view["state"] == JobState.QUEUED
        return self.is_final or waits_for_another or self.view["attempt"] > number

    def _left(self, most: float) -> float:
        if self.deadline is None:
            return most
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise Expired
        return min(most, left)

    def _lost(self, error: ServerUnreachable) -> None:
        """Bring the server back, or give somebody else the time to; raise when that is over."""
        if time.monotonic() - self._heard > _PATIENCE:
            raise error
        if not self.connection.revive():
            time.sleep(self._left(1.0))


def labelled(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Turn the streams of ranks into one `output` of whole lines, each with its rank."""
    begun: dict[str, bytes] = {}
    for stream, piece in pieces:
        if not stream.startswith("rank-"):
            yield stream, piece
            continue
        *lines, begun[stream] = (begun.get(stream, b"") + piece).split(b"\n")
        if lines:
            yield "output", b"".join(_label(stream, line) for line in lines)
    for stream, line in begun.items():
        if line:
            yield "output", _label(stream, line)


def job_path(job: str) -> str:
    return address("/api/jobs", job, "a job")


def _label(stream: str, line: bytes) -> bytes:
    return b"[rank " + stream.removeprefix("rank-").encode() + b"] " + line + b"\n"


def _side_by_side(sources: list[Iterator[Piece]]) -> Iterator[Piece]:
    """Read all sources at once, one thread each, and yield what comes first."""
    arrived: SimpleQueue[Piece | BaseException | None] = SimpleQueue()
    room = threading.Semaphore(_AHEAD)
    left = threading.Event()

    def read(source: Iterator[Piece]) -> None:
        end: BaseException | None = None
        try:
            for piece in source:
                room.acquire()
                if left.is_set():
                    return
                arrived.put(piece)
        except BaseException as error:  # noqa: BLE001  raised again where it is read
            end = error
        finally:
            arrived.put(end)

    for source in sources:
        threading.Thread(target=read, args=(source,), daemon=True).start()
    try:
        yield from _arrivals(arrived, room, len(sources))
    finally:
        left.set()
        room.release(len(sources))


def _arrivals(
    arrived: "SimpleQueue[Piece | BaseException | None]", room: threading.Semaphore, open_: int
) -> Iterator[Piece]:
    while open_:
        item = arrived.get()
        if item is None:
            open_ -= 1
        elif isinstance(item, BaseException):
            try:
                raise item
            finally:
                del item  # it holds this frame, which must not hold it
        else:
            room.release()
            yield item
