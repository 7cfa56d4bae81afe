"""Track files on their way to a real database: every line is taken in once, whatever breaks."""

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

from retarget.control.parts import Parts
from retarget.control.track import take_lines
from retarget.core.jobs import Job
from retarget.runner import lines
from retarget.runner.errors import Unreachable
from retarget.runner.folder import Folder
from retarget.runner.lines import Lines
from retarget.runner.server import Server
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
    taken: list[int] = []
    log = track._log  # pyright: ignore[reportPrivateUsage]

    def counted(db: Connection, run_id: str, logged: Logged) -> list[str]:
        taken.extend(point.step for point in logged.metrics)  # the same point twice is one row
        return log(db, run_id, logged)

    def way() -> Way:
        taken.clear()
        return Way(engine, place(add()), taken)

    monkeypatch.setattr(track, "_log", counted)
    monkeypatch.setattr(lines, "_CHUNK", 100)  # two lines
    steps = settings(max_examples=settings().max_examples // 10, stateful_step_count=30)
    run_state_machine_as_test(way, settings=steps)  # type: ignore[no-untyped-call]


class Way(RuleBasedStateMachine):
    """A script that logs, runners that are killed, requests that are lost or come late."""

    def __init__(self, engine: Engine, job: Job, taken: list[int]) -> None:
        super().__init__()
        self.job, self.taken, self.engine = job, taken, engine
        self.key = Jobs(engine).attempts(job.id)[-1].key
        self.store = TrackFiles(engine)
        self.place = tempfile.TemporaryDirectory()
        self.folder = Folder(self.place.name)
        os.mkdir(self.folder.track)
        os.mkdir(self.folder.streams)
        self.path = Path(self.folder.track, _NAME)
        self.path.touch()
        self.written = 0
        self.unwritten = b""
        self.start_another_runner()

    @rule(count=st.integers(1, 6), cut=st.integers(0, 60))
    def log(self, count: int, cut: int) -> None:
        """Write some lines, the last of them perhaps not to its end."""
        content = self.unwritten
        for step in range(self.written, self.written + count):
            point = {"m": {"loss": 0.5}, "s": step, "t": 1000 + step}
            content += json.dumps(point | {"é": "x" * (step % 7)}).encode() + b"\n"
        self.written += count
        at = max(len(content) - cut, 0)
        with self.path.open("ab") as file:
            file.write(content[:at])
        self.unwritten = content[at:]

    @rule()
    def start_another_runner(self) -> None:
        self.runner = Lines(self.folder)

    @rule(breaks=st.sampled_from(["", "before", "after"]), at=st.integers(0, 3))
    def send(self, breaks: str, at: int) -> None:
        """Let the runner send; its request number `at` may be lost, or the answer to it."""
        numbers = itertools.count()

        def ask(name: str, offset: int, content: bytes) -> dict[str, Any]:
            is_broken = next(numbers) == at
            if is_broken and breaks == "before":
                raise Unreachable("lost")
            answer = self._take(offset, content)
            if is_broken and breaks == "after":
                raise Unreachable("lost")
            return answer

        with suppress(Unreachable):
            self.runner.send(cast(Server, SimpleNamespace(track=ask)))

    @rule(begin=st.integers(0, 400), size=st.integers(0, 400))
    def come_late(self, begin: int, size: int) -> None:
        """Have any piece of the file come, as from a runner of which nothing else is known."""
        content = self.path.read_bytes()
        begin = content.rfind(b"\n", 0, begin) + 1
        self._take(begin, content[begin : begin + size])

    @rule()
    def overtake(self) -> None:
        """Have two runners send the same at the same time."""
        content = self.path.read_bytes()
        look = self.store.taken

        def looked(attempt: str, name: str) -> int:
            self.store.taken = look
            seen = look(attempt, name)
            self._take(0, content)
            return seen

        self.store.taken = looked
        self._take(0, content)

    @invariant()
    def what_is_taken_in_is_the_beginning_once(self) -> None:
        size = self.store.taken(self.key, _NAME)
        begun = self.path.read_bytes()[:size]
        assert begun == b"" or begun.endswith(b"\n")
        assert self.taken == list(range(begun.count(b"\n")))

    def teardown(self) -> None:
        self.log(1, 0)
        self.send("", 0)
        self.what_is_taken_in_is_the_beginning_once()
        kept = Metrics(self.engine).history(self.job.id, "loss", most=10_000)
        assert [point.step for point in kept] == self.taken == list(range(self.written))
        self.place.cleanup()

    def _take(self, offset: int, content: bytes) -> dict[str, Any]:
        parts = SimpleNamespace(jobs=Jobs(self.engine), runs=Runs(self.engine), track=self.store)
        size, refused = take_lines(cast(Parts, parts), self.key, _NAME, offset, content)
        assert not refused
        return {"size": size, "refused": refused}
