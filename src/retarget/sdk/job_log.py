"""Follows and reads the log of a job."""

import codecs
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, Self, TextIO, overload

from retarget.core.states import JobState
from retarget.sdk import arguments
from retarget.sdk.display import Displayable, Listing
from retarget.sdk.follow import Expired, JobView, LogPiece, Watch, job_path, label_ranks
from retarget.sdk.http import Connection
from retarget.sdk.records import JOB_FIELDS, Stream, records, view

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from retarget.sdk.log_lines import LogLine


class JobLog(Displayable):
    """The log of a job, and waiting for its end."""

    def __init__(self, connection: Connection, raw: Any) -> None:
        self._connection = connection
        self._view = view(raw, JOB_FIELDS)

    @property
    def state(self) -> JobState:
        """The state of the job."""
        return JobState(self._view["state"])

    def wait(self, *, show_output: bool = False, timeout: float | None = None) -> JobState:
        """Wait until the job is final, and return its state.

        Args:
            show_output: Print the log as it arrives: the preparation to stderr, the output of the
                script to stdout.
            timeout: Stop waiting after this many seconds, and return the state at that time.
        """
        if timeout is not None:
            arguments.check("timeout", timeout, arguments.NUMBER)
        deadline = None if timeout is None else time.monotonic() + timeout
        watch = self._watch(deadline=deadline, split=True)
        try:
            if show_output:
                for stream, piece in label_ranks(watch.follow()):
                    _write(sys.stderr if stream in ("prepare", "stderr") else sys.stdout, piece)
            watch.wait()
        except Expired:
            pass
        return self.state

    def follow(
        self,
        *,
        on_change: Callable[[Self], None] | None = None,
        lines: int | None = None,
        split: bool = False,
    ) -> Iterator[LogPiece]:
        """Yield `(stream, bytes)` until the job is final: every byte once, attempt by attempt.

        The stream `prepare` comes first, then `output`, or `rank-0`, `rank-1` … for several
        processes. If the server stops, `follow` waits for it to return (or starts it again, if it
        is the server of this machine) and continues the log where it stopped. `on_change` is
        called whenever the state or the reason of the job changes. With `lines`, begin with the
        last lines of what the current attempt has written so far. With `split`, a job whose stderr
        is separate yields `stdout` and `stderr` instead of `output`.
        """
        watch = self._watch(on_change=on_change, split=split)
        attempt = watch.view["attempt"]
        if lines is not None and attempt:
            watch.skip(attempt, self._last_line_offsets(None, attempt, lines))
        return watch.follow()

    @overload
    def logs(
        self,
        stream: str | None = None,
        *,
        attempt: int | None = None,
        follow: Literal[False] = False,
        lines: int | None = None,
    ) -> str: ...
    @overload
    def logs(
        self,
        stream: str | None = None,
        *,
        attempt: int | None = None,
        follow: Literal[True],
        lines: int | None = None,
    ) -> Iterator[str]: ...

    def logs(
        self,
        stream: str | None = None,
        *,
        attempt: int | None = None,
        follow: bool = False,
        lines: int | None = None,
    ) -> str | Iterator[str]:
        """Return the output of the script as text.

        Args:
            stream: Another stream of the log, one of `streams()`.
            attempt: The number of an attempt; by default the last one.
            follow: Return an iterator that yields text as it arrives and ends with the attempt.
            lines: Only the last lines, or with `follow` those first; of each process. The rest
                of the log is not read.
        """
        text = _decoded(self.read_log(stream, attempt=attempt, follow=follow, lines=lines))
        return text if follow else "".join(text)

    def read_log(
        self,
        stream: str | None = None,
        *,
        attempt: int | None = None,
        follow: bool = False,
        lines: int | None = None,
    ) -> Iterator[bytes]:
        """Yield the exact bytes of one stream.

        By default this is the output; lines of several processes are labelled with their rank.
        With `lines`, begin with the last lines, of each process.
        """
        if follow:
            yield from self._follow_log(stream, attempt, lines)
            return
        if lines is not None:
            yield from self._read_last(stream, attempt, lines)
            return
        query = {"stream": stream, "attempt": attempt}
        with self._connection.stream(f"{self._path}/logs", query) as response:
            yield from response

    def log_lines(
        self,
        stream: str | None = None,
        *,
        attempt: int | None = None,
        follow: bool = False,
        since: "datetime | timedelta | str | None" = None,
        lines: int | None = None,
    ) -> "Iterator[LogLine]":
        """Yield the lines of the log, each with the time when it was written.

        Args:
            stream: One of `streams()`; by default the preparation, then the output.
            attempt: The number of an attempt; by default the last one.
            follow: Continue until the job is final, through later attempts.
            since: Only lines since then: a time, or an age such as `"10m"`.
            lines: Begin with the last lines of each stream.
        """
        from retarget.sdk.log_lines import LineReader, parse_since

        if lines is not None:
            arguments.check("lines", lines, arguments.COUNT)
        start = None if since is None else parse_since(since)
        reader = LineReader(self._watch(), stream, attempt)
        return reader.read(follow=follow, since=start, last=lines)

    def tail(self, lines: int = 15) -> list[str]:
        """Return the last lines of the log of the last attempt.

        Of several processes these are the lines of the one that failed.
        """
        from retarget.sdk.log_tail import read_tail

        arguments.check("lines", lines, arguments.COUNT)
        return read_tail(self._connection, self._path, self._view, lines)

    def streams(self, *, attempt: int | None = None) -> list[Stream]:
        """List the streams of an attempt's log; by default of the last attempt."""
        answer = self._connection.get(f"{self._path}/streams", {"attempt": attempt})
        return Listing(records(Stream, answer))

    @property
    def _path(self) -> str:
        return job_path(self._view["id"])

    def _watch(
        self,
        *,
        deadline: float | None = None,
        on_change: Callable[[Self], None] | None = None,
        split: bool = False,
    ) -> Watch:
        def changed(answer: JobView) -> None:
            self._view = answer
            if on_change is not None:
                on_change(self)

        return Watch(self._connection, self._view, deadline, changed, split)

    def _last_line_offsets(
        self, stream: str | None, attempt: int | None, lines: int
    ) -> dict[str, int]:
        from retarget.sdk.log_tail import last_line_offsets

        arguments.check("lines", lines, arguments.COUNT)
        query = {"stream": stream, "attempt": attempt}
        return last_line_offsets(self._connection, self._path, query, max(0, lines))

    def _read_last(self, stream: str | None, attempt: int | None, lines: int) -> Iterator[bytes]:
        offsets = self._last_line_offsets(stream, attempt, lines)
        if stream is None:
            offsets.pop("prepare", None)

        def read() -> Iterator[LogPiece]:
            for name in sorted(offsets, key=lambda name: (len(name), name)):  # rank-9, rank-10
                query = {"stream": name, "attempt": attempt, "offset": offsets[name]}
                with self._connection.stream(f"{self._path}/logs", query) as response:
                    yield from ((name, piece) for piece in response)

        for _, piece in read() if stream else label_ranks(read()):
            yield piece

    def _follow_log(
        self, stream: str | None, attempt: int | None, lines: int | None
    ) -> Iterator[bytes]:
        watch = self._watch()
        while not watch.view["attempt"] and not watch.is_final:
            watch.wait_for_change()
        number = attempt or watch.view["attempt"]
        if lines is not None and number:
            watch.skip(number, self._last_line_offsets(stream, number, lines))

        def read() -> Iterator[LogPiece]:
            return watch.read_stream(number, stream) if stream else watch.read_output(number)

        pieces = watch.read_until_over(number, read)
        for _, piece in pieces if stream else label_ranks(pieces):
            yield piece


def _decoded(pieces: Iterator[bytes]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for piece in pieces:
        yield decoder.decode(piece)
    yield decoder.decode(b"", final=True)


def _write(file: TextIO, piece: bytes) -> None:
    buffer = getattr(file, "buffer", None)  # the stdout of a notebook accepts text only
    if buffer is None:
        file.write(piece.decode(errors="replace"))
    else:
        file.flush()
        buffer.write(piece)
    file.flush()
