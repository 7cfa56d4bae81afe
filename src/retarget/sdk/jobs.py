"""A job in the hands of its user: watched, read, stopped, run again."""

import codecs
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TextIO, overload

from retarget.core.states import JobState
from retarget.sdk import given
from retarget.sdk.follow import Expired, Piece, View, Watch, job_path, labelled
from retarget.sdk.http import Connection
from retarget.sdk.models import ModelVersion, register
from retarget.sdk.records import (
    JOB,
    Attempt,
    Move,
    Output,
    Stream,
    Why,
    record,
    records,
    rows,
    view,
)
from retarget.sdk.timing import Stage, stages
from retarget.sdk.tracking import Series, Tracking, read_series, read_tracking

_PAGE = 100
_TOGETHER = 1000  # jobs that are waited for with one request


class Job:
    """What was submitted. Its fields are as of the last look; `refresh` and `wait` look again."""

    def __init__(self, connection: Connection, told: Any) -> None:
        self._connection = connection
        self._view = view(told, JOB)

    def __repr__(self) -> str:
        return f"<Job {self.name} {self.state.value}>"

    @property
    def id(self) -> str:
        return self._view["id"]

    @property
    def name(self) -> str:
        return self._view["name"]

    @property
    def state(self) -> JobState:
        return JobState(self._view["state"])

    @property
    def reason(self) -> str:
        """Why it is in that state, in one sentence."""
        return self._view["reason"]

    @property
    def target(self) -> str:
        return self._view["target"]

    @property
    def exit_code(self) -> int | None:
        """What a shell would say: the script's own code, 128 + n for signal n, 130 when canceled.

        None until the job is final.
        """
        if not self.state.is_final:
            return None
        if self.state is JobState.CANCELED:
            return 130
        code: int | None = self._view["exit_code"]
        if self.state is JobState.SUCCEEDED:
            return code or 0
        return code or 1

    @property
    def attempts(self) -> list[Attempt]:
        if self._view["attempts"] is None:  # a listing leaves them out
            self.refresh()
        return records(Attempt, self._view["attempts"])

    def timing(self, attempt: int | None = None) -> list[Stage]:
        """Return when each stage of an attempt was reached, of the last one unless told."""
        if self._view["attempts"] is None:
            self.refresh()
        return stages(self._view, attempt)

    def to_json(self) -> dict[str, Any]:
        """Return all the server told at the last look."""
        return dict(self._view)

    def refresh(self, told: View | None = None) -> "Job":
        """Look again, or take what the server has just told of it, and return self."""
        self._view = view(self._connection.get(self._path) if told is None else told, JOB)
        return self

    def wait(self, *, show_output: bool = False, timeout: float | None = None) -> JobState:
        """Wait until the job is final, and return its state.

        After `timeout` seconds return the state it is in by then. With `show_output` its log is
        written as it comes: what prepares it to stderr, what the script says to stdout.
        """
        if timeout is not None:
            given.check("timeout", timeout, given.NUMBER)
        deadline = None if timeout is None else time.monotonic() + timeout
        watch = self._watch(deadline=deadline)
        try:
            if show_output:
                for stream, piece in labelled(watch.follow()):
                    _write(sys.stderr if stream == "prepare" else sys.stdout, piece)
            watch.wait()
        except Expired:
            pass
        return self.state

    def follow(self, *, on_change: Callable[["Job"], None] | None = None) -> Iterator[Piece]:
        """Yield `(stream, bytes)` until the job is final: every byte once, attempt by attempt.

        `prepare` comes first, then `output`, or `rank-0`, `rank-1` … for several processes. A
        server that dies is waited for, or started again if it is this machine's own, and the log
        goes on where it stopped. `on_change` is called whenever the job's state or reason moved.
        """
        return self._watch(on_change=on_change).follow()

    @overload
    def logs(
        self,
        stream: str | None = None,
        *,
        attempt: int | None = None,
        follow: Literal[False] = False,
    ) -> str: ...
    @overload
    def logs(
        self, stream: str | None = None, *, attempt: int | None = None, follow: Literal[True]
    ) -> Iterator[str]: ...

    def logs(
        self, stream: str | None = None, *, attempt: int | None = None, follow: bool = False
    ) -> str | Iterator[str]:
        """Return what the script wrote, or one `stream` of `streams()`, as text.

        With `follow`, an iterator of pieces that ends when no more can come.
        """
        text = _decoded(self.read_log(stream, attempt=attempt, follow=follow))
        return text if follow else "".join(text)

    def read_log(
        self, stream: str | None = None, *, attempt: int | None = None, follow: bool = False
    ) -> Iterator[bytes]:
        """Yield the exact bytes of one stream; left out: the output, ranks line by line."""
        if follow:
            yield from self._follow_log(stream, attempt)
            return
        query = {"stream": stream, "attempt": attempt}
        with self._connection.stream(f"{self._path}/logs", query) as answer:
            yield from answer

    def streams(self, *, attempt: int | None = None) -> list[Stream]:
        """List the parts of the log of one attempt, the last one if none is named."""
        found = self._connection.get(f"{self._path}/streams", {"attempt": attempt})
        return records(Stream, found)

    def outputs(self) -> list[Output]:
        """List the files the job has left so far: in `outputs/`, in `logs/`, and as artifacts."""
        return records(Output, self._connection.get(f"{self._path}/outputs"))

    def download(self, path: str = "", to: str | Path = ".") -> list[Path]:
        """Fetch one file, or all of a folder, or all there are, and return where they are.

        Files keep their whole path below `to`: `outputs/model.pkl` becomes `to/outputs/model.pkl`.
        Each appears complete or not at all, and is checked against its digest.
        """
        from retarget.sdk.downloads import download, wanted

        given.check("path", path, given.TEXT)
        given.check("to", to, given.PATH)
        chosen = wanted(self.outputs(), path, self.name)
        source = f"{self._path}/outputs"
        return [download(self._connection, source, each, Path(to)) for each in chosen]

    def tracking(self) -> Tracking:
        """Return all the job has logged, of each metric the latest point."""
        return read_tracking(self._connection, self._path)

    def metrics(self) -> dict[str, float]:
        """Return the latest value of each metric the job has logged."""
        return {key: point.value for key, point in self.tracking().metrics.items()}

    def params(self) -> dict[str, str]:
        """Return the params the job has logged."""
        return self.tracking().params

    def tags(self) -> dict[str, str]:
        return self.tracking().tags

    def metric_history(self, key: str, points: int = 1000) -> Series:
        """Return a metric by step: all its points or, of more than `points`, evenly taken ones.

        The first and the last are always among them; there may be 10,000 at most.
        """
        return read_series(self._connection, self._path, key, points)

    def register_model(
        self,
        name: str,
        path: str,
        *,
        description: str = "",
        tags: Mapping[str, str] | None = None,
    ) -> ModelVersion:
        """Make a version of a file or a folder that the job left, or of a model it logged.

        The model is made if there is none. The version keeps its files when the job is deleted.
        """
        about = {"description": description, "tags": given.tags(tags or {})}
        return register(self._connection, name, {"job": self.id, "path": path, **about})

    def cancel(self) -> None:
        """Ask for a stop and return at once; `wait` tells when it is done.

        A job that has ended already raises Conflict.
        """
        self.refresh(self._connection.post(f"{self._path}/cancel"))

    def rerun(self, *, target: str | None = None, name: str | None = None) -> "Job":
        """Submit the same code, command and environment again, on `target` if one is named."""
        body = {"target": target, "name": name}
        return Job(self._connection, self._connection.post(f"{self._path}/rerun", body))

    def why(self) -> Why:
        """Tell why the job is where it is, and what it waits for."""
        return record(Why, self._connection.get(f"{self._path}/why"))

    def history(self) -> list[Move]:
        """List every move of the job's state, the first one first."""
        return records(Move, self._connection.get(f"{self._path}/history"))

    def delete(self) -> None:
        """Remove a job that has ended, with its log, outputs, metrics and artifacts."""
        self._connection.delete(self._path)

    @property
    def _path(self) -> str:
        return job_path(self.id)

    def _watch(
        self,
        *,
        deadline: float | None = None,
        on_change: Callable[["Job"], None] | None = None,
    ) -> Watch:
        def changed(told: View) -> None:
            self._view = told
            if on_change is not None:
                on_change(self)

        return Watch(self._connection, self._view, deadline, changed)

    def _follow_log(self, stream: str | None, attempt: int | None) -> Iterator[bytes]:
        watch = self._watch()
        while not watch.view["attempt"] and not watch.is_final:
            watch.change()
        number = attempt or watch.view["attempt"]

        def read() -> Iterator[Piece]:
            return watch.stream(number, stream) if stream else watch.output(number)

        pieces = watch.to_the_end(number, read)
        for _, piece in pieces if stream else labelled(pieces):
            yield piece


