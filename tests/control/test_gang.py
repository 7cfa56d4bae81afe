"""The reports of several nodes, and what they mean for their job."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from retarget.control.gang import apply_events, first_failure, must_stop, on_reports
from retarget.core.jobs import Job, NodeReport
from retarget.core.states import FINAL, LIVE, Event, JobState
from tests.control.jobs import job

_ALL_KINDS = ("preparing", "starting", "started", "exited", "finished")


def _event(kind: str, seq: int, outcome: str = "succeeded") -> dict[str, Any]:
    reason = "" if outcome == "succeeded" else f"it {outcome}"
    code = {"succeeded": 0, "failed": 3}.get(outcome)
    return {"kind": kind, "seq": seq, "outcome": outcome, "reason": reason, "exit_code": code}


def _after(node: int, *kinds: str, outcome: str = "succeeded", at: float = 1.0) -> NodeReport:
    events = [_event(kind, number, outcome) for number, kind in enumerate(kinds, 1)]
    return apply_events(NodeReport(node=node, last_seen_at=0.0), events, at)


def _follow(current: Job, reports: list[NodeReport]) -> tuple[list[Event], Job]:
    """Advance a job as far as its reports allow."""
    events: list[Event] = []
    while current.state in LIVE and (verdict := on_reports(current, reports)):
        events.append(verdict.event)
        current = current.after(verdict.event, reason=verdict.reason, now=2.0)
    return events, current


def test_an_event_is_processed_once_and_in_order() -> None:
    report = _after(0, "preparing", "starting")
    again = apply_events(
        report, [_event("preparing", 1), _event("starting", 2), _event("exited", 4)], 5.0
    )
    assert (again.events_acked, again.exited_at, again.last_seen_at) == (2, None, 5.0)


def test_a_job_runs_when_all_of_its_nodes_do() -> None:
    current = job("g", state=JobState.LAUNCHING, attempt=1, nodes=2)
    one = [_after(0, "preparing", "starting", "started")]
    assert _follow(current, one)[0] == [Event.PREPARING]
    all_started = [*one, _after(1, "preparing", "starting", "started")]
    assert _follow(current, all_started)[0] == [Event.PREPARING, Event.STARTED]


def test_a_job_succeeds_when_all_of_its_nodes_have() -> None:
    current = job("g", state=JobState.RUNNING, attempt=1, nodes=2)
    one = [_after(0, *_ALL_KINDS), _after(1, *_ALL_KINDS[:4])]
    assert _follow(current, one)[0] == [Event.EXITED]
    events, ended = _follow(current, [_after(0, *_ALL_KINDS), _after(1, *_ALL_KINDS)])
    assert (events, ended.state) == ([Event.EXITED, Event.SUCCEEDED], JobState.SUCCEEDED)


def test_the_first_failure_stops_the_others_and_is_the_reason() -> None:
    current = job("g", state=JobState.RUNNING, attempt=1, nodes=3)
    failed = _after(1, *_ALL_KINDS, outcome="failed", at=5.0)
    reports = [
        _after(0, "preparing", "starting", "started"),
        failed,
        _after(2, *_ALL_KINDS[:3]),
    ]
    assert must_stop(current, reports)
    stopped = [
        _after(0, *_ALL_KINDS, outcome="canceled", at=6.0),
        failed,
        _after(2, *_ALL_KINDS, outcome="failed", at=7.0),
    ]
    _, ended = _follow(current, stopped)
    assert (ended.state, ended.reason) == (JobState.FAILED, "node 1: it failed")


def test_a_failure_is_retried_if_requested() -> None:
    current = job("g", state=JobState.RUNNING, attempt=1, nodes=2, retries=1)
    reports = [
        _after(0, *_ALL_KINDS, outcome="canceled"),
        _after(1, *_ALL_KINDS, outcome="lost"),
    ]
    assert _follow(current, reports)[0] == [Event.EXITED, Event.RETRIED]


def test_a_canceled_job_ends_as_canceled_when_all_have_stopped() -> None:
    current = job("g", state=JobState.CANCELING, attempt=1, nodes=2)
    assert must_stop(current, [])
    assert _follow(current, [_after(0, *_ALL_KINDS, outcome="canceled")])[0] == []
    all_stopped = [_after(node, *_ALL_KINDS, outcome="canceled") for node in (0, 1)]
    assert _follow(current, all_stopped)[1].state is JobState.CANCELED


@given(
    st.lists(st.integers(0, 5), min_size=3, max_size=3),
    st.lists(st.sampled_from(["succeeded", "failed", "lost", "canceled"]), min_size=3, max_size=3),
    st.sampled_from([JobState.LAUNCHING, JobState.CANCELING]),
)
def test_with_any_reports_a_job_changes_legally_and_ends_once_all_nodes_have(
    counts: list[int], outcomes: list[str], state: JobState
) -> None:
    reports = [
        _after(node, *_ALL_KINDS[:count], outcome=outcome, at=float(node))
        for node, (count, outcome) in enumerate(zip(counts, outcomes, strict=True))
        if count
    ]
    _, ended = _follow(job("g", state=state, attempt=1, nodes=3), reports)
    assert (ended.state in FINAL) == (counts == [5, 5, 5])
    if ended.state in FINAL and state is JobState.LAUNCHING:
        succeeded = first_failure(reports) is None
        assert ended.state is (JobState.SUCCEEDED if succeeded else JobState.FAILED)
