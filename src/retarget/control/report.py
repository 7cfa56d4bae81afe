"""Takes in what runners report: events once and in order, streams by offset, output files."""

from typing import Any

from retarget.control.decide import Verdict, on_report
from retarget.control.parts import Parts
from retarget.core.errors import Conflict, Gone, NotFound
from retarget.core.jobs import Attempt, Job
from retarget.core.states import FINAL, Event, JobState
from retarget.store.jobs import AttemptChange

_TRIES = 20
_ENDS = frozenset({Event.SUCCEEDED, Event.FAILED, Event.STOPPED, Event.RETRIED})


def take_events(parts: Parts, key: str, events: list[dict[str, Any]]) -> tuple[int, bool]:
    """Take in the events not seen before. Return how many are, and whether to stop."""
    conflict = Conflict("the job keeps moving")
    for _ in range(_TRIES):
        job, attempt = present(parts, key)
        try:
            job, confirmed = _take(parts, job, attempt, events)
        except Conflict as error:
            conflict = error
            continue  # it moved meanwhile, by an order or another server: look again
        return confirmed, job.state is JobState.CANCELING
    raise conflict


def present(parts: Parts, key: str) -> tuple[Job, Attempt]:
    """Return the attempt and its job, or raise Gone when nothing more is wanted of it."""
    try:
        attempt = parts.jobs.attempt(key)
        job = parts.jobs.read(attempt.job_id)
    except NotFound:
        raise Gone("the job was deleted") from None
    if job.state in FINAL or job.attempt != attempt.number or attempt.ended is not None:
        raise Gone(f"attempt {attempt.number} of {job.name} is over")
    return job, attempt


def _take(
    parts: Parts, job: Job, attempt: Attempt, events: list[dict[str, Any]]
) -> tuple[Job, int]:
    confirmed, now = attempt.confirmed, parts.now()
    for event in events:
        if event["seq"] != confirmed + 1:
            continue  # seen already, or after a gap: it comes again
        confirmed += 1
        verdict = on_report(job, event)
        if verdict is not None:
            if verdict.event in _ENDS and attempt.handle is None:
                # ended now, what it left on its target would never be found and cleared away
                raise Conflict("its launch is not written down yet; report again")
            job = _move(parts, job, event, verdict)
            parts.notify(job.id)
    if attempt.ended is None and job.attempt == attempt.number and job.state not in FINAL:
        parts.jobs.change_attempt(attempt.key, {"heard": now, "confirmed": confirmed})
    return job, confirmed


def _move(parts: Parts, job: Job, event: dict[str, Any], verdict: Verdict) -> Job:
    now = parts.now()
    change: AttemptChange = {"confirmed": event["seq"], "heard": now}
    if verdict.event is Event.STARTED:
        change["started"] = event["at"]
    if verdict.event in _ENDS:
        change |= {"ended": now, "exit_code": verdict.exit_code, "reason": event["reason"]}
        for path in event.get("gone", []):
            parts.outputs.remove(job.id, job.attempt, path)
    moved = parts.jobs.record(
        job,
        verdict.event,
        reason=verdict.reason,
        now=now,
        exit_code=verdict.exit_code,
        attempt=change,
    )
    if verdict.event in _ENDS:
        parts.wake()
    return moved
