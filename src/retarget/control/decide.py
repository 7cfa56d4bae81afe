"""Decides what a report or an observation means for a job. Pure functions: the whole policy."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from retarget.core.driver import Observation, Phase
from retarget.core.exclusions import explain_missing
from retarget.core.jobs import Attempt, Job
from retarget.core.states import Event, JobState
from retarget.runner.durations import show_duration

MAX_RESUMES = 20  # a runner that died this often is not restarted again
MAX_PREEMPTIONS = 50  # of a job that cost no retry; a further one counts as a failure

# Time after `lost_after` by which the runner has certainly stopped a launch. It covers a request
# in flight, the exit of its processes, and clocks that differ.
LOST_MARGIN_SECONDS = 60.0
_CANCEL_SILENCE_SECONDS = 30.0  # a canceled job whose host is silent for longer is given up

_LOST, _PREEMPTED = "lost", "preempted"  # outcomes of attempts

S, E = JobState, Event


@dataclass(frozen=True)
class Verdict:
    """A transition of the job, and the reason that the user reads."""

    event: Event
    reason: str
    exit_code: int | None = None


class Need(StrEnum):
    """What the loop must do after an observation."""

    NOTHING = "nothing"
    RESUME = "resume"  # launch again: the runner died, and a new one continues its work
    GIVE_UP = "give up"


def on_report(job: Job, event: dict[str, Any]) -> Verdict | None:
    """Return the transition that an event of the runner causes, or None."""
    node = event.get("node", job.spec.target)
    match event["kind"]:
        case "preparing" if job.state is S.LAUNCHING:
            return Verdict(E.PREPARING, f"preparing the code and the environment on {node}")
        case "started" if job.state is S.PREPARING:
            return Verdict(E.STARTED, "the script is running")
        case "exited" if job.state in (S.PREPARING, S.RUNNING):
            return Verdict(E.EXITED, f"{_exit_reason(event)}; uploading outputs and logs")
        case "finished":
            return on_ending(job, event["outcome"], event["reason"], event["exit_code"])
        case _:
            return None


def on_ending(job: Job, outcome: str, reason: str, exit_code: int | None) -> Verdict:
    """Return what the end of the current attempt means for the job."""
    if outcome == "succeeded":
        return Verdict(E.SUCCEEDED, "the script ended with exit code 0", 0)
    if job.state is S.CANCELING:
        return Verdict(E.STOPPED, "canceled", exit_code)
    explanation = explain_missing(reason, job.spec.excluded)
    reason = f"{reason}; {explanation}" if explanation else reason
    if outcome == _PREEMPTED and job.preemptions < MAX_PREEMPTIONS:
        return Verdict(E.PREEMPTED, f"{reason}; the job starts again, without using up a retry")
    if job.retries_left > 0:
        count = job.spec.retries + 1 + job.preemptions
        retry_reason = f"attempt {job.attempt} of {count}: {reason}; retrying"
        return Verdict(E.RETRIED, retry_reason, exit_code)
    return Verdict(E.FAILED, reason, exit_code)


def on_observation(attempt: Attempt, observation: Observation) -> Need:
    """Return what to do about a live attempt, given what its driver observed."""
    match observation.phase:
        case Phase.PENDING | Phase.RUNNING | Phase.SILENT:
            return Need.NOTHING
        case Phase.DEAD if attempt.resumes < MAX_RESUMES:
            return Need.RESUME
        case Phase.DEAD | Phase.EXITED | Phase.GONE | Phase.PREEMPTED:
            return Need.GIVE_UP


def on_silence(
    job: Job, attempt: Attempt, observation: Observation, now: float
) -> tuple[str | None, str]:
    """Return why a silent launch is given up, or None, and the reason its job shows meanwhile.

    A launch is retried only after its own runner, which counts the same time, has stopped it. A
    canceled job need not wait for that: nothing is started instead of it.
    """
    silence = now - (attempt.last_seen_at or attempt.created_at)
    if attempt.lost_after_seconds is not None:
        patience = attempt.lost_after_seconds + job.spec.grace_seconds + LOST_MARGIN_SECONDS
        if silence > patience:
            return f"{observation.reason}; no report for {show_duration(silence)}", ""
    if job.state is S.CANCELING and silence > _CANCEL_SILENCE_SECONDS:
        return f"canceled, but the host did not respond: {observation.reason}", ""
    return (
        None,
        f"{observation.reason}; the job continues there, and its result is reported once the "
        "host answers",
    )


def reason_after_silence(job: Job) -> str:
    """Return the reason of a job whose launch answers again."""
    return "the script is running" if job.state is S.RUNNING else f"the job is {job.state.value}"


def outcome_of(observation: Observation) -> str:
    """Return the outcome of an attempt whose end was never reported to this server."""
    return _PREEMPTED if observation.phase is Phase.PREEMPTED else _LOST


def failure_reason(observation: Observation, diagnosis: str) -> str:
    """Return the reason for an attempt whose end was never reported to this server."""
    match observation.phase:
        case Phase.PREEMPTED:
            return f"its node was preempted{_details(observation)}"
        case Phase.GONE:
            return "the launch no longer exists on the target"
        case Phase.EXITED:
            return f"the runner exited without reporting a result{_details(observation)}"
        case _:
            return f"the runner died {MAX_RESUMES} times: {diagnosis}"


def _details(observation: Observation) -> str:
    return f": {observation.reason}" if observation.reason else ""


def _exit_reason(event: dict[str, Any]) -> str:
    return event["reason"] or "the script ended with exit code 0"
