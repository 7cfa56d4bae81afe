"""The table of jobs: what each runs, its state, and the reason where that is informative."""

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from rich.text import Text

from retarget.cli.numbers import show_number
from retarget.cli.show import show_took, state_text
from retarget.cli.tables import Cell, new_table
from retarget.cli.terminal import print_status, show
from retarget.cli.times import show_age, utc_now
from retarget.core.errors import Invalid
from retarget.core.states import JobState
from retarget.sdk.display import show_time
from retarget.sdk.notebooks import PROGRAM

if TYPE_CHECKING:
    from retarget.sdk.job import Job

_MAX_COMMAND_WIDTH = 28  # on a terminal, if there are reasons to show, too
_LOGGED = (
    *("metric.", "metrics.", "param.", "params.", "tag.", "tags."),
    *("property.", "properties."),
)
_WITHOUT_REASON = (JobState.SUCCEEDED, JobState.RUNNING, JobState.FINALIZING)
_OPTIONAL = ("took", "target", "experiment", "age", "display_name", "command")
_Read = Callable[["Job", datetime], Cell]
_COLUMNS: dict[str, _Read] = {
    "name": lambda job, now: job.name,
    "display_name": lambda job, now: job.display_name,
    "description": lambda job, now: job.description,
    "state": lambda job, now: state_text(job.state),
    "command": lambda job, now: describe_command(job.to_json()["command"]),
    "experiment": lambda job, now: job.experiment,
    "target": lambda job, now: job.target,
    "age": lambda job, now: show_age(job.created_at, now).removesuffix(" ago"),
    "took": lambda job, now: show_took(job.started_at, job.ended_at),
    "reason": lambda job, now: informative_reason(job),
    "id": lambda job, now: job.id,
    "exit_code": lambda job, now: "" if job.exit_code is None else str(job.exit_code),
    "priority": lambda job, now: str(job.to_json()["priority"]),
    "created_at": lambda job, now: show_time(job.created_at),
    "started_at": lambda job, now: show_time(job.started_at),
    "ended_at": lambda job, now: show_time(job.ended_at),
}


@dataclass(frozen=True, slots=True)
class ChosenColumns:
    """The columns that `--columns` names."""

    names: tuple[str, ...]

    @property
    def logged(self) -> list[str]:
        return [name for name in self.names if name.startswith(_LOGGED)]


@dataclass(frozen=True, slots=True)
class Table:
    """What a table of jobs shows: chosen columns, or the usual ones and these logged values."""

    chosen: ChosenColumns | None = None
    logged: tuple[str, ...] = ()


def parse_columns(text: str) -> ChosenColumns:
    """Return the columns in a list separated by commas, or raise Invalid."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in _COLUMNS and not name.startswith(_LOGGED):
            raise Invalid(
                f"unknown column {name!r}; columns are {', '.join(_COLUMNS)}, "
                "metrics.KEY, params.KEY, tags.KEY and properties.KEY"
            )
    if not names:
        raise Invalid("--columns is empty")
    return ChosenColumns(tuple(dict.fromkeys(names)))


def show_jobs(jobs: "Sequence[Job]", table: Table | None = None, *, filtered: bool = False) -> None:
    """Show jobs in a table. `filtered`: there may be other jobs."""
    if not jobs:
        hint = "no matching jobs" if filtered else "no jobs; `retarget run SCRIPT` submits one"
        print_status(hint, "dim")
        return
    table = table or Table()
    names = _usual_columns(jobs, table.logged) if table.chosen is None else table.chosen.names
    now = utc_now()
    rows = [[_cell(job, name, now) for name in names] for job in jobs]
    flexible = next((name for name in ("reason", "command") if name in names), names[-1])
    if flexible == "reason" and table.chosen is None:
        _cut_commands(rows, names.index("command"))
    optional = () if table.chosen else _OPTIONAL
    show(
        new_table(
            [_title(name) for name in names],
            rows,
            flexible=_title(flexible),
            optional=[_title(name) for name in optional if name in names and name != flexible],
        )
    )


def describe_command(command: Sequence[str]) -> str:
    """Write a command as the user did: `train.py --lr 0.1`, without the interpreter."""
    if tuple(command[: len(PROGRAM)]) == PROGRAM:
        return shlex.join(command[len(PROGRAM) :])
    if len(command) > 1 and command[0] in ("python", "bash") and not command[1].startswith("-"):
        command = command[1:]
    return shlex.join(command)


def informative_reason(job: "Job") -> str:
    """Return the reason of a job that waits, fails or stops; other states say it all."""
    is_usual = job.state in _WITHOUT_REASON or job.reason == job.state.value
    return "" if is_usual else job.reason


def _usual_columns(jobs: "Sequence[Job]", logged: Sequence[str]) -> list[str]:
    hidden: set[str] = set()
    if all(job.target == "local" for job in jobs):
        hidden.add("target")
    if all(job.experiment == "Default" for job in jobs):
        hidden.add("experiment")
    if not any(informative_reason(job) for job in jobs):
        hidden.add("reason")
    if all(job.display_name == job.name for job in jobs):
        hidden.add("display_name")
    usual = ("name", "display_name", "state", *logged, "command", "experiment", "target")
    usual += ("age", "took", "reason")
    return [name for name in usual if name not in hidden]


def _cell(job: "Job", name: str, now: datetime) -> Cell:
    if name in _COLUMNS:
        return _COLUMNS[name](job, now)
    value = job.logged.get(name, "")
    return value if isinstance(value, str) else show_number(value)


def _title(name: str) -> str:
    return name if name.startswith(_LOGGED) else name.upper()


def _cut_commands(rows: Sequence[list[Cell]], index: int) -> None:
    if not sys.stdout.isatty():
        return
    for row in rows:
        text = Text(str(row[index]))
        text.truncate(_MAX_COMMAND_WIDTH, overflow="ellipsis")
        row[index] = text.plain
