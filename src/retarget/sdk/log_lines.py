"""Reads a log line by line, with the time when each line was written."""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

from retarget.core.errors import Invalid, NotFound
from retarget.core.units import parse_duration
from retarget.sdk.follow import LogPiece, Watch
from retarget.sdk.http import Connection
from retarget.sdk.log_tail import last_line_offsets
from retarget.sdk.records import LogTime, records

_MAX_LINE_BYTES = 1 << 16  # a longer line that began before `since` may be missing
_AGE = re.compile(r"[\d.smhd]+")


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a log. `at` is when it was written, to about a tenth of a second."""

    at: datetime
    stream: str
    content: bytes  # with its line break; the last line may have none


class LogTimes:
    """The sizes over time of each stream of one attempt. New sizes are fetched as needed."""

    def __init__(self, connection: Connection, path: str, attempt: int | None) -> None:
        self._connection = connection
        self._path = f"{path}/log-times"
        self._attempt = attempt
        self._times: dict[str, list[LogTime]] = {}

    def at(self, stream: str, end: int) -> datetime:
        """Return when the byte before `end` was written."""
        times = self._times.get(stream) or []
        if not times or times[-1].size < end:
            times = self.fetch(stream)
        index = bisect_left(times, end, key=lambda time: time.size)
        return times[index].at if index < len(times) else datetime.now(UTC)

    def offset_since(self, stream: str, since: datetime) -> int:
        """Return an offset before the first line that was completed since then."""
        sizes = [time.size for time in self.fetch(stream) if time.at < since]
        return max(0, max(sizes, default=0) - _MAX_LINE_BYTES)

    def fetch(self, stream: str) -> list[LogTime]:
        query = {"stream": stream, "attempt": self._attempt}
        try:
            answer = self._connection.get(self._path, query)
        except NotFound:  # the attempt ended before it had such a stream
            answer = []
        self._times[stream] = records(LogTime, answer)
        return self._times[stream]


def parse_since(value: Any, *, field: str = "since") -> datetime:
    """Return a time from a datetime, an age such as `10m`, or ISO 8601, else raise Invalid."""
    if isinstance(value, timedelta):
        return datetime.now(UTC) - value
    if isinstance(value, str) and _AGE.fullmatch(value.strip()):
        return datetime.now(UTC) - timedelta(seconds=parse_duration(value, field=field))
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        return moment.astimezone(UTC)  # without a zone, it is local time
    except (TypeError, ValueError, OverflowError, OSError):
        raise Invalid(
            f"{field}: {value!r} is not a time; write an age such as 10m or 2h, or a time such as "
            "2026-11-18T09:30",
            field=field,
        ) from None


class LineReader:
    """Reads the lines of a job's log: of one attempt, or of the last one and those that follow."""

    def __init__(self, watch: Watch, stream: str | None, attempt: int | None) -> None:
        self._watch = watch
        self._stream = stream
        self._attempt = attempt

    def read(
        self, *, follow: bool, since: datetime | None = None, last: int | None = None
    ) -> Iterator[LogLine]:
        """Yield lines written `since` then, or from the `last` lines of each stream on."""
        watch = self._watch
        while follow and not watch.view["attempt"] and not watch.is_final:
            watch.wait_for_change()
        number = self._attempt or watch.view["attempt"]
        while number:
            yield from self._read_attempt(number, since, last, follow=follow)
            while follow and not self._attempt and self._may_continue(number):
                watch.wait_for_change()
            if self._attempt or not follow or watch.view["attempt"] == number:
                return
            number, last = watch.view["attempt"], None

    def _may_continue(self, number: int) -> bool:
        return not self._watch.is_final and self._watch.view["attempt"] == number

    def _read_attempt(
        self, number: int, since: datetime | None, last: int | None, *, follow: bool
    ) -> Iterator[LogLine]:
        watch = self._watch
        times = LogTimes(watch.connection, watch.path, number)
        names = [self._stream] if self._stream else ["prepare", *watch.output_streams()]
        offsets: dict[str, int] = {}
        if last is not None:
            query = {"stream": self._stream, "attempt": number}
            offsets = last_line_offsets(watch.connection, watch.path, query, last)
        elif since is not None:
            offsets = {name: times.offset_since(name, since) for name in names}
        watch.skip(number, offsets)

        def read() -> Iterator[LogPiece]:
            if not follow:
                return chain.from_iterable(self._read_now(number, name, offsets) for name in names)
            if self._stream:
                return watch.read_stream(number, self._stream)
            return chain(watch.read_stream(number, "prepare"), watch.read_output(number))

        pieces = watch.read_until_over(number, read) if follow else read()
        for line in _split(pieces, times, offsets, has_partial=last is None):
            if since is None or line.at >= since:
                yield line

    def _read_now(self, number: int, name: str, offsets: Mapping[str, int]) -> Iterator[LogPiece]:
        query = {"stream": name, "attempt": number, "offset": offsets.get(name, 0)}
        with self._watch.connection.stream(f"{self._watch.path}/logs", query) as response:
            for piece in response:
                yield name, piece


def _split(
    pieces: Iterable[LogPiece], times: LogTimes, offsets: Mapping[str, int], *, has_partial: bool
) -> Iterator[LogLine]:
    """Yield whole lines. The part of a line at which a stream may begin is skipped."""
    ends = dict(offsets)
    partial = {stream for stream, offset in offsets.items() if offset and has_partial}
    incomplete: dict[str, bytes] = {}
    for stream, piece in pieces:
        *lines, rest = (incomplete.get(stream, b"") + piece).split(b"\n")
        for line in lines:
            ends[stream] = ends.get(stream, 0) + len(line) + 1
            if stream in partial:
                partial.remove(stream)
            else:
                yield LogLine(times.at(stream, ends[stream]), stream, line + b"\n")
        incomplete[stream] = rest
    for stream, rest in incomplete.items():
        if rest and stream not in partial:
            yield LogLine(times.at(stream, ends.get(stream, 0) + len(rest)), stream, rest)
