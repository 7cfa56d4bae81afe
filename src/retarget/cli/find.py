"""The thing a name means, and what several groups of commands take."""

from typing import TYPE_CHECKING, Annotated

import typer

from retarget.cli.complete import complete_job
from retarget.core.errors import Invalid, NotFound

if TYPE_CHECKING:
    from retarget.sdk.jobs import Job, Jobs

JobName = Annotated[
    str, typer.Argument(metavar="NAME", help="A job's name or id.", autocompletion=complete_job)
]
JobNames = Annotated[
    list[str],
    typer.Argument(metavar="NAMES…", help="Names or ids of jobs.", autocompletion=complete_job),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]


def find_job(name: str) -> "Job":
    from retarget.sdk.workspace import Workspace

    return job_named(Workspace().jobs, name)


def job_named(jobs: "Jobs", name: str) -> "Job":
    """Return a job; NotFound guesses which one was meant."""
    try:
        return jobs[name]
    except NotFound as error:
        near = nearest(name, [job.name for job in jobs.list(limit=100)])
        if near is None:
            raise
        raise NotFound(f"no job named {name!r}; did you mean {near!r}?") from error


def nearest(name: str, known: list[str]) -> str | None:
    """Return the known name that is most like this one, if any is."""
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=1)
    return near[0] if near else None


def check_one_form(as_json: bool, as_csv: bool) -> None:
    if as_json and as_csv:
        raise Invalid("--json and --csv are two forms of the same; give one of them")
