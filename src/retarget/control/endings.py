"""Ends attempts that will not report their own end."""

from contextlib import suppress

from retarget.control.context import Context
from retarget.control.decide import failure_reason, on_ending, outcome_of
from retarget.control.report import current_attempt
from retarget.core.driver import Observation
from retarget.core.errors import Conflict, Gone
from retarget.core.jobs import Attempt


def end_observed(
    context: Context, attempt: Attempt, observation: Observation, diagnosis: str
) -> None:
    """End an attempt that will not report its own end, as was observed."""
    reason = failure_reason(observation, diagnosis)
    end_attempt(context, attempt, reason, outcome=outcome_of(observation))


def end_attempt(context: Context, attempt: Attempt, reason: str, *, outcome: str = "lost") -> None:
    """End an attempt that will not report its own end."""
    try:
        job, _ = current_attempt(context, attempt.key)
    except Gone:
        return  # it reported its end; its job may be deleted by now
    now = context.clock()
    verdict = on_ending(job, outcome, reason, None)
    with suppress(Conflict):  # it reported after all
        context.store.jobs.record(
            job,
            verdict.event,
            reason=verdict.reason,
            now=now,
            attempt={"ended_at": now, "reason": reason},
        )
        context.bus.wake()
