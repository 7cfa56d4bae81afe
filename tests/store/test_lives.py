"""Jobs under any sequence of valid and invalid events on a real database: none ends twice."""

import itertools
import tempfile
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

from retarget.control import jobs
from retarget.control.attempts import end_attempt
from retarget.control.context import Context
from retarget.control.report import take_events
from retarget.core.errors import Conflict, Gone
from retarget.core.jobs import Attempt, Job, JobSpec, Transition
from retarget.core.names import new_id
from retarget.core.states import LIVE, TRANSITIONS, Event, JobState
from retarget.core.targets import Target
from retarget.server.event_bus import EventBus
from retarget.store.engine import migrate, open_engine
from retarget.store.store import Store

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
    job_ids = Bundle[str]("job_ids")

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.clock = itertools.count(1_000_000)
        store = Store(engine, server=lambda: "")
        self.jobs, self.targets = store.jobs, store.targets
        self.context = cast(
            Context,
            SimpleNamespace(store=store, bus=EventBus(), clock=lambda: float(next(self.clock))),
        )
        self.first_versions: dict[str, Job] = {}  # as each job was first stored, out of date later
        self.final_histories: dict[str, list[Transition]] = {}

    @initialize()
    def have_a_target(self) -> None:
        self.targets.save(Target(name="local", kind="local"))

    @rule(target=job_ids, retries=st.integers(0, 2))
    def submit(self, retries: int) -> str:
        now = self.context.clock()
        spec = JobSpec(command=("true",), retries=retries)
        fields: dict[str, Any] = {
            "reason": "waits",
            "version": 0,
            "created_at": now,
            "changed_at": now,
        }
        job = Job(id=new_id(now), name=new_id(now), state=JobState.QUEUED, spec=spec, **fields)
        self.jobs.add(job)
        self.first_versions[job.id] = job
        return job.id

    @rule(job=job_ids, is_accepted=st.booleans())
    def place(self, job: str, is_accepted: bool) -> None:
        now, current = self.context.clock(), self.jobs.read(job)
        attempt = Attempt(key=new_id(now), job_id=job, number=current.attempt + 1, target="local")
        placements = self.targets.placements("local")
        if current.state is JobState.QUEUED:
            self.jobs.place(
                current, attempt, reason="there is room", now=now, placements=placements
            )
            if is_accepted:
                self.jobs.change_attempt(attempt.key, {"handle": "h"})
        else:
            with pytest.raises(Conflict):
                self.jobs.place(
                    current, attempt, reason="there is room", now=now, placements=placements
                )

    @rule(
        job=job_ids,
        chance=st.integers(0, 9),
        shift=st.integers(-1, 2),
        kind=_KINDS,
        outcome=_OUTCOMES,
    )
    def report(self, job: str, chance: int, shift: int, kind: str, outcome: str) -> None:
        """Report an event from the current runner or an earlier one, in order or not."""
        attempts = self.jobs.attempts(job)
        if attempts:
            attempt = attempts[-1 if chance else 0]
            event: dict[str, Any] = {
                "seq": attempt.events_acked + shift,
                "at": 5.0,
                "kind": kind,
                "removed_outputs": [],
            }
            event |= {"outcome": outcome, "reason": "why", "exit_code": 1}
            with suppress(Gone, Conflict):
                take_events(self.context, attempt.key, [event])

    @rule(job=job_ids)
    def lose(self, job: str) -> None:
        """Let the loop give up all attempts of the job, even those that have ended."""
        for attempt in self.jobs.attempts(job):
            end_attempt(self.context, attempt, "it is gone")

    @rule(job=job_ids)
    def preempt(self, job: str) -> None:
        """Let the target take the nodes of all attempts away, even of those that have ended."""
        for attempt in self.jobs.attempts(job):
            end_attempt(self.context, attempt, "its node was preempted", outcome="preempted")

    @rule(job=job_ids)
    def unplace(self, job: str) -> None:
        """Undo a placement that started nothing. Anything that was started stays."""
        now, current, attempts = self.context.clock(), self.jobs.read(job), self.jobs.attempts(job)
        for attempt in attempts[-1:]:
            if current.state is JobState.LAUNCHING and attempt.handle is None:
                self.jobs.unplace(current, attempt, reason="unreachable", now=now)
            else:
                with pytest.raises(Conflict):
                    self.jobs.unplace(current, attempt, reason="unreachable", now=now)
                assert self.jobs.read(job) == current

    @rule(job=job_ids)
    def cancel(self, job: str) -> None:
        current = self.jobs.read(job)
        if current.state.is_final:
            with pytest.raises(Conflict):
                jobs.cancel(self.context, job)
        else:
            state = jobs.cancel(self.context, job).state
            assert state in (JobState.CANCELING, JobState.CANCELED)

    @rule(job=job_ids, event=st.sampled_from(Event))
    def apply_an_invalid_or_stale_event(self, job: str, event: Event) -> None:
        current, first = self.jobs.read(job), self.first_versions[job]
        for before in (current, first):
            if (before.state, event) not in TRANSITIONS or before.version != current.version:
                with pytest.raises(Conflict):
                    self.jobs.record(before, event, reason="no", now=5.0)
        assert self.jobs.read(job) == current

    @rule(job=consumes(job_ids))
    def delete(self, job: str) -> None:
        current = self.jobs.read(job)
        if current.state.is_final:
            self.jobs.delete(current)
            assert self.jobs.history(job) == []
        else:
            with pytest.raises(Conflict):
                self.jobs.delete(current)
        self.first_versions.pop(job)
        self.final_histories.pop(job, None)

    @invariant()
    def every_history_is_valid(self) -> None:
        for job_id in self.first_versions:
            job, history = self.jobs.read(job_id), self.jobs.history(job_id)
            _check_history(history)
            assert (history[-1].state, job.state.is_final) == (job.state, job.ended_at is not None)
            self._check_attempts(job, history)
            if job.state.is_final:
                assert self.final_histories.setdefault(job_id, history) == history

    def _check_attempts(self, job: Job, history: list[Transition]) -> None:
        attempts = self.jobs.attempts(job.id)
        placed = sum(transition.event == Event.PLACED for transition in history)
        unplaced = sum(transition.event == Event.UNPLACED for transition in history)
        assert [attempt.number for attempt in attempts] == list(range(1, placed - unplaced + 1))
        live = [attempt.number for attempt in attempts if attempt.ended_at is None]
        assert live == ([job.attempt] if job.state in LIVE else [])
        ended = [Event(transition.event) for transition in history]
        assert job.preemptions == ended.count(Event.PREEMPTED)
        assert job.failures == ended.count(Event.RETRIED) + ended.count(Event.FAILED)
        assert job.failures <= job.spec.retries + 1
        assert len(attempts) <= job.spec.retries + 1 + job.preemptions


def _check_history(history: list[Transition]) -> None:
    assert (history[0].event, history[0].state) == (Event.SUBMITTED, JobState.QUEUED)
    for before, after in itertools.pairwise(history):
        assert TRANSITIONS[before.state, Event(after.event)] is after.state
        assert before.version < after.version
    assert sum(transition.state.is_final for transition in history) <= 1
