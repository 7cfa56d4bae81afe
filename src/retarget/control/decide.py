"""What a report or an observation means for a job. Pure: the whole policy can be read here."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from retarget.core.driver import Observation, Phase
from retarget.core.jobs import Attempt, Job
from retarget.core.states import Event, JobState

MOST_RESUMES = 20  # a runner that dies this often is not going to live

# Seconds beyond its fence after which a launch has surely been ended by its runner: a request that
# was under way at first, the end of its processes, and clocks that are not quite alike.
MARGIN = 60.0
_UNHEARD = 30.0  # seconds of silence after which a canceled job is not waited for

S, E = JobState, Event


@dataclass(frozen=True)
class Verdict:
    """A move for the job, and the reason the user reads."""

    event: Event
    reason: str
    exit_code: int | None = None


class Need(StrEnum):
    """What an observation asks of the loop."""

    NOTHING = "nothing"
    RESUME = "resume"  # launch again: the runner died, and another takes up its work
    GIVE_UP = "give up"


def on_report(job: Job, event: dict[str, Any]) -> Verdict | None:
    """Return the move an event of the runner amounts to, or None when it is only news."""
    where = event.get("node", job.spec.target)
    match event["kind"]:
        case "preparing" if job.state is S.LAUNCHING:
            return Verdict(E.PREPARING, f"laying out the code and the environment on {where}")
        case "started" if job.state is S.PREPARING:
            return Verdict(E.STARTED, "the script is running")
        case "exited" if job.state in (S.PREPARING, S.RUNNING):
            return Verdict(E.EXITED, _ended(event) + "; collecting outputs and the end of the log")
        case "finished":
            return on_ending(job, event["outcome"], event["reason"], event["exit_code"])
        case _:
            return None


def on_ending(job: Job, outcome: str, reason: str, exit_code: int | None) -> Verdict:
    """Return what the end of the present attempt means for the job."""
    if outcome == "succeeded":
        return Verdict(E.SUCCEEDED, "the script ended with exit code 0", 0)
    if job.state is S.CANCELING:
        return Verdict(E.STOPPED, "canceled", exit_code)
    if job.retries_left > 0:
        again = f"attempt {job.attempt} of {job.spec.retries + 1}: {reason}; trying again"
        return Verdict(E.RETRIED, again, exit_code)
    return Verdict(E.FAILED, reason, exit_code)


def on_observation(attempt: Attempt, seen: Observation) -> Need:
    """Return what to do about a live attempt that its driver sees like this."""
    match seen.phase:
        case Phase.PENDING | Phase.RUNNING | Phase.SILENT:
            return Need.NOTHING
        case Phase.DEAD if attempt.resumes < MOST_RESUMES:
            return Need.RESUME
        case Phase.DEAD | Phase.EXITED | Phase.GONE:
            return Need.GIVE_UP


def on_silence(job: Job, attempt: Attempt, seen: Observation, now: float) -> tuple[str | None, str]:
    """Return why a launch that cannot be seen is given up, or None, and what its job waits for.

    It is tried elsewhere only when its runner, which counts too, has ended it by itself. One
    whose job is canceled need not be waited for: nothing is started in its place.
    """
    silent = now - (attempt.heard or attempt.created)
    if attempt.fence is not None:
        patience = attempt.fence + job.spec.grace + MARGIN
        if silent > patience:
            return f"{seen.reason}; nothing was heard of it for {silent:.0f} s", ""
    if job.state is S.CANCELING and silent > _UNHEARD:
        return f"canceled without an answer: {seen.reason}", ""
    return None, f"{seen.reason}; its work goes on there unseen, and is reported when it answers"


def giving_up(seen: Observation, diagnosis: str) -> str:
    """Return the reason for an attempt that ended without a word to this server."""
    match seen.phase:
        case Phase.GONE:
            return "the target has no trace of it any more"
        case Phase.EXITED:
            said = f": {seen.reason}" if seen.reason else ""
            return f"its runner ended without this server hearing of it{said}"
        case _:
            return f"its runner died {MOST_RESUMES} times: {diagnosis}"


def _ended(event: dict[str, Any]) -> str:
    return event["reason"] or "the script ended with exit code 0"
