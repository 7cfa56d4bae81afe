"""What users order about jobs that are there already, and what they ask."""

import time
from typing import Any

from retarget.control.parts import Parts
from retarget.control.place import place
from retarget.control.reconcile import forget
from retarget.core.driver import Handle
from retarget.core.errors import Conflict, RetargetError
from retarget.core.jobs import Attempt, Job
from retarget.core.snapshots import decode
from retarget.core.states import LIVE, Event, JobState
from retarget.core.targets import Facts
from retarget.core.units import show_duration

_LEAVING = 10.0  # seconds a runner that has reported its end may take to be gone
_HEAD = 64  # jobs at the head of a queue that are looked at to tell why one waits
_SILENT = 15.0  # seconds without a word from a runner after which its target is asked


def cancel(parts: Parts, name: str) -> Job:
    """Ask a job to stop. It answers at once; the job ends when its processes have."""
    while True:
        job = parts.jobs.find(name)
        if job.state is JobState.CANCELING:
            return job
        if job.state.is_final:
            raise Conflict(f"job {job.name!r} has ended already: {job.state}")
        try:
            now = parts.now()
            queued = job.state is JobState.QUEUED
            reason = "canceled before it started" if queued else "told to stop; waiting for its end"
            job = parts.jobs.record(job, Event.CANCEL_REQUESTED, reason=reason, now=now)
        except Conflict:
            continue  # it moved meanwhile: look again
        parts.notify(job.id)
        parts.wake()
        return job


def delete(parts: Parts, name: str) -> None:
    """Remove a job that has ended, with its logs, outputs and artifacts, but no registered model.

    Blobs go at the next collection.
    """
    job = parts.jobs.find(name)
    attempts = parts.jobs.attempts(job.id)
    if job.state.is_final:
        _clear_away(parts, job, [attempt for attempt in attempts if attempt.handle])
        parts.artifacts.remove_of(job.id)
    parts.jobs.delete(job)
    for attempt in attempts:
        parts.streams.remove(attempt.key)
    parts.notify(job.id)


def _clear_away(parts: Parts, job: Job, attempts: list[Attempt]) -> None:
    """Have the targets remove what is left of a job; a runner may need a moment to leave."""
    deadline = time.monotonic() + _LEAVING
    for attempt in attempts:
        while not forget(parts, [attempt]):
            if time.monotonic() > deadline:
                raise Conflict(f"job {job.name!r} is still being cleared away; try again")
            time.sleep(0.05)


def wanted_blobs(parts: Parts) -> set[str]:
    """Return every blob that a job, an environment, an artifact or a model refers to."""
    wanted = parts.outputs.digests() | parts.artifacts.digests()
    snapshots = parts.jobs.snapshots() | parts.jobs.contexts() | parts.environments.contexts()
    for snapshot in snapshots | parts.models.snapshots():
        wanted |= {snapshot, *decode(parts.blobs.path(snapshot).read_bytes()).digests()}
    return wanted


def why(parts: Parts, job: Job) -> dict[str, Any]:
    """Explain where a job is, in words."""
    reason, behind = job.reason, list[str]()
    if job.state is JobState.QUEUED:
        reason, behind = _waiting(parts, job)
    return {
        "state": job.state,
        "reason": reason,
        "behind": behind,
        "diagnosis": _diagnosis(parts, job),
    }


def _waiting(parts: Parts, job: Job) -> tuple[str, list[str]]:
    """Return what a queued job waits for now, and everybody who is ahead of it."""
    target = parts.targets.find(job.spec.target)
    live = [pair for pair in parts.jobs.live() if pair[1].target == target.name]
    # Of a long queue the head tells it all: whoever is further back waits behind one of these.
    queue = {other.id: other for other in parts.jobs.queued(target.name, most=_HEAD)}
    placements = place(list((queue | {job.id: job}).values()), live, target.facts or Facts())
    reasons = {placement.job.id: placement.reason for placement in placements}
    behind = [other.name for other, _ in live] + parts.jobs.ahead_of(job)
    return reasons[job.id] or job.reason, behind


def _diagnosis(parts: Parts, job: Job) -> str | None:
    """Return what the target says of a runner that has not spoken for a while."""
    if job.state not in LIVE:
        return None
    attempt = parts.jobs.attempts(job.id)[-1]
    silent = parts.now() - (attempt.heard or attempt.created)
    if attempt.handle is None or silent < _SILENT:
        return None
    try:
        said = parts.driver(attempt.target).diagnose(Handle(attempt.handle))
    except RetargetError as error:
        said = str(error)
    return f"its runner has said nothing for {show_duration(silent)}; {said}"
