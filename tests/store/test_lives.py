"""Jobs under any order of events, right and wrong, on a real database: each ends once, or never."""

import itertools
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import Engine

from retarget.control import orders
from retarget.control.parts import Parts
from retarget.control.reconcile import Loop
from retarget.control.report import take_events
from retarget.core.errors import Conflict, Gone
from retarget.core.jobs import Attempt, Job, JobSpec, Move
from retarget.core.names import new_id
from retarget.core.states import LIVE, TRANSITIONS, Event, JobState
from retarget.core.targets import Target
from retarget.store.engine import migrate, open_engine
from retarget.store.jobs import Jobs
from retarget.store.outputs import Outputs
from retarget.store.targets import Targets

_KINDS = st.sampled_from(["preparing", "started", "exited", "finished", "finished", "news"])
_OUTCOMES = st.sampled_from(["succeeded", "failed", "canceled", "lost"])


def test_a_job_ends_once_whatever_happens_to_it() -> None:
    with tempfile.TemporaryDirectory() as folder:
        engine = open_engine(f"sqlite:///{Path(folder) / 'lives.db'}")
        migrate(engine)
        steps = settings(max_examples=settings().max_examples // 10, stateful_step_count=40)
        run_state_machine_as_test(lambda: Lives(engine), settings=steps)  # type: ignore[no-untyped-call]
        engine.dispose()


class Lives(RuleBasedStateMachine):
    jobs_there = Bundle[str]("jobs_there")

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.clock = itertools.count(1_000_000)
        self.jobs, self.targets = Jobs(engine), Targets(engine)
        self.parts = cast(
            Parts,
            SimpleNamespace(
                jobs=self.jobs,
                targets=self.targets,
                outputs=Outputs(engine),
                now=lambda: float(next(self.clock)),
                wake=lambda: None,
                notify=_nothing,
            ),
        )
        self.loop = Loop(self.parts, threading.Event(), every=1.0)
        self.known: dict[str, Job] = {}  # as each was first seen, long out of date
        self.ended: dict[str, list[Move]] = {}

    @initialize()
    def have_a_target(self) -> None:
        self.targets.save(Target(name="local", kind="local"))

    @rule(target=jobs_there, retries=st.integers(0, 2))
    def submit(self, retries: int) -> str:
        now = self.parts.now()
        spec = JobSpec(command=("true",), retries=retries)
        told: dict[str, Any] = {"reason": "waits", "version": 0, "created": now, "changed": now}
        made = Job(id=new_id(now), name=new_id(now), state=JobState.QUEUED, spec=spec, **told)
        self.jobs.add(made)
        self.known[made.id] = made
        return made.id

    @rule(job=jobs_there, is_taken=st.booleans())
    def place(self, job: str, is_taken: bool) -> None:
        now, found = self.parts.now(), self.jobs.read(job)
        fresh = Attempt(key=new_id(now), job_id=job, number=found.attempt + 1, target="local")
        seen = self.targets.placements("local")
        if found.state is JobState.QUEUED:
            self.jobs.place(found, fresh, reason="there is room", now=now, seen=seen)
            if is_taken:
                self.jobs.change_attempt(fresh.key, {"handle": "h"})
        else:
            with pytest.raises(Conflict):
                self.jobs.place(found, fresh, reason="there is room", now=now, seen=seen)

    @rule(
        job=jobs_there,
        chance=st.integers(0, 9),
        shift=st.integers(-1, 2),
        kind=_KINDS,
        outcome=_OUTCOMES,
    )
    def report(self, job: str, chance: int, shift: int, kind: str, outcome: str) -> None:
        """Let a runner of the job report, the present one or an earlier one, in order or not."""
        attempts = self.jobs.attempts(job)
        if attempts:
            attempt = attempts[-1 if chance else 0]
            event: dict[str, Any] = {
                "seq": attempt.confirmed + shift,
                "at": 5.0,
                "kind": kind,
                "gone": [],
            }
            event |= {"outcome": outcome, "reason": "why", "exit_code": 1}
            with suppress(Gone, Conflict):
                take_events(self.parts, attempt.key, [event])

    @rule(job=jobs_there)
    def lose(self, job: str) -> None:
        """Have the loop give the job's attempts up, those that are over too."""
        for attempt in self.jobs.attempts(job):
            self.loop._end(attempt, "it is gone")  # pyright: ignore[reportPrivateUsage]

    @rule(job=jobs_there)
    def take_back(self, job: str) -> None:
        """Have a place given up that nothing came of; what was started stays."""
        now, found, attempts = self.parts.now(), self.jobs.read(job), self.jobs.attempts(job)
        for attempt in attempts[-1:]:
            if found.state is JobState.LAUNCHING and attempt.handle is None:
                self.jobs.take_back(found, attempt, reason="nobody is there", now=now)
            else:
                with pytest.raises(Conflict):
                    self.jobs.take_back(found, attempt, reason="nobody is there", now=now)
                assert self.jobs.read(job) == found

    @rule(job=jobs_there)
    def cancel(self, job: str) -> None:
        was = self.jobs.read(job)
        if was.state.is_final:
            with pytest.raises(Conflict):
                orders.cancel(self.parts, job)
        else:
            now = orders.cancel(self.parts, job).state
            assert now in (JobState.CANCELING, JobState.CANCELED)

    @rule(job=jobs_there, event=st.sampled_from(Event))
    def move_it_against_the_table_or_by_old_news(self, job: str, event: Event) -> None:
        now, old = self.jobs.read(job), self.known[job]
        for seen in (now, old):
            if (seen.state, event) not in TRANSITIONS or seen.version != now.version:
                with pytest.raises(Conflict):
                    self.jobs.record(seen, event, reason="no", now=5.0)
        assert self.jobs.read(job) == now

    @rule(job=consumes(jobs_there))
    def delete(self, job: str) -> None:
        was = self.jobs.read(job)
        if was.state.is_final:
            self.jobs.delete(was)
            assert self.jobs.history(job) == []
        else:
            with pytest.raises(Conflict):
                self.jobs.delete(was)
        self.known.pop(job)
        self.ended.pop(job, None)

    @invariant()
    def every_history_is_one_life(self) -> None:
        for job_id in self.known:
            job, moves = self.jobs.read(job_id), self.jobs.history(job_id)
            _check_moves(moves)
            assert (moves[-1].state, job.state.is_final) == (job.state, job.ended is not None)
            self._check_attempts(job, moves)
            if job.state.is_final:
                assert self.ended.setdefault(job_id, moves) == moves

    def _check_attempts(self, job: Job, moves: list[Move]) -> None:
        attempts = self.jobs.attempts(job.id)
        placed = sum(move.event == Event.PLACED for move in moves)
        returned = sum(move.event == Event.RETURNED for move in moves)
        assert [each.number for each in attempts] == list(range(1, placed - returned + 1))
        at_work = [each.number for each in attempts if each.ended is None]
        assert at_work == ([job.attempt] if job.state in LIVE else [])
        assert len(attempts) <= job.spec.retries + 1


def _nothing(_: str) -> None: ...


def _check_moves(moves: list[Move]) -> None:
    assert (moves[0].event, moves[0].state) == (Event.SUBMITTED, JobState.QUEUED)
    for before, after in itertools.pairwise(moves):
        assert TRANSITIONS[before.state, Event(after.event)] is after.state
        assert before.version < after.version
    assert sum(move.state.is_final for move in moves) <= 1
