"""Combines the reports of several nodes into the state of their job."""

from collections.abc import Sequence
from typing import Any

from retarget.control.decide import Verdict, on_ending
from retarget.core.jobs import Job, Member
from retarget.core.states import Event, JobState

S, E = JobState, Event


def apply_events(member: Member, events: Sequence[dict[str, Any]], now: float) -> Member:
    """Return a member after these events. Pure."""
    for event in events:
        if not is_next(event, member.events_acked):
            continue  # processed already, or after a gap: the runner sends it again
        member = member.model_copy(update=_changes(event, now) | {"events_acked": event["seq"]})
    return member.model_copy(update={"last_seen_at": now})


def is_next(event: dict[str, Any], events_acked: int) -> bool:
    """Return whether an event follows those that were processed. Pure.

    After a `forgotten` event, those before it will never come: the runner's host has lost them.
    """
    if event["kind"] == "forgotten":
        return event["seq"] > events_acked
    return event["seq"] == events_acked + 1


def on_members(job: Job, members: Sequence[Member]) -> Verdict | None:
    """Return the next transition of the job, given the reports of all nodes. Pure."""
    complete = len(members) == job.spec.nodes
    failed = first_failure(members)
    if job.state is S.LAUNCHING and any(member.preparing for member in members):
        return Verdict(E.PREPARING, "preparing the code and the environment on its nodes")
    if job.state is S.PREPARING and complete and all(member.started for member in members):
        return Verdict(E.STARTED, f"the script is running on {job.spec.nodes} nodes")
    if not complete or any(member.exited_at is None for member in members):
        return None
    reason = reason_of(members) or "the script ended with exit code 0"
    if job.state in (S.PREPARING, S.RUNNING):
        return Verdict(E.EXITED, f"{reason}; uploading outputs and logs")
    if all(member.finished for member in members):
        if failed is None:
            return on_ending(job, "succeeded", "", 0)
        return on_ending(job, failed.outcome, reason, failed.exit_code)
    return None


def must_stop(job: Job, members: Sequence[Member]) -> bool:
    """Return whether all nodes must stop: the job is canceled, or one node failed."""
    return job.state is S.CANCELING or first_failure(members) is not None


def first_failure(members: Sequence[Member]) -> Member | None:
    """Return the member that failed first. The others are stopped because of it."""
    unsuccessful = [
        member
        for member in members
        if member.exited_at is not None and member.outcome != "succeeded"
    ]
    failed = [member for member in unsuccessful if member.outcome != "canceled"]
    return min(failed or unsuccessful, key=lambda member: member.exited_at or 0.0, default=None)


def reason_of(members: Sequence[Member]) -> str:
    """Return how an attempt failed and on which node; empty if it did not."""
    failed = first_failure(members)
    return f"node {failed.node}: {failed.reason}" if failed else ""


def _changes(event: dict[str, Any], now: float) -> dict[str, Any]:
    match event["kind"]:
        case "preparing":
            return {"preparing": True}
        case "started":
            return {"started": True}
        case "exited" | "finished" as kind:
            result = {name: event[name] for name in ("outcome", "reason", "exit_code")}
            return result | ({"exited_at": now} if kind == "exited" else {"finished": True})
        case _:
            return {}
