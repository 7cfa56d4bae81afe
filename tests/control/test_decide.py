from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retarget.control.decide import (
    MAX_PREEMPTIONS,
    MAX_RESUMES,
    Need,
    on_ending,
    on_observation,
    on_report,
    on_silence,
    outcome_of,
)
from retarget.core.driver import Observation, Phase
from retarget.core.jobs import Attempt
from retarget.core.states import LIVE, Event, JobState, advance
from tests.control.jobs import job

KINDS = st.sampled_from(["preparing", "environment", "starting", "started", "exited", "finished"])
OUTCOMES = st.sampled_from(["succeeded", "failed", "canceled", "lost", "preempted"])
LIVE_STATES = st.sampled_from(sorted(LIVE))


def finished(outcome: str, reason: str = "why", exit_code: int | None = None) -> dict[str, Any]:
    return {"kind": "finished", "outcome": outcome, "reason": reason, "exit_code": exit_code}


@given(LIVE_STATES, KINDS, OUTCOMES, st.integers(0, 2))
def test_every_decision_is_a_legal_transition(
    state: JobState, kind: str, outcome: str, retries: int
) -> None:
    current = job("a", state=state, attempt=1, retries=retries)
    verdict = on_report(current, finished(outcome) | {"kind": kind})
    succeeds_early = outcome == "succeeded" and state not in (
        JobState.FINALIZING,
        JobState.CANCELING,
    )
    if verdict is not None and not (kind == "finished" and succeeds_early):
        advance(state, verdict.event)
        assert verdict.reason


def test_a_failure_is_retried_as_often_as_requested() -> None:
    first = job("a", state=JobState.FINALIZING, attempt=1, retries=1)
    retried = on_ending(first, "failed", "rank 1 ended with exit code 3", 3)
    assert retried.event is Event.RETRIED
    assert retried.reason == "attempt 1 of 2: rank 1 ended with exit code 3; retrying"
    last = job("a", state=JobState.FINALIZING, attempt=2, failures=1, retries=1)
    assert on_ending(last, "failed", "no", 3).event is Event.FAILED


def test_a_preempted_attempt_costs_no_retry() -> None:
    running = job("a", state=JobState.RUNNING, attempt=1, retries=0)
    verdict = on_ending(running, "preempted", "its node was preempted", None)
    assert verdict.event is Event.PREEMPTED
    assert verdict.reason == (
        "its node was preempted; the job starts again, without using up a retry"
    )


def test_after_preemptions_a_job_has_all_its_retries() -> None:
    running = job("a", state=JobState.RUNNING, attempt=4, preemptions=3, retries=1)
    retried = on_ending(running, "failed", "exit code 1", 1)
    assert retried.event is Event.RETRIED
    assert retried.reason == "attempt 4 of 5: exit code 1; retrying"


@pytest.mark.parametrize(("retries", "event"), [(0, Event.FAILED), (1, Event.RETRIED)])
def test_a_job_that_is_preempted_again_and_again_fails(retries: int, event: Event) -> None:
    counts = {"attempt": MAX_PREEMPTIONS + 1, "preemptions": MAX_PREEMPTIONS}
    running = job("a", state=JobState.RUNNING, retries=retries, **counts)
    assert on_ending(running, "preempted", "its node was preempted", None).event is event


def test_only_a_preemption_is_no_fault_of_the_attempt() -> None:
    """A host that is lost or rebooted costs a retry, and so does a launch that was removed."""
    outcomes = {phase: outcome_of(Observation(phase=phase)) for phase in Phase}
    assert outcomes.pop(Phase.PREEMPTED) == "preempted"
    assert set(outcomes.values()) == {"lost"}


def test_a_failure_for_want_of_an_excluded_file_says_so() -> None:
    rows = [{"path": "data/", "rule": ".gitignore", "files": 1, "size": 21}]
    failing = job("a", state=JobState.FINALIZING, attempt=1, excluded=rows)
    verdict = on_ending(failing, "failed", "exit code 1: No such file: 'data/x.csv'", 1)
    assert verdict.reason == (
        "exit code 1: No such file: 'data/x.csv'; data/ was not sent because .gitignore excludes it"
    )


def test_a_canceled_job_is_never_retried() -> None:
    canceling = job("a", state=JobState.CANCELING, attempt=1, retries=5)
    assert {
        on_ending(canceling, outcome, "x", 1).event
        for outcome in ("failed", "lost", "canceled", "preempted")
    } == {Event.STOPPED}
    assert on_ending(canceling, "succeeded", "", 0).event is Event.SUCCEEDED


def test_a_dead_runner_is_restarted_but_not_for_ever() -> None:
    attempt = Attempt(key="k", job_id="a", number=1, target="local")
    dead = Observation(phase=Phase.DEAD)
    assert on_observation(attempt, dead) is Need.RESUME
    worn_out = attempt.model_copy(update={"resumes": MAX_RESUMES})
    assert on_observation(worn_out, dead) is Need.GIVE_UP


def test_a_launch_that_no_longer_exists_is_lost() -> None:
    attempt = Attempt(key="k", job_id="a", number=1, target="local")
    assert on_observation(attempt, Observation(phase=Phase.GONE)) is Need.GIVE_UP
    assert on_observation(attempt, Observation(phase=Phase.RUNNING)) is Need.NOTHING


def _silent(**change: Any) -> tuple[str | None, str]:
    current = job(
        "a", state=change.pop("state", JobState.RUNNING), attempt=1, retries=1, grace_seconds=10
    )
    attempt = Attempt(key="a", job_id="a", number=1, target="lab", created_at=0.0, **change)
    return on_silence(current, attempt, Observation(phase=Phase.SILENT, reason="lab2: down"), 1000)


def test_a_silent_launch_is_lost_only_after_lost_after_and_a_margin() -> None:
    assert _silent(last_seen_at=1000 - 300 - 10 - 59.0, lost_after_seconds=300.0)[0] is None
    lost, _ = _silent(last_seen_at=1000 - 300 - 10 - 61.0, lost_after_seconds=300.0)
    assert lost == "lab2: down; no report for 6m 11s"


def test_a_silent_launch_without_lost_after_is_never_lost() -> None:
    lost, reason = _silent(last_seen_at=1.0)
    assert lost is None
    assert reason == (
        "lab2: down; the job continues there, and its result is reported once the host answers"
    )


def test_a_canceled_job_does_not_wait_for_a_silent_node() -> None:
    assert _silent(last_seen_at=980.0, state=JobState.CANCELING)[0] is None
    assert _silent(last_seen_at=960.0, state=JobState.CANCELING)[0] == (
        "canceled, but the host did not respond: lab2: down"
    )
