"""Which jobs a command acts on: names, patterns, an experiment, an age."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from retarget.cli.completion import complete_experiment, complete_job
from retarget.cli.lookup import get_job
from retarget.core.errors import Invalid, NotFound

if TYPE_CHECKING:
    from retarget.sdk.job import Job
    from retarget.sdk.jobs import Jobs

_PATTERN_CHARACTERS = "*?["
_HEADING = "Which jobs"

JobPatterns = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAMES…",
        help="Names or ids of jobs, or patterns: 'sweep-*'.",
        autocompletion=complete_job,
    ),
]
ByExperiment = Annotated[
    str | None,
    typer.Option(
        "--experiment",
        metavar="NAME",
        help="Only jobs of this experiment.",
        autocompletion=complete_experiment,
        rich_help_panel=_HEADING,
    ),
]
OlderThan = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Only jobs older than this: 12h, 7d. Age counts from the end of a job, or from its "
        "submission if it has not ended.",
        rich_help_panel=_HEADING,
    ),
]


@dataclass(frozen=True, slots=True)
class JobFilter:
    """The options that restrict which jobs a command acts on."""

    experiment: str | None = None
    older_than: str | None = None

    @property
    def is_set(self) -> bool:
        return self.experiment is not None or self.older_than is not None

    def select(self, jobs: "Jobs", name: str | None = None) -> "list[Job]":
        """Return all jobs that pass the filter; raise NotFound if there is none."""
        from retarget.core.units import parse_duration

        age = self.older_than
        if age is not None:
            parse_duration(age, field="--older-than")
        matches = jobs.list(name=name, experiment=self.experiment, older_than=age, limit=None)
        if not matches:
            raise NotFound(f"no job {self._describe(name)}; `retarget job list --all` shows all")
        return matches

    def _describe(self, name: str | None) -> str:
        clauses = (
            name and f"matches {name!r}",
            self.experiment and f"is in experiment {self.experiment!r}",
            self.older_than and f"is older than {self.older_than}",
        )
        return " and ".join(clause for clause in clauses if clause)


@dataclass(slots=True)
class ChosenJobs:
    """The jobs that a command acts on, each once, and the errors of names without a job."""

    named: "list[Job]" = field(default_factory=list["Job"])
    matched: "list[Job]" = field(default_factory=list["Job"])  # by a pattern or an option
    errors: list[NotFound] = field(default_factory=list[NotFound])

    @property
    def all(self) -> "list[Job]":
        return [*self.named, *self.matched]

    def add(self, jobs: "Sequence[Job]", *, named: bool) -> None:
        known = {job.id for job in self.all}
        (self.named if named else self.matched).extend(job for job in jobs if job.id not in known)


def choose_jobs(names: Sequence[str], only: JobFilter) -> ChosenJobs:
    """Return the jobs with these names that pass the filter, or all that pass it."""
    from retarget.sdk.workspace import Workspace

    if not names and not only.is_set:
        raise Invalid("missing jobs; pass names, patterns such as 'sweep-*', or --experiment NAME")
    jobs, chosen = Workspace().jobs, ChosenJobs()
    for name in names or [None]:
        try:
            if name is None or is_pattern(name):
                chosen.add(only.select(jobs, name), named=False)
            else:
                chosen.add([_named_job(jobs, name, only)], named=True)
        except NotFound as error:
            chosen.errors.append(error)
    return chosen


def is_pattern(name: str) -> bool:
    return any(character in name for character in _PATTERN_CHARACTERS)


def _named_job(jobs: "Jobs", name: str, only: JobFilter) -> "Job":
    job = get_job(jobs, name)
    return only.select(jobs, job.name)[0] if only.is_set else job
