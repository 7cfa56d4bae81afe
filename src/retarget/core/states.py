"""The life of a job. This table is the only place that knows which moves are legal."""

from enum import StrEnum

from retarget.core.errors import Conflict


class JobState(StrEnum):
    QUEUED = "queued"  # waiting for room on its target
    LAUNCHING = "launching"  # given to the driver; its runner has not spoken yet
    PREPARING = "preparing"  # the runner fetches the code and builds or finds the environment
    RUNNING = "running"  # the user's process is there
    FINALIZING = "finalizing"  # it has ended; outputs and the end of the log are on their way
    CANCELING = "canceling"  # told to stop; still there
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"

    @property
    def is_final(self) -> bool:
        return self in FINAL


class Event(StrEnum):
    SUBMITTED = "submitted"
    PLACED = "placed"
    RETURNED = "returned"  # its place could not be reached, and nothing was started there
    PREPARING = "preparing"
    STARTED = "started"
    EXITED = "exited"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCEL_REQUESTED = "cancel_requested"
    STOPPED = "stopped"
    RETRIED = "retried"


S, E = JobState, Event
FINAL = frozenset({S.SUCCEEDED, S.FAILED, S.CANCELED})
# States in which an attempt exists on a target: it holds its slots and is polled.
LIVE = frozenset({S.LAUNCHING, S.PREPARING, S.RUNNING, S.FINALIZING, S.CANCELING})

TRANSITIONS: dict[tuple[JobState, Event], JobState] = {
    (S.QUEUED, E.PLACED): S.LAUNCHING,
    (S.QUEUED, E.CANCEL_REQUESTED): S.CANCELED,
    (S.QUEUED, E.FAILED): S.FAILED,
    (S.LAUNCHING, E.RETURNED): S.QUEUED,
    (S.LAUNCHING, E.PREPARING): S.PREPARING,
    (S.PREPARING, E.STARTED): S.RUNNING,
    (
        S.PREPARING,
        E.EXITED,
    ): S.FINALIZING,  # the environment could not be built: nothing was started
    (S.RUNNING, E.EXITED): S.FINALIZING,
    (S.FINALIZING, E.SUCCEEDED): S.SUCCEEDED,
    (S.CANCELING, E.SUCCEEDED): S.SUCCEEDED,  # finished before the signal arrived
    (S.CANCELING, E.STOPPED): S.CANCELED,
    (S.CANCELING, E.FAILED): S.CANCELED,
}
for _live in (S.LAUNCHING, S.PREPARING, S.RUNNING, S.FINALIZING):
    TRANSITIONS[_live, E.FAILED] = S.FAILED
    TRANSITIONS[_live, E.RETRIED] = S.QUEUED
    TRANSITIONS[_live, E.CANCEL_REQUESTED] = S.CANCELING


def advance(state: JobState, event: Event) -> JobState:
    """Return the state `event` leads to, or raise Conflict."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise Conflict(f"a {state} job cannot take {event.value!r}") from None
