"""Jobs for people: a table that fits the screen, and one job on a page."""

import shlex
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from retarget.cli.terminal import console, say
from retarget.core.states import JobState
from retarget.core.units import show_amount, show_duration, show_memory

if TYPE_CHECKING:
    from retarget.sdk.jobs import Job
    from retarget.sdk.records import Output, Why

STYLES = {
    JobState.QUEUED: "yellow",
    JobState.CANCELING: "yellow",
    JobState.SUCCEEDED: "green",
    JobState.FAILED: "red",
    JobState.CANCELED: "dim",
}


def new_table(*columns: str, flexible: str = "") -> Table:
    """Return a plain table; `flexible` is the column that is cut first on a narrow screen."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        ratio = 1 if column == flexible else None
        table.add_column(column, no_wrap=True, overflow="ellipsis", ratio=ratio)
    return table


def show_jobs(jobs: "Sequence[Job]") -> None:
    if not jobs:
        say("no jobs; `retarget run SCRIPT` makes one", "dim")
        return
    now = time.time()
    narrow = sys.stdout.isatty() and console().width < 100
    columns = ["NAME", "STATE", "TARGET", *([] if narrow else ["EXPERIMENT"]), "AGE", "TOOK"]
    table = new_table(*columns, "REASON", flexible="REASON")
    for job in jobs:
        view = job.to_json()
        experiment = [] if narrow else [Text(view["experiment"])]
        cells = [Text(job.name), state_text(job.state), Text(job.target), *experiment]
        table.add_row(*cells, ago(now - view["created"]), took(view, now), Text(job.reason))
    console().print(table)


def show_job(job: "Job") -> None:
    now = time.time()
    screen = console()
    screen.print(_facts(job, now))
    _section("attempts", _attempts(job, now))
    _section("outputs", _outputs(job.outputs()))
    _section("history", _history(job))


def show_outputs(outputs: "Sequence[Output]") -> None:
    if not outputs:
        say("no outputs", "dim")
        return
    console().print(_outputs(outputs))


def show_why(told: "Why") -> None:
    screen = console()
    screen.print(Text(f"{told.state.value}: {told.reason}" if told.reason else told.state.value))
    if told.behind:
        screen.print(Text(f"  behind: {', '.join(told.behind)}"))
    if told.diagnosis:
        screen.print(Text(f"  the target says: {told.diagnosis}"))


def state_text(state: JobState) -> Text:
    return Text(state.value, STYLES.get(state, "cyan"))


def ago(seconds: float) -> str:
    """Write an age for people: `just now`, `3m ago`, `2d ago`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        if seconds >= size:
            return f"{int(seconds // size)}{unit} ago"
    return "just now"


def took(view: dict[str, Any], now: float) -> str:
    """Write how long the script has run."""
    if view["started"] is None:
        return ""
    return show_duration(max(0.0, (view["ended"] or now) - view["started"]))


def when(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def pairs(rows: Sequence[tuple[str, str | Text]]) -> Table:
    """Return what is known of one thing, a line each; empty ones are left out."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        if str(value):
            grid.add_row(name, value if isinstance(value, Text) else Text(value))
    return grid


def _facts(job: "Job", now: float) -> Table:
    view = job.to_json()
    code = "" if job.exit_code is None else str(job.exit_code)
    return pairs(
        [
            ("job", job.name),
            ("state", state_text(job.state)),
            ("reason", job.reason),
            ("exit code", code),
            ("target", job.target),
            ("experiment", view["experiment"]),
            ("command", shlex.join(view["command"])),
            ("resources", _resources(view)),
            ("environment", _environment(view["environment"])),
            ("variables", " ".join(f"{name}={value}" for name, value in view["env"].items())),
            ("limits", _limits(view)),
            ("submitted", f"{when(view['created'])} ({ago(now - view['created'])})"),
            ("started", when(view["started"])),
            ("ended", when(view["ended"])),
            ("took", took(view, now)),
            ("id", job.id),
        ]
    )


def _resources(view: dict[str, Any]) -> str:
    parts = [f"{show_amount(view['cpus'])} CPU{'s' * (view['cpus'] != 1)}"]
    if view["memory"]:
        parts.append(show_memory(view["memory"]))
    if view["gpus"]:
        parts.append(f"{view['gpus']} GPU{'s' * (view['gpus'] != 1)}")
    if view["nodes"] > 1:
        parts.append(f"{view['nodes']} nodes")
    if view["processes_per_node"] > 1:
        parts.append(f"{view['processes_per_node']} processes a node")
    return ", ".join(parts)


def _environment(raw: dict[str, Any]) -> str:
    if raw["kind"] == "user":
        return raw["python"] or raw["prefer"] or "the target's own Python"
    packages = [*raw["conda"], *raw["pip"]]
    named = f"{raw['name']}: " if raw["name"] else ""
    version = f"Python {raw['python']}, " if raw["python"] else ""
    return named + version + (", ".join(packages) or "no packages")


def _limits(view: dict[str, Any]) -> str:
    parts: list[str] = []
    if view["timeout"]:
        parts.append(f"timeout {show_duration(view['timeout'])}")
    if view["retries"]:
        parts.append(f"{view['retries']} retries")
    if view["priority"]:
        parts.append(f"priority {view['priority']}")
    return ", ".join(parts)


def _attempts(job: "Job", now: float) -> Table | None:
    attempts = job.attempts
    if not attempts:
        return None
    table = new_table("#", "TARGET", "STARTED", "TOOK", "EXIT", "REASON", flexible="REASON")
    for each in attempts:
        length = took({"started": each.started, "ended": each.ended}, now)
        code = "" if each.exit_code is None else str(each.exit_code)
        number = str(each.number)
        table.add_row(
            number, Text(each.target), when(each.started), length, code, Text(each.reason)
        )
    return table


def _outputs(outputs: "Sequence[Output]") -> Table | None:
    if not outputs:
        return None
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    for each in outputs:
        table.add_row(Text(each.path), show_memory(each.size))
    return table


def _history(job: "Job") -> Table:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for each in job.history():
        table.add_row(when(each.at), state_text(each.state), Text(each.reason))
    return table


def _section(title: str, table: Table | None) -> None:
    if table is not None:
        screen = console()
        screen.print()
        screen.print(Text(title, "bold"))
        screen.print(table)
