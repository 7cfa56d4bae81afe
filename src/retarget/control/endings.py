"""Ends attempts that will not report their own end."""

from contextlib import suppress

from retarget.control.context import Context
from retarget.control.decide import on_ending
from retarget.control.report import current_attempt
from retarget.core.errors import Conflict, Gone
from retarget.core.jobs import Attempt
from retarget.core.states import Event, JobState


def end_attempt(context: Context, attempt: Attempt, reason: str) -> None:
    """End an attempt that will not report its own end."""
    try:
        job, _ = current_attempt(context, attempt.key)
    except Gone:
        return  # it reported its end; its job may be deleted by now
    now = context.clock()
    verdict = on_ending(job, "lost", reason, None)
    event = Event.STOPPED if job.state is JobState.CANCELING else verdict.event
    with suppress(Conflict):  # it reported after all
        context.store.jobs.record(
            job,
            event,
            reason=verdict.reason,
            now=now,
            attempt={"ended_at": now, "reason": reason},
        )
        context.bus.wake()
