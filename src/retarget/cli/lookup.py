"""Finds what a name means, and holds the arguments that several groups of commands share."""

from typing import TYPE_CHECKING, Annotated

import typer

from retarget.cli.completion import complete_job
from retarget.core.errors import Invalid, NotFound

if TYPE_CHECKING:
    from retarget.sdk.job import Job
    from retarget.sdk.jobs import Jobs

JobName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name or id of a job.", autocompletion=complete_job)
]
JobNames = Annotated[
    list[str],
    typer.Argument(metavar="NAMES…", help="Names or ids of jobs.", autocompletion=complete_job),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Force = Annotated[
    bool, typer.Option("--force", help="Replace your own files even if their content differs.")
]
_ALL_JOBS = "`retarget job list` shows them"
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]


def find_job(name: str) -> "Job":
    from retarget.sdk.workspace import Workspace

    return get_job(Workspace().jobs, name)


def get_job(jobs: "Jobs", name: str) -> "Job":
    """Return a job; NotFound suggests the job with the closest name."""
    from retarget.sdk.jobs import LIST_METHOD

    try:
        return jobs[name]
    except NotFound as error:
        suggestion = closest_name(name, [job.name for job in jobs.list(limit=100)])
        if suggestion:
            raise NotFound(f"no job named {name!r}; did you mean {suggestion!r}?") from error
        raise NotFound(str(error).replace(LIST_METHOD, _ALL_JOBS)) from error


def closest_name(name: str, names: list[str]) -> str | None:
    """Return the one of `names` that is most like `name`, or None if none is close."""
    from difflib import get_close_matches

    matches = get_close_matches(name, names, n=1)
    return matches[0] if matches else None


def check_one_format(as_json: bool, as_csv: bool) -> None:
    if as_json and as_csv:
        raise Invalid("--json and --csv exclude each other; choose one")
