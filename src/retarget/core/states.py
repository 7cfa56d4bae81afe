"""The state machine of a job. This table alone defines the legal transitions."""

from enum import StrEnum

from retarget.core.errors import Conflict


class JobState(StrEnum):
    QUEUED = "queued"  # waiting for free resources on its target
    LAUNCHING = "launching"  # passed to the driver; the runner has not reported yet
    PREPARING = "preparing"  # the runner downloads the code and builds or reuses the environment
    RUNNING = "running"  # the user's process is running
    FINALIZING = "finalizing"  # the process exited; outputs and logs are being uploaded
    CANCELING = "canceling"  # asked to stop; still running
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"

    @property
    def is_final(self) -> bool:
        return self in FINAL


class Event(StrEnum):
    SUBMITTED = "submitted"
    PLACED = "placed"
    UNPLACED = "unplaced"  # the node was unreachable, and nothing was started on it
    PREPARING = "preparing"
    STARTED = "started"
    EXITED = "exited"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCEL_REQUESTED = "cancel_requested"
    STOPPED = "stopped"
    RETRIED = "retried"
    PREEMPTED = "preempted"  # its target took the node away: it is placed again


S, E = JobState, Event
FINAL = frozenset({S.SUCCEEDED, S.FAILED, S.CANCELED})
# In these states an attempt exists on a target: it holds resources and is polled.
LIVE = frozenset({S.LAUNCHING, S.PREPARING, S.RUNNING, S.FINALIZING, S.CANCELING})

TRANSITIONS: dict[tuple[JobState, Event], JobState] = {
    (S.QUEUED, E.PLACED): S.LAUNCHING,
    (S.QUEUED, E.CANCEL_REQUESTED): S.CANCELED,
    (S.QUEUED, E.FAILED): S.FAILED,
    (S.LAUNCHING, E.UNPLACED): S.QUEUED,
    (S.LAUNCHING, E.PREPARING): S.PREPARING,
    (S.PREPARING, E.STARTED): S.RUNNING,
    # the environment could not be built: nothing was started
    (S.PREPARING, E.EXITED): S.FINALIZING,
    (S.RUNNING, E.EXITED): S.FINALIZING,
    (S.FINALIZING, E.SUCCEEDED): S.SUCCEEDED,
    (S.CANCELING, E.SUCCEEDED): S.SUCCEEDED,  # finished before the signal arrived
    (S.CANCELING, E.STOPPED): S.CANCELED,
    (S.CANCELING, E.FAILED): S.CANCELED,
}
for _live in (S.LAUNCHING, S.PREPARING, S.RUNNING, S.FINALIZING):
    TRANSITIONS[_live, E.FAILED] = S.FAILED
    TRANSITIONS[_live, E.RETRIED] = S.QUEUED
    TRANSITIONS[_live, E.PREEMPTED] = S.QUEUED
    TRANSITIONS[_live, E.CANCEL_REQUESTED] = S.CANCELING


def advance(state: JobState, event: Event) -> JobState:
    """Return the state that `event` leads to, or raise Conflict."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise Conflict(f"the event {event.value!r} is not allowed for a {state} job") from None
