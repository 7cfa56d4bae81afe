from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from retarget.control.decide import (
    MOST_RESUMES,
    Need,
    on_ending,
    on_observation,
    on_report,
    on_silence,
)
from retarget.core.driver import Observation, Phase
from retarget.core.jobs import Attempt
from retarget.core.states import LIVE, Event, JobState, advance
from tests.control.jobs import job

kinds = st.sampled_from(["preparing", "environment", "starting", "started", "exited", "finished"])
outcomes = st.sampled_from(["succeeded", "failed", "canceled", "lost"])
live = st.sampled_from(sorted(LIVE))


def ended(outcome: str, reason: str = "why", exit_code: int | None = None) -> dict[str, Any]:
    return {"kind": "finished", "outcome": outcome, "reason": reason, "exit_code": exit_code}


@given(live, kinds, outcomes, st.integers(0, 2))
def test_every_decision_is_a_legal_move(
    state: JobState, kind: str, outcome: str, retries: int
) -> None:
    present = job("a", state=state, attempt=1, retries=retries)
    verdict = on_report(present, ended(outcome) | {"kind": kind})
    succeeds_early = outcome == "succeeded" and state not in (
        JobState.FINALIZING,
        JobState.CANCELING,
    )
    if verdict is not None and not (kind == "finished" and succeeds_early):
        advance(state, verdict.event)
        assert verdict.reason


def test_a_failure_is_tried_again_as_often_as_asked() -> None:
    first = job("a", state=JobState.FINALIZING, attempt=1, retries=1)
    again = on_ending(first, "failed", "rank 1 ended with exit code 3", 3)
    assert again.event is Event.RETRIED
    assert again.reason == "attempt 1 of 2: rank 1 ended with exit code 3; trying again"
    last = job("a", state=JobState.FINALIZING, attempt=2, retries=1)
    assert on_ending(last, "failed", "no", 3).event is Event.FAILED


def test_a_job_told_to_stop_is_never_tried_again() -> None:
    told = job("a", state=JobState.CANCELING, attempt=1, retries=5)
    assert {
        on_ending(told, outcome, "x", 1).event for outcome in ("failed", "lost", "canceled")
    } == {Event.STOPPED}
    assert on_ending(told, "succeeded", "", 0).event is Event.SUCCEEDED


def test_a_dead_runner_is_started_again_but_not_for_ever() -> None:
    attempt = Attempt(key="k", job_id="a", number=1, target="local")
    dead = Observation(phase=Phase.DEAD)
    assert on_observation(attempt, dead) is Need.RESUME
    worn_out = attempt.model_copy(update={"resumes": MOST_RESUMES})
    assert on_observation(worn_out, dead) is Need.GIVE_UP


def test_what_left_no_trace_is_given_up() -> None:
    attempt = Attempt(key="k", job_id="a", number=1, target="local")
    assert on_observation(attempt, Observation(phase=Phase.GONE)) is Need.GIVE_UP
    assert on_observation(attempt, Observation(phase=Phase.RUNNING)) is Need.NOTHING


def _silent(**change: Any) -> tuple[str | None, str]:
    present = job("a", state=change.pop("state", JobState.RUNNING), attempt=1, retries=1, grace=10)
    attempt = Attempt(key="a", job_id="a", number=1, target="lab", created=0.0, **change)
    return on_silence(present, attempt, Observation(phase=Phase.SILENT, reason="lab2: down"), 1000)


def test_a_silent_launch_is_given_up_only_after_its_fence_and_a_margin() -> None:
    assert _silent(heard=1000 - 300 - 10 - 59.0, fence=300.0)[0] is None
    lost, _ = _silent(heard=1000 - 300 - 10 - 61.0, fence=300.0)
    assert lost == "lab2: down; nothing was heard of it for 371 s"


def test_a_silent_launch_without_a_fence_is_waited_for_and_says_so() -> None:
    lost, reason = _silent(heard=1.0)
    assert lost is None
    assert reason == ("lab2: down; its work goes on there unseen, and is reported when it answers")


def test_a_canceled_job_is_not_kept_by_a_silent_node() -> None:
    assert _silent(heard=980.0, state=JobState.CANCELING)[0] is None
    assert _silent(heard=960.0, state=JobState.CANCELING)[0] == (
        "canceled without an answer: lab2: down"
    )
