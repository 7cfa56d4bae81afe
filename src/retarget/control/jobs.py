"""Requests about existing jobs: cancel, relabel, delete, explain."""

from typing import Any

from retarget.control.attempts import forget, forget_soon
from retarget.control.context import Context
from retarget.control.hints import hint_of
from retarget.control.place import place
from retarget.core.driver import Handle
from retarget.core.errors import Conflict, RetargetError
from retarget.core.jobs import Attempt, Job
from retarget.core.labels import LabelChanges
from retarget.core.states import LIVE, Event, JobState
from retarget.runner.durations import show_duration

_MAX_QUEUE_HEAD = 64  # jobs at the head of a queue that explain why a job waits
_DIAGNOSE_SECONDS = 15.0  # a runner silent for longer is diagnosed on its target


def cancel(context: Context, name: str) -> Job:
    """Ask a job to stop and return at once. The job ends when its processes have exited."""
    while True:
        job = context.store.jobs.find(name)
        if job.state is JobState.CANCELING:
            return job
        if job.state.is_final:
            raise Conflict(f"job {job.name!r} has already ended: {job.state}")
        try:
            now = context.clock()
            queued = job.state is JobState.QUEUED
            reason = (
                "canceled before it started"
                if queued
                else "stop requested; waiting for the job to end"
            )
            job = context.store.jobs.record(job, Event.CANCEL_REQUESTED, reason=reason, now=now)
        except Conflict:
            continue  # its state changed meanwhile: read it again
        context.bus.wake()
        return job


def relabel(context: Context, name: str, changes: LabelChanges) -> Job:
    """Change what a job is labelled with, in any state, or raise Invalid."""
    while True:
        try:
            return context.store.jobs.relabel(context.store.jobs.find(name), changes)
        except Conflict:
            continue  # its state changed meanwhile: read it again


def delete(context: Context, name: str) -> None:
    """Remove an ended job with its logs, outputs and artifacts. Registered models stay.

    The next prune removes the blobs.
    """
    job = context.store.jobs.find(name)
    attempts = context.store.jobs.attempts(job.id)
    if job.state.is_final:
        _clean_up(context, job, [attempt for attempt in attempts if attempt.handle])
        context.store.artifacts.remove_of_job(job.id)
    context.store.jobs.delete(job)
    for attempt in attempts:
        context.files.streams.remove(attempt.key)


def _clean_up(context: Context, job: Job, attempts: list[Attempt]) -> None:
    """Remove the files of a job from its targets. A runner may need a moment to exit."""
    for attempt in attempts:
        if forget_soon([attempt], lambda ended: forget(context, ended)):
            raise Conflict(f"job {job.name!r} is still being removed from its target; try again")


def why(context: Context, job: Job) -> dict[str, Any]:
    """Explain the state of a job."""
    reason, behind = job.reason, list[str]()
    if job.state is JobState.QUEUED:
        reason, behind = _waiting(context, job)
    return {
        "state": job.state,
        "reason": reason,
        "behind": behind,
        "diagnosis": _diagnosis(context, job),
        "hint": hint_of(context, job),
    }


def _waiting(context: Context, job: Job) -> tuple[str, list[str]]:
    """Return why a queued job waits, and the names of the jobs ahead of it."""
    target = context.store.targets.find(job.spec.target)
    live = [pair for pair in context.store.jobs.live() if pair[1].target == target.name]
    # The head of a long queue is enough: every other job waits behind one of these.
    queue = {
        other.id: other for other in context.store.jobs.queued(target.name, limit=_MAX_QUEUE_HEAD)
    }
    behind = [other.name for other, _ in live] + context.store.jobs.ahead_of(job)
    if target.inventory is None:
        return job.reason, behind
    placements = place(list((queue | {job.id: job}).values()), live, target.inventory)
    reasons = {placement.job.id: placement.reason for placement in placements}
    return reasons[job.id] or job.reason, behind


def _diagnosis(context: Context, job: Job) -> str | None:
    """Return what the target knows about a runner that has not reported for a while."""
    if job.state not in LIVE:
        return None
    attempt = context.store.jobs.attempts(job.id)[-1]
    silence = context.clock() - (attempt.last_seen_at or attempt.created_at)
    if attempt.handle is None or silence < _DIAGNOSE_SECONDS:
        return None
    try:
        diagnosis = context.driver(attempt.target).diagnose(Handle(attempt.handle))
    except RetargetError as error:
        diagnosis = str(error)
    return f"the runner has not reported for {show_duration(silence)}; {diagnosis}"
