from hypothesis import given
from hypothesis import strategies as st

from retarget.core.errors import Conflict
from retarget.core.states import FINAL, LIVE, TRANSITIONS, Event, JobState, advance


@given(st.lists(st.sampled_from(Event)))
def test_a_final_job_never_changes_its_state(events: list[Event]) -> None:
    state = JobState.QUEUED
    for event in events:
        was_final = state.is_final
        try:
            state = advance(state, event)
        except Conflict:
            continue
        assert not was_final


def test_every_state_is_reachable_and_every_live_one_can_end() -> None:
    assert _reachable(JobState.QUEUED) == set(JobState)
    assert all(_reachable(state) & FINAL for state in JobState)


def test_every_state_is_waiting_live_or_final() -> None:
    assert {JobState.QUEUED} | LIVE | FINAL == set(JobState)
    assert not LIVE & FINAL


def test_every_job_that_has_not_ended_can_be_canceled() -> None:
    for state in set(JobState) - FINAL - {JobState.CANCELING}:
        assert advance(state, Event.CANCEL_REQUESTED) in (JobState.CANCELING, JobState.CANCELED)


def _reachable(start: JobState) -> set[JobState]:
    reached, pending = {start}, [start]
    while pending:
        state = pending.pop()
        following = {to for (source, _), to in TRANSITIONS.items() if source is state} - reached
        reached |= following
        pending += following
    return reached
