"""Track files uploaded to a real database: every line is stored once, whatever fails."""

import itertools
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from sqlalchemy import Connection, Engine

from retarget.control.context import Context
from retarget.control.track import process_lines
from retarget.core.jobs import Job
from retarget.runner import track_upload
from retarget.runner.errors import Unreachable
from retarget.runner.folder import Folder
from retarget.runner.server import Server
from retarget.runner.track_upload import Lines
from retarget.store import track
from retarget.store.jobs import Jobs
from retarget.store.metrics import Metrics
from retarget.store.runs import Runs
from retarget.store.track import Logged, TrackFiles

_NAME = "1-a.jsonl"


def test_each_line_is_taken_in_once(
    engine: Engine,
    add: Callable[..., Job],
    place: Callable[[Job], Job],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logged_steps: list[int] = []
    log = track._log  # pyright: ignore[reportPrivateUsage]

    def counting_log(db: Connection, run_id: str, logged: Logged) -> list[str]:
        logged_steps.extend(
            point.step for point in logged.metrics
        )  # the same point twice is one row
        return log(db, run_id, logged)

    def uploads() -> TrackUploads:
        logged_steps.clear()
        return TrackUploads(engine, place(add()), logged_steps)

    monkeypatch.setattr(track, "_log", counting_log)
    monkeypatch.setattr(track_upload, "_CHUNK_BYTES", 100)  # two lines
    steps = settings(max_examples=settings().max_examples // 10, stateful_step_count=30)
    run_state_machine_as_test(uploads, settings=steps)  # type: ignore[no-untyped-call]


class TrackUploads(RuleBasedStateMachine):
    """A script that logs, runners that are killed, and requests that are lost or late."""

    def __init__(self, engine: Engine, job: Job, logged_steps: list[int]) -> None:
        super().__init__()
        self.job, self.logged_steps, self.engine = job, logged_steps, engine
        self.key = Jobs(engine).attempts(job.id)[-1].key
        self.store = TrackFiles(engine)
        self.tmpdir = tempfile.TemporaryDirectory()
        self.folder = Folder(self.tmpdir.name)
        os.mkdir(self.folder.track)
        os.mkdir(self.folder.streams)
        self.path = Path(self.folder.track, _NAME)
        self.path.touch()
        self.written = 0
        self.unwritten = b""
        self.start_another_runner()

    @rule(count=st.integers(1, 6), cut=st.integers(0, 60))
    def log(self, count: int, cut: int) -> None:
        """Write some lines, the last of them perhaps only in part."""
        content = self.unwritten
        for step in range(self.written, self.written + count):
            point = {"m": {"loss": 0.5}, "s": step, "t": 1000 + step}
            content += json.dumps(point | {"é": "x" * (step % 7)}).encode() + b"\n"
        self.written += count
        end = max(len(content) - cut, 0)
        with self.path.open("ab") as file:
            file.write(content[:end])
        self.unwritten = content[end:]

    @rule()
    def start_another_runner(self) -> None:
        self.runner = Lines(self.folder)

    @rule(failure=st.sampled_from(["", "before", "after"]), failing=st.integers(0, 3))
    def send(self, failure: str, failing: int) -> None:
        """Let the runner send. Request number `failing`, or its answer, may be lost."""
        numbers = itertools.count()

        def upload(name: str, offset: int, content: bytes) -> dict[str, Any]:
            fails = next(numbers) == failing
            if fails and failure == "before":
                raise Unreachable("lost")
            answer = self._take(offset, content)
            if fails and failure == "after":
                raise Unreachable("lost")
            return answer

        with suppress(Unreachable):
            self.runner.send(cast(Server, SimpleNamespace(track=upload, connections=1)))

    @rule(begin=st.integers(0, 400), size=st.integers(0, 400))
    def send_late(self, begin: int, size: int) -> None:
        """Send any piece of the file, like a late request of an earlier runner."""
        content = self.path.read_bytes()
        begin = content.rfind(b"\n", 0, begin) + 1
        self._take(begin, content[begin : begin + size])

    @rule()
    def overtake(self) -> None:
        """Let two runners send the same bytes at the same time."""
        content = self.path.read_bytes()
        read_size = self.store.processed_bytes

        def read_size_and_race(attempt: str, name: str) -> int:
            self.store.processed_bytes = read_size
            size = read_size(attempt, name)
            self._take(0, content)
            return size

        self.store.processed_bytes = read_size_and_race
        self._take(0, content)

    @invariant()
    def each_line_of_a_prefix_is_taken_in_once(self) -> None:
        size = self.store.processed_bytes(self.key, _NAME)
        prefix = self.path.read_bytes()[:size]
        assert prefix == b"" or prefix.endswith(b"\n")
        assert self.logged_steps == list(range(prefix.count(b"\n")))

    def teardown(self) -> None:
        self.log(1, 0)
        self.send("", 0)
        self.each_line_of_a_prefix_is_taken_in_once()
        points = Metrics(self.engine).history(self.job.id, "loss", limit=10_000)
        assert [point.step for point in points] == self.logged_steps == list(range(self.written))
        self.tmpdir.cleanup()

    def _take(self, offset: int, content: bytes) -> dict[str, Any]:
        nouns = {"jobs": Jobs(self.engine), "runs": Runs(self.engine), "track": self.store}
        context = SimpleNamespace(store=SimpleNamespace(**nouns))
        size, refused = process_lines(cast(Context, context), self.key, _NAME, offset, content)
        assert not refused
        return {"size": size, "refused": refused}
