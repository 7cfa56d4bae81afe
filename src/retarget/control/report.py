"""Takes in what runners report: events once and in order, streams by offset, output files."""

import time
from typing import Any, Literal

from retarget.control.decide import Verdict, on_report
from retarget.control.gang import hear, is_to_stop, on_members, reason_of
from retarget.control.parts import Parts
from retarget.core.errors import Conflict, Gone, Invalid, NotFound
from retarget.core.jobs import Attempt, Job, Member
from retarget.core.states import FINAL, Event, JobState
from retarget.store.jobs import AttemptChange, Moved

_TRIES = 20
# the events whose time is kept with the attempt, and where
_TIMED: dict[str, Literal["preparing", "starting", "started", "exited"]] = {
    "preparing": "preparing",
    "starting": "starting",
    "started": "started",
    "exited": "exited",
}
_ASTRAY = 30.0  # seconds: longer than a report is under way
_ENDS = frozenset({Event.SUCCEEDED, Event.FAILED, Event.STOPPED, Event.RETRIED})


def take_events(
    parts: Parts, key: str, events: list[dict[str, Any]], node: int = 0
) -> tuple[int, bool]:
    """Take in the events not seen before. Return how many are, and whether to stop."""
    conflict = Conflict("the job keeps moving")
    for tried in range(_TRIES):
        if tried:
            time.sleep(0.002 * tried)
        job, attempt = present(parts, key)
        if node >= job.spec.nodes:
            raise Invalid(f"node: the job has {job.spec.nodes} of them", field="node")
        try:
            if job.spec.nodes > 1:
                return _take_member(parts, job, attempt, node, events)
            job, confirmed = _take(parts, job, attempt, events)
        except Conflict as error:
            conflict = error
            continue  # it moved meanwhile, by an order or another server: look again
        return confirmed, job.state is JobState.CANCELING
    raise conflict


def by_our_clock(
    events: list[dict[str, Any]], *, sent: float | None, now: float
) -> list[dict[str, Any]]:
    """Return events with the times of this server, where the clock of their machine is wrong.

    `sent` is when they were sent, by that clock.
    """
    late = 0.0 if sent is None else now - sent
    if abs(late) < _ASTRAY:
        return events
    return [event | {"at": event["at"] + late} for event in events]


def present(parts: Parts, key: str) -> tuple[Job, Attempt]:
    """Return the attempt and its job, or raise Gone when nothing more is wanted of it."""
    try:
        job, attempt = parts.jobs.with_attempt(key)
    except NotFound:
        raise Gone("the job was deleted") from None
    if job.state in FINAL or job.attempt != attempt.number or attempt.ended is not None:
        raise Gone(f"attempt {attempt.number} of {job.name} is over")
    return job, attempt


def _take(
    parts: Parts, before: Job, attempt: Attempt, events: list[dict[str, Any]]
) -> tuple[Job, int]:
    """Take in all of them in one write, or raise Conflict: then some may be taken in, in order."""
    job, now, moves = before, parts.now(), list[Moved]()
    change: AttemptChange = {"heard": now, "confirmed": attempt.confirmed}
    for event in events:
        if event["seq"] != change["confirmed"] + 1:
            continue  # seen already, or after a gap: it comes again
        verdict = on_report(job, event)
        if verdict is not None and verdict.event in _ENDS and attempt.handle is None:
            # ended now, what it left on its target would never be found and cleared away
            _write(parts, before, attempt, moves, change)
            raise Conflict("its launch is not written down yet; report again")
        change["confirmed"] += 1
        if event["kind"] in _TIMED:
            change[_TIMED[event["kind"]]] = event["at"]
        if verdict is not None:
            job = _after(job, verdict, event, now)
            moves.append(Moved(verdict.event, job))
        if verdict is not None and verdict.event in _ENDS:
            change |= {"ended": now, "exit_code": verdict.exit_code, "reason": event["reason"]}
            if gone := event.get("gone"):
                parts.outputs.remove(before.id, before.attempt, *gone)
            break  # what comes after the end is of no attempt
    _write(parts, before, attempt, moves, change)
    return job, change["confirmed"]


def _take_member(
    parts: Parts, job: Job, attempt: Attempt, node: int, events: list[dict[str, Any]]
) -> tuple[int, bool]:
    """Take in what one node of several says, and move the job as far as all of them have come."""
    now = parts.now()
    before = next((each for each in parts.members.of(attempt.key) if each.node == node), None)
    after = hear(before or Member(node=node, heard=now), events, now)
    parts.members.replace(attempt.key, before, after)
    # read again: of two nodes that say the last thing at once, one must see both
    members = parts.members.of(attempt.key)
    change: AttemptChange = {}
    if len(members) == job.spec.nodes:  # it is as silent as the most silent of them
        change["heard"] = min(each.heard for each in members)
    for event in events if node == 0 else ():
        if event["kind"] in _TIMED:
            change[_TIMED[event["kind"]]] = event["at"]
    moves, moving = list[Moved](), job
    while verdict := on_members(moving, members):
        if verdict.event in _ENDS and attempt.handle is None:
            raise Conflict("its launch is not written down yet; report again")
        moving = moving.after(
            verdict.event,
            reason=verdict.reason,
            now=now,
            exit_code=verdict.exit_code,
            started=now if verdict.event is Event.STARTED else None,
        )
        moves.append(Moved(verdict.event, moving))
        if verdict.event in _ENDS:
            change |= {
                "ended": now,
                "exit_code": verdict.exit_code,
                "reason": _told_of(verdict, members),
            }
            break
    _write(parts, job, attempt, moves, change)
    return after.confirmed, is_to_stop(moving, members)


def _told_of(verdict: Verdict, members: list[Member]) -> str:
    if verdict.event is Event.SUCCEEDED:
        return ""
    return reason_of(members) or verdict.reason


def _after(job: Job, verdict: Verdict, event: dict[str, Any], now: float) -> Job:
    started = event["at"] if verdict.event is Event.STARTED else None
    return job.after(
        verdict.event, reason=verdict.reason, now=now, exit_code=verdict.exit_code, started=started
    )


def _write(
    parts: Parts, before: Job, attempt: Attempt, moves: list[Moved], change: AttemptChange
) -> None:
    if not moves:
        if not change:
            return
        parts.jobs.change_attempt(attempt.key, change)
        return
    parts.jobs.write_moves(before, moves, change)
    parts.notify(before.id)
    if moves[-1].event in _ENDS:
        parts.wake()
