"""Attempts on several nodes: each reports for itself, and together they make the job move."""

from collections.abc import Sequence
from typing import Any

from retarget.control.decide import Verdict, on_ending
from retarget.core.jobs import Job, Member
from retarget.core.states import Event, JobState

S, E = JobState, Event


def hear(member: Member, events: Sequence[dict[str, Any]], now: float) -> Member:
    """Return a member as it is after what it has said. Pure."""
    for event in events:
        if event["seq"] != member.confirmed + 1:
            continue  # heard already, or after a gap: it comes again
        member = member.model_copy(update=_told(event, now) | {"confirmed": event["seq"]})
    return member.model_copy(update={"heard": now})


def on_members(job: Job, members: Sequence[Member]) -> Verdict | None:
    """Return the next move that what all nodes have said amounts to. Pure."""
    everybody = len(members) == job.spec.nodes
    failed = first_failure(members)
    if job.state is S.LAUNCHING and any(each.preparing for each in members):
        return Verdict(E.PREPARING, "laying out the code and the environment on its nodes")
    if job.state is S.PREPARING and everybody and all(each.started for each in members):
        return Verdict(E.STARTED, f"the script is running on {job.spec.nodes} nodes")
    if not everybody or any(each.exited is None for each in members):
        return None
    reason = reason_of(members) or "the script ended with exit code 0"
    if job.state in (S.PREPARING, S.RUNNING):
        return Verdict(E.EXITED, f"{reason}; collecting outputs and the end of the log")
    if all(each.finished for each in members):
        if failed is None:
            return on_ending(job, "succeeded", "", 0)
        return on_ending(job, failed.outcome, reason, failed.exit_code)
    return None


def is_to_stop(job: Job, members: Sequence[Member]) -> bool:
    """Tell whether the nodes that still run have to stop: one for all."""
    return job.state is S.CANCELING or first_failure(members) is not None


def first_failure(members: Sequence[Member]) -> Member | None:
    """Return the member whose end ends the others: of those that failed the first."""
    ended = [each for each in members if each.exited is not None and each.outcome != "succeeded"]
    own = [each for each in ended if each.outcome != "canceled"]
    return min(own or ended, key=lambda each: each.exited or 0.0, default=None)


def reason_of(members: Sequence[Member]) -> str:
    """Say how an attempt failed, and on which node; empty when it did not."""
    failed = first_failure(members)
    return f"node {failed.node}: {failed.reason}" if failed else ""


def _told(event: dict[str, Any], now: float) -> dict[str, Any]:
    match event["kind"]:
        case "preparing":
            return {"preparing": True}
        case "started":
            return {"started": True}
        case "exited" | "finished" as kind:
            how = {name: event[name] for name in ("outcome", "reason", "exit_code")}
            return how | ({"exited": now} if kind == "exited" else {"finished": True})
        case _:
            return {}
