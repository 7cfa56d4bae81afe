"""Combines the reports of several nodes into the state of their job."""

from collections.abc import Sequence
from typing import Any

from retarget.control.decide import Verdict, on_ending
from retarget.core.jobs import Job, NodeReport
from retarget.core.states import Event, JobState

S, E = JobState, Event


def apply_events(report: NodeReport, events: Sequence[dict[str, Any]], now: float) -> NodeReport:
    """Return the report of a node after these events. Pure."""
    for event in events:
        if not is_next(event, report.events_acked):
            continue  # processed already, or after a gap: the runner sends it again
        report = report.model_copy(update=_changes(event, now) | {"events_acked": event["seq"]})
    return report.model_copy(update={"last_seen_at": now})


def is_next(event: dict[str, Any], events_acked: int) -> bool:
    """Return whether an event follows those that were processed. Pure.

    After a `forgotten` event, those before it will never come: the runner's host has lost them.
    """
    if event["kind"] == "forgotten":
        return event["seq"] > events_acked
    return event["seq"] == events_acked + 1


def on_reports(job: Job, reports: Sequence[NodeReport]) -> Verdict | None:
    """Return the next transition of the job, given the reports of all nodes. Pure."""
    complete = len(reports) == job.spec.nodes
    failed = first_failure(reports)
    if job.state is S.LAUNCHING and any(report.preparing for report in reports):
        return Verdict(E.PREPARING, "preparing the code and the environment on its nodes")
    if job.state is S.PREPARING and complete and all(report.started for report in reports):
        return Verdict(E.STARTED, f"the script is running on {job.spec.nodes} nodes")
    if not complete or any(report.exited_at is None for report in reports):
        return None
    reason = reason_of(reports) or "the script ended with exit code 0"
    if job.state in (S.PREPARING, S.RUNNING):
        return Verdict(E.EXITED, f"{reason}; uploading outputs and logs")
    if all(report.finished for report in reports):
        if failed is None:
            return on_ending(job, "succeeded", "", 0)
        return on_ending(job, failed.outcome, reason, failed.exit_code)
    return None


def must_stop(job: Job, reports: Sequence[NodeReport]) -> bool:
    """Return whether all nodes must stop: the job is canceled, or one node failed."""
    return job.state is S.CANCELING or first_failure(reports) is not None


def first_failure(reports: Sequence[NodeReport]) -> NodeReport | None:
    """Return the report that failed first. The others are stopped because of it."""
    unsuccessful = [
        report
        for report in reports
        if report.exited_at is not None and report.outcome != "succeeded"
    ]
    failed = [report for report in unsuccessful if report.outcome != "canceled"]
    return min(failed or unsuccessful, key=lambda report: report.exited_at or 0.0, default=None)


def reason_of(reports: Sequence[NodeReport]) -> str:
    """Return how an attempt failed and on which node; empty if it did not."""
    failed = first_failure(reports)
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
