"""`retarget job wait`, `cancel` and `delete`: act on one job or on many."""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from retarget.cli.job_choice import (
    ByExperiment,
    ChosenJobs,
    JobFilter,
    JobPatterns,
    OlderThan,
    choose_jobs,
)
from retarget.cli.terminal import confirm_deletion, print_error, print_status
from retarget.core.errors import Conflict, RetargetError
from retarget.core.units import show_count

if TYPE_CHECKING:
    from retarget.sdk.job import Job

_LISTED_JOBS = 30  # before the question whether to delete them
_NAMED_JOBS = 5  # in one sentence


def wait(
    names: JobPatterns = None, experiment: ByExperiment = None, older_than: OlderThan = None
) -> None:
    """Wait for jobs and exit with their exit code.

    With several jobs this is the exit code of the first one that did not succeed, in the order in
    which they are shown. Ctrl-C stops only the waiting; the jobs keep running.

    \b
    Examples:
      retarget job wait night
      retarget job wait 'sweep-*'
      retarget job wait --experiment trial
    """
    chosen = choose_jobs(names or [], JobFilter(experiment, older_than))
    _report(chosen.errors)
    codes = [_wait(job) for job in chosen.all]
    raise typer.Exit(next((code for code in codes if code), 1 if chosen.errors else 0))


def cancel(
    names: JobPatterns = None, experiment: ByExperiment = None, older_than: OlderThan = None
) -> None:
    """Cancel jobs.

    The command returns at once. `retarget job wait` waits until a job has stopped. Of the jobs that
    match a pattern or an option, those that have ended are skipped.

    \b
    Examples:
      retarget job cancel night
      retarget job cancel 'sweep-*'
    """
    chosen = choose_jobs(names or [], JobFilter(experiment, older_than))
    active = [job for job in chosen.matched if not job.state.is_final]
    if chosen.matched and not active:
        verb = "has" if len(chosen.matched) == 1 else "have"
        print_status(
            f"{show_count(len(chosen.matched), 'matching job')} {verb} already ended", "dim"
        )
    _act(chosen, active, lambda job: job.cancel(), "canceling")


def delete(
    names: JobPatterns = None,
    experiment: ByExperiment = None,
    older_than: OlderThan = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete jobs that have ended.

    Their logs, outputs, metrics and artifacts are deleted too. Registered model versions stay,
    with their files. Of the jobs that match a pattern or an option, those that have not ended are
    skipped. The command lists the jobs and asks first, unless it runs without a terminal.

    \b
    Examples:
      retarget job delete night
      retarget job delete 'sweep-*' --older-than 7d
      retarget job delete --experiment trial
    """
    chosen = choose_jobs(names or [], JobFilter(experiment, older_than))
    ended = [job for job in chosen.matched if job.state.is_final]
    _report_skipped([job for job in chosen.matched if not job.state.is_final])
    jobs = [*chosen.named, *ended]
    if jobs and not yes and sys.stdin.isatty():
        _confirm(jobs)
    _act(chosen, ended, lambda job: job.delete(), "deleted")


def _wait(job: "Job") -> int:
    from retarget.cli.endings import print_ending

    job.wait()
    print_ending(job)
    return job.exit_code or 0


def _act(
    chosen: ChosenJobs, matched: "Sequence[Job]", act: "Callable[[Job], None]", verb: str
) -> None:
    """Act on every job and report each one; a failure does not stop the others."""
    errors: list[RetargetError] = [*chosen.errors]
    _report(errors)
    for job in (*chosen.named, *matched):
        try:
            act(job)
            print_status(f"{verb} {job.name}", "dim")
        except RetargetError as error:
            if isinstance(error, Conflict) and job in matched:
                print_status(f"skipped {job.name}: {error}", "dim")
                continue
            errors.append(error)
            _report([error])
    if errors:
        raise typer.Exit(1)


def _report(errors: Iterable[RetargetError]) -> None:
    for error in errors:
        print_error(str(error))


def _report_skipped(jobs: "Sequence[Job]") -> None:
    if jobs:
        names = [f"{job.name} ({job.state.value})" for job in jobs[:_NAMED_JOBS]]
        more = ["…"] if len(jobs) > _NAMED_JOBS else []
        verb = "has" if len(jobs) == 1 else "have"
        text = f"skipped {show_count(len(jobs), 'job')} that {verb} not ended: "
        print_status(text + ", ".join([*names, *more]), "yellow")


def _confirm(jobs: "Sequence[Job]") -> None:
    """List the jobs and ask once; exit unless the answer is yes."""
    from retarget.cli.times import show_age, utc_now

    subject = jobs[0].name
    if len(jobs) > 1:
        subject = f"these {len(jobs)} jobs"
        for job in jobs[:_LISTED_JOBS]:
            age = show_age(job.ended_at or job.created_at, utc_now())
            print_status(f"  {job.name}  {job.state.value}, {age}")
        if len(jobs) > _LISTED_JOBS:
            print_status(f"  … and {len(jobs) - _LISTED_JOBS} more")
    question = f"Delete {subject} with logs, outputs, metrics and artifacts?"
    confirm_deletion(question)
