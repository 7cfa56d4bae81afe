"""Processes the events of runners, each once and in order."""

import time
from typing import Any, Literal

from retarget.control.attempts import current_attempt
from retarget.control.context import Context
from retarget.control.decide import Verdict, on_report
from retarget.control.gang import apply_events, is_next, must_stop, on_reports, reason_of
from retarget.control.kept import take_kept
from retarget.control.locks import take_lock
from retarget.core.errors import Conflict, Invalid
from retarget.core.events import log_changed
from retarget.core.jobs import Attempt, Job, NodeReport
from retarget.core.states import Event, JobState
from retarget.store.job_rows import AppliedEvent, AttemptChange

_MAX_TRIES = 20
# the events whose time is stored with the attempt, and the field for it
_TIME_FIELDS: dict[str, Literal["preparing_at", "starting_at", "started_at", "exited_at"]] = {
    "preparing": "preparing_at",
    "starting": "starting_at",
    "started": "started_at",
    "exited": "exited_at",
}
_CLOCK_TOLERANCE_SECONDS = 30.0  # longer than a report takes to arrive
_FINAL_EVENTS = frozenset(
    {Event.SUCCEEDED, Event.FAILED, Event.STOPPED, Event.RETRIED, Event.PREEMPTED}
)


def take_events(
    context: Context, key: str, events: list[dict[str, Any]], node: int = 0
) -> tuple[int, bool]:
    """Process new events. Return how many are processed in all, and whether to stop."""
    conflict = Conflict("the job keeps changing; report again")
    for failures in range(_MAX_TRIES):
        if failures:
            time.sleep(0.002 * failures)
        job, attempt = current_attempt(context, key)
        if node >= job.spec.nodes:
            raise Invalid(
                f"node: {node} does not exist; the job has {job.spec.nodes} node(s)", field="node"
            )
        try:
            if job.spec.nodes > 1:
                return _take_report(context, job, attempt, node, events)
            job, events_acked = _take(context, job, attempt, events)
        except Conflict as error:
            conflict = error
            continue  # a user or another server changed it meanwhile: read it again
        return events_acked, job.state is JobState.CANCELING
    raise conflict


def to_server_clock(
    events: list[dict[str, Any]], *, sent: float | None, now: float
) -> list[dict[str, Any]]:
    """Return events with times by this server's clock if the clock of their host is wrong.

    `sent` is when they were sent, by the clock of the host.
    """
    shift = clock_shift(sent=sent, now=now)
    return [event | {"at": event["at"] + shift} for event in events] if shift else events


def clock_shift(*, sent: float | None, now: float) -> float:
    """Return what to add to the times of a host; 0 unless its clock is wrong."""
    shift = 0.0 if sent is None else now - sent
    return shift if abs(shift) >= _CLOCK_TOLERANCE_SECONDS else 0.0


def _take(
    context: Context, before: Job, attempt: Attempt, events: list[dict[str, Any]]
) -> tuple[Job, int]:
    """Process all events in one write, or raise Conflict: the first of them may be processed."""
    job, now, applied = before, context.clock(), list[AppliedEvent]()
    change: AttemptChange = {"last_seen_at": now, "events_acked": attempt.events_acked}
    for event in events:
        if not is_next(event, change["events_acked"]):
            continue  # processed already, or after a gap: the runner sends it again
        verdict = on_report(job, event)
        if verdict is not None and verdict.event in _FINAL_EVENTS and attempt.handle is None:
            # without a handle, its files on the target could never be found and removed
            _write(context, before, attempt, applied, change)
            raise Conflict("the launch is not recorded yet; report again")
        change["events_acked"] = event["seq"]
        change |= _recorded(context, job, event)
        take_kept(context, job, event)
        if verdict is not None:
            job = _after(job, verdict, event, now)
            applied.append(AppliedEvent(verdict.event, job))
        if verdict is not None and verdict.event in _FINAL_EVENTS:
            change |= {"ended_at": now, "exit_code": verdict.exit_code, "reason": event["reason"]}
            if removed := event.get("removed_outputs"):
                context.store.outputs.remove(before.id, before.attempt, *removed)
            break  # events after the end belong to no attempt
    _write(context, before, attempt, applied, change)
    return job, change["events_acked"]


def _take_report(
    context: Context, job: Job, attempt: Attempt, node: int, events: list[dict[str, Any]]
) -> tuple[int, bool]:
    """Process the events of one of several nodes. Advance the job as far as all nodes allow."""
    now = context.clock()
    reports = context.store.node_reports.of(attempt.key)
    before = next((report for report in reports if report.node == node), None)
    after = apply_events(before or NodeReport(node=node, last_seen_at=now), events, now)
    context.store.node_reports.replace(attempt.key, before, after)
    # read again: if two nodes report their last event at once, one of them must see both
    reports = context.store.node_reports.of(attempt.key)
    change: AttemptChange = {}
    if len(reports) == job.spec.nodes:  # the attempt is as silent as its most silent node
        change["last_seen_at"] = min(report.last_seen_at for report in reports)
    for event in events:
        recorded = _recorded(context, job, event)
        take_kept(context, job, event, node)
        if node == 0:
            change |= recorded
    applied, current = list[AppliedEvent](), job
    while verdict := on_reports(current, reports):
        if verdict.event in _FINAL_EVENTS and attempt.handle is None:
            raise Conflict("the launch is not recorded yet; report again")
        current = current.after(
            verdict.event,
            reason=verdict.reason,
            now=now,
            exit_code=verdict.exit_code,
            started_at=now if verdict.event is Event.STARTED else None,
        )
        applied.append(AppliedEvent(verdict.event, current))
        if verdict.event in _FINAL_EVENTS:
            change |= {
                "ended_at": now,
                "exit_code": verdict.exit_code,
                "reason": _attempt_reason(verdict, reports),
            }
            break
    _write(context, job, attempt, applied, change)
    return after.events_acked, must_stop(current, reports)


def _recorded(context: Context, job: Job, event: dict[str, Any]) -> AttemptChange:
    """Return what an event says about the attempt itself: its time, or the lock."""
    change: AttemptChange = {}
    if event["kind"] in _TIME_FIELDS:
        change[_TIME_FIELDS[event["kind"]]] = event["at"]
    elif lock := take_lock(context, job, event):
        change["lock"] = lock
    return change


def _attempt_reason(verdict: Verdict, reports: list[NodeReport]) -> str:
    if verdict.event is Event.SUCCEEDED:
        return ""
    return reason_of(reports) or verdict.reason


def _after(job: Job, verdict: Verdict, event: dict[str, Any], now: float) -> Job:
    started_at = event["at"] if verdict.event is Event.STARTED else None
    return job.after(
        verdict.event,
        reason=verdict.reason,
        now=now,
        exit_code=verdict.exit_code,
        started_at=started_at,
    )


def _write(
    context: Context,
    before: Job,
    attempt: Attempt,
    applied: list[AppliedEvent],
    change: AttemptChange,
) -> None:
    if not applied:
        if not change:
            return
        context.store.jobs.change_attempt(attempt.key, change)
        if "started_at" in change:  # this ends the stream `prepare`
            context.bus.publish([log_changed(before.id)])
        return
    context.store.jobs.write_transitions(before, applied, change)
    if applied[-1].event in _FINAL_EVENTS:
        context.bus.wake()
