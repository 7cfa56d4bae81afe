"""What several nodes say, each for itself, and what it means for their job."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from retarget.control.gang import first_failure, hear, is_to_stop, on_members
from retarget.core.jobs import Job, Member
from retarget.core.states import FINAL, LIVE, Event, JobState
from tests.control.jobs import job

_WELL = ("preparing", "starting", "started", "exited", "finished")


def _said(kind: str, seq: int, outcome: str = "succeeded") -> dict[str, Any]:
    reason = "" if outcome == "succeeded" else f"it {outcome}"
    code = {"succeeded": 0, "failed": 3}.get(outcome)
    return {"kind": kind, "seq": seq, "outcome": outcome, "reason": reason, "exit_code": code}


def _after(node: int, *kinds: str, outcome: str = "succeeded", at: float = 1.0) -> Member:
    events = [_said(kind, number, outcome) for number, kind in enumerate(kinds, 1)]
    return hear(Member(node=node, heard=0.0), events, at)


def _follow(present: Job, members: list[Member]) -> tuple[list[Event], Job]:
    """Move a job as far as its members have come."""
    events: list[Event] = []
    while present.state in LIVE and (verdict := on_members(present, members)):
        events.append(verdict.event)
        present = present.after(verdict.event, reason=verdict.reason, now=2.0)
    return events, present


def test_an_event_is_heard_once_and_in_order() -> None:
    once = _after(0, "preparing", "starting")
    again = hear(once, [_said("preparing", 1), _said("starting", 2), _said("exited", 4)], 5.0)
    assert (again.confirmed, again.exited, again.heard) == (2, None, 5.0)


def test_a_job_runs_when_all_of_its_nodes_do() -> None:
    present = job("g", state=JobState.LAUNCHING, attempt=1, nodes=2)
    one = [_after(0, "preparing", "starting", "started")]
    assert _follow(present, one)[0] == [Event.PREPARING]
    both = [*one, _after(1, "preparing", "starting", "started")]
    assert _follow(present, both)[0] == [Event.PREPARING, Event.STARTED]


def test_a_job_succeeds_when_all_of_its_nodes_have() -> None:
    present = job("g", state=JobState.RUNNING, attempt=1, nodes=2)
    one = [_after(0, *_WELL), _after(1, *_WELL[:4])]
    assert _follow(present, one)[0] == [Event.EXITED]
    events, ended = _follow(present, [_after(0, *_WELL), _after(1, *_WELL)])
    assert (events, ended.state) == ([Event.EXITED, Event.SUCCEEDED], JobState.SUCCEEDED)


def test_the_first_failure_stops_the_others_and_is_the_reason() -> None:
    present = job("g", state=JobState.RUNNING, attempt=1, nodes=3)
    failed = _after(1, *_WELL, outcome="failed", at=5.0)
    others = [_after(0, "preparing", "starting", "started"), failed, _after(2, *_WELL[:3])]
    assert is_to_stop(present, others)
    stopped = [
        _after(0, *_WELL, outcome="canceled", at=6.0),
        failed,
        _after(2, *_WELL, outcome="failed", at=7.0),
    ]
    _, ended = _follow(present, stopped)
    assert (ended.state, ended.reason) == (JobState.FAILED, "node 1: it failed")


def test_a_failure_is_tried_again_if_that_was_asked_for() -> None:
    present = job("g", state=JobState.RUNNING, attempt=1, nodes=2, retries=1)
    members = [_after(0, *_WELL, outcome="canceled"), _after(1, *_WELL, outcome="lost")]
    assert _follow(present, members)[0] == [Event.EXITED, Event.RETRIED]


def test_a_canceled_job_ends_as_canceled_when_all_have_stopped() -> None:
    present = job("g", state=JobState.CANCELING, attempt=1, nodes=2)
    assert is_to_stop(present, [])
    assert _follow(present, [_after(0, *_WELL, outcome="canceled")])[0] == []
    both = [_after(node, *_WELL, outcome="canceled") for node in (0, 1)]
    assert _follow(present, both)[1].state is JobState.CANCELED


@given(
    st.lists(st.integers(0, 5), min_size=3, max_size=3),
    st.lists(st.sampled_from(["succeeded", "failed", "lost", "canceled"]), min_size=3, max_size=3),
    st.sampled_from([JobState.LAUNCHING, JobState.CANCELING]),
)
def test_whatever_they_say_a_job_moves_legally_and_ends_once_all_have(
    heard: list[int], outcomes: list[str], state: JobState
) -> None:
    members = [
        _after(node, *_WELL[:count], outcome=outcome, at=float(node))
        for node, (count, outcome) in enumerate(zip(heard, outcomes, strict=True))
        if count
    ]
    _, ended = _follow(job("g", state=state, attempt=1, nodes=3), members)
    assert (ended.state in FINAL) == (heard == [5, 5, 5])
    if ended.state in FINAL and state is JobState.LAUNCHING:
        well = first_failure(members) is None
        assert ended.state is (JobState.SUCCEEDED if well else JobState.FAILED)