class Jobs:
    """The jobs of a workspace."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __getitem__(self, name: str) -> Job:
        """Return the job with this name or id; NotFound if there is none."""
        return Job(self._connection, self._connection.get(job_path(name)))

    def __iter__(self) -> Iterator[Job]:
        return self._pages({})

    def list(
        self,
        *,
        state: str | Sequence[str] | None = None,
        target: str | None = None,
        experiment: str | None = None,
        limit: int = 100,
    ) -> list[Job]:
        """List jobs, the newest first, at most `limit`."""
        given.check("limit", limit, given.COUNT)
        query = {"state": state, "target": target, "experiment": experiment}
        found: list[Job] = []
        for job in self._pages(query, size=min(limit, _PAGE)):
            if len(found) >= limit:
                break
            found.append(job)
        return found

    def _pages(self, query: dict[str, Any], *, size: int = _PAGE) -> Iterator[Job]:
        before: str | None = None
        while True:
            asked = {**query, "limit": size, "before": before}
            page = [
                Job(self._connection, told)
                for told in rows(self._connection.get("/api/jobs", asked))
            ]
            yield from page
            if len(page) < size:
                return
            before = page[-1].id


def _decoded(pieces: Iterator[bytes]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for piece in pieces:
        yield decoder.decode(piece)
    yield decoder.decode(b"", final=True)


def _write(file: TextIO, piece: bytes) -> None:
    buffer = getattr(file, "buffer", None)  # a notebook's stdout takes text only
    if buffer is None:
        file.write(piece.decode(errors="replace"))
    else:
        file.flush()
        buffer.write(piece)
    file.flush()


def wait_all(connection: Connection, jobs: list[Job], timeout: float | None) -> list[JobState]:
    """Wait for many jobs with one request at a time, whatever servers come and go meanwhile."""
    deadline = None if timeout is None else time.monotonic() + timeout
    by_id = {job.id: job for job in jobs}
    ids = list(by_id)
    for some in (ids[at : at + _TOGETHER] for at in range(0, len(ids), _TOGETHER)):
        watch = Watch(connection, by_id[some[0]].to_json(), deadline)
        try:
            found = watch.wait_for_all(some)
        except Expired:
            found = [by_id[each].refresh().to_json() for each in some]
        for told in found:
            if told["id"] in by_id:
                by_id[told["id"]].refresh(told)
    return [job.state for job in jobs]
