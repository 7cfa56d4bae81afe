"""One attempt: whether it is current, its end without a report, and its removal from its target."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from retarget.control.context import Context
from retarget.control.decide import failure_reason, on_ending, outcome_of
from retarget.core.driver import Driver, Handle, Observation, Phase
from retarget.core.errors import Conflict, Gone, NotFound, TargetUnreachable
from retarget.core.jobs import Attempt, Job
from retarget.core.states import FINAL

RUNNER_EXIT_SECONDS = 10.0  # a runner that has ended or was asked to stop exits within this time
_POLL_SECONDS = 0.05


def current_attempt(context: Context, key: str) -> tuple[Job, Attempt]:
    """Return an attempt and its job, or raise Gone if the attempt has ended."""
    try:
        job, attempt = context.store.jobs.with_attempt(key)
    except NotFound:
        raise Gone("the job was deleted") from None
    if job.state in FINAL or job.attempt != attempt.number or attempt.ended_at is not None:
        raise Gone(f"attempt {attempt.number} of job {job.name!r} has ended")
    return job, attempt


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


def forget(context: Context, ended: Sequence[Attempt]) -> list[Attempt]:
    """Remove ended attempts of one target from it. Return those that could not be removed yet."""
    if ended[0].target in context.store.target_locks.held():
        return list(ended)
    try:
        return forget_on(context, context.driver(ended[0].target), ended)
    except NotFound:  # the target was detached: nothing is left to remove
        context.store.jobs.clear_handles([attempt.key for attempt in ended])
        return []
    except TargetUnreachable:
        return list(ended)  # once it answers again


def forget_on(context: Context, driver: Driver, ended: Sequence[Attempt]) -> list[Attempt]:
    """Remove ended attempts with this driver. Return those whose runner is still running."""
    context.files.sync()  # from now on, only this server has what they reported
    running, forgotten = list[Attempt](), list[str]()
    try:
        handles = [Handle(attempt.handle or "") for attempt in ended]
        for attempt, handle, observation in zip(ended, handles, driver.poll(handles), strict=True):
            if observation.phase is Phase.RUNNING:
                running.append(attempt)
            else:
                driver.forget(handle)
                forgotten.append(attempt.key)
    finally:
        context.store.jobs.clear_handles(forgotten)
    return running


def forget_soon(
    ended: Sequence[Attempt], forget_once: Callable[[Sequence[Attempt]], list[Attempt]]
) -> list[Attempt]:
    """Remove ended attempts whose runners may need a moment to exit. Return those that remain."""
    remaining, deadline = list(ended), time.monotonic() + RUNNER_EXIT_SECONDS
    while remaining and (remaining := forget_once(remaining)) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return remaining


def cancel_and_forget(context: Context, driver: Driver, attempt: Attempt) -> None:
    """Stop an attempt that has ended for its job, and remove it if it stops soon."""
    driver.cancel(Handle(attempt.handle or ""))
    forget_soon([attempt], lambda ended: forget_on(context, driver, ended))
