"""Jobs for people: a table that fits the screen, and one job on a page."""

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from retarget.cli.numbers import show_number
from retarget.cli.tables import Cell, new_table, without
from retarget.cli.terminal import console, say, show, tell, visible
from retarget.core.states import JobState
from retarget.core.units import show_amount, show_duration, show_memory

if TYPE_CHECKING:
    from rich.table import Table

    from retarget.sdk.jobs import Job
    from retarget.sdk.records import Attempt, Output, Why
    from retarget.sdk.timing import Stage

_ROOMY = 100  # columns of a screen that has room for what is rarely asked
_MANY = 20  # metrics or params of a job on its page
_LONG = 60  # characters of one of them
_NAMED = 10  # jobs ahead of one in a queue that are named
# how a job's run stands where its client did not say otherwise
_USUAL = {
    JobState.SUCCEEDED: "finished",
    JobState.FAILED: "failed",
    JobState.CANCELED: "killed",
}
STYLES = {
    JobState.QUEUED: "yellow",
    JobState.CANCELING: "yellow",
    JobState.SUCCEEDED: "green",
    JobState.FAILED: "red",
    JobState.CANCELED: "dim",
}


def show_jobs(jobs: "Sequence[Job]", *, chosen: bool = False) -> None:
    """Show jobs in a table. `chosen`: there may be others."""
    if not jobs:
        say("no such jobs" if chosen else "no jobs; `retarget run SCRIPT` makes one", "dim")
        return
    now = time.time()
    titles = ["NAME", "STATE", "TARGET", "EXPERIMENT", "AGE", "TOOK", "REASON"]
    rows = [_row(job, now) for job in jobs]
    narrow = sys.stdout.isatty() and console().width < _ROOMY
    if narrow or all(job.to_json()["experiment"] == "Default" for job in jobs):
        titles, rows = without("EXPERIMENT", titles, rows)
    show(new_table(titles, rows, flexible="REASON", optional=("TOOK", "TARGET", "AGE")))


def show_plan(plan: dict[str, Any]) -> None:
    """Tell people what would be sent and started."""
    code, launch = plan["code"], plan["launch"]
    files = f"{code['files']} file{'s' * (code['files'] != 1)}"
    gpus = [len(share["gpus"]) for share in launch["shares"]]
    rows: list[tuple[str, str | Text]] = [
        ("folder", f"{code['folder']} ({files}, {show_memory(code['bytes'])})"),
        ("command", shlex.join(launch["command"])),
        ("target", plan["target"]),
        ("environment", environment_text(launch["environment"])),
        ("resources", resources_text({**launch, "gpus": max(gpus, default=0)})),
        ("variables", " ".join(f"{name}={value}" for name, value in launch["env"].items())),
        ("timeout", show_duration(launch["timeout"]) if launch["timeout"] else ""),
    ]
    show(pairs(rows))
    say("nothing was sent or started; --json tells the whole plan", "dim")


def show_job(job: "Job") -> None:
    now = time.time()
    show(_facts(job, now))
    section("logged", _logged(job))
    section("attempts", _attempts(job, now))
    outputs = job.outputs()
    section("outputs", outputs_table(outputs) if outputs else None)
    section("history", _history(job))


def show_timing(stages: "Sequence[Stage]") -> None:
    """Show how long a job took to each stage, and from the one before."""
    before = stages[0].since
    rows: list[list[Cell]] = []
    for stage in stages:
        rows.append([stage.name, _ms(stage.since), f"+{_ms(stage.since - before)}", stage.meaning])
        before = stage.since
    show(new_table(["STAGE", "AT", "STEP", "MEANING"], rows, flexible="MEANING"))


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:,.3f} s"


def show_outputs(outputs: "Sequence[Output]") -> None:
    if not outputs:
        say("no outputs", "dim")
        return
    show(outputs_table(outputs))


def show_why(told: "Why") -> None:
    state = told.state.value
    said = state if told.reason in ("", state) else f"{state}: {told.reason}"
    show(Text(visible(said)))
    if told.behind:
        more = f" and {len(told.behind) - _NAMED} more" if len(told.behind) > _NAMED else ""
        show(Text(f"  behind: {', '.join(told.behind[:_NAMED])}{more}"))
    if told.diagnosis:
        show(Text(visible(f"  the target says: {told.diagnosis}")))


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


def pairs(rows: Sequence[tuple[str, str | Text]]) -> "Table":
    """Return what is known of one thing, a line each; empty ones are left out."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        if str(value):
            cell = value if isinstance(value, Text) else Text(visible(value))
            grid.add_row(Text(visible(name)), cell)
    return grid


def _row(job: "Job", now: float) -> list[Cell]:
    view = job.to_json()
    about = [job.name, state_text(job.state), job.target, view["experiment"]]
    return [*about, ago(now - view["created"]), took(view, now), job.reason]


def _facts(job: "Job", now: float) -> "Table":
    view = job.to_json()
    code = "" if view["exit_code"] is None else str(view["exit_code"])  # the script's own
    return pairs(
        [
            ("job", job.name),
            ("state", state_text(job.state)),
            ("reason", job.reason),
            ("exit code", code),
            ("target", job.target),
            ("on", ", ".join(job.attempts[-1].nodes) if job.attempts else ""),
            ("experiment", view["experiment"]),
            ("command", shlex.join(view["command"])),
            ("resources", resources_text(view)),
            ("environment", environment_text(view["environment"])),
            ("variables", " ".join(f"{name}={value}" for name, value in view["env"].items())),
            ("limits", _limits(view)),
            ("submitted", f"{when(view['created'])} ({ago(now - view['created'])})"),
            ("started", when(view["started"])),
            ("ended", when(view["ended"])),
            ("took", took(view, now)),
            ("id", job.id),
        ]
    )


def _logged(job: "Job") -> "Table | None":
    told = job.tracking()
    tags = {key: value for key, value in told.tags.items() if not key.startswith("mlflow.")}
    if not (told.metrics or told.params or tags or told.models):
        return None
    more = f"`retarget job metrics {job.name}` shows them"
    metrics = {key: show_number(point.value) for key, point in told.metrics.items()}
    status = told.status.lower()
    rows: list[tuple[str, str | Text]] = [
        ("metrics", short_list(metrics, more)),
        ("params", short_list(told.params, "--json tells all")),
        ("tags", short_list(tags, "--json tells all")),
        ("models", ", ".join(told.models)),
        ("run", "" if status == _USUAL.get(job.state, status) else status),
    ]
    return pairs(rows)


def short_list(values: Mapping[str, str], more: str) -> str:
    """Write the first of some values, and where the others are if there are many."""
    shown = [f"{key}={_cut(value)}" for key, value in list(values.items())[:_MANY]]
    left = len(values) - len(shown)
    return "  ".join(shown) + (f"  … and {left} more; {more}" if left else "")


def _cut(value: str) -> str:
    line = " ".join(value.split())
    return line if len(line) <= _LONG else f"{line[: _LONG - 1]}…"


def resources_text(view: dict[str, Any]) -> str:
    """Write what a job asks for on each node."""
    parts = [f"{show_amount(view['cpus'])} CPU{'s' * (view['cpus'] != 1)}"]
    if view["memory"]:
        parts.append(show_memory(view["memory"]))
    if view["gpus"]:
        parts.append(f"{view['gpus']} GPU{'s' * (view['gpus'] != 1)}")
    if view["nodes"] > 1:
        parts.append(f"on each of {view['nodes']} nodes")
    if view["processes_per_node"] > 1:
        parts.append(f"{view['processes_per_node']} processes a node")
    return ", ".join(parts)


def environment_text(raw: dict[str, Any]) -> str:
    """Write what a script finds around it."""
    if raw["kind"] == "user":
        if raw["prefer"] and not raw["python"]:
            return f"{raw['prefer']} if it is there, else the target's own Python"
        return raw["python"] or "the target's own Python"
    container = raw.get("image") or raw.get("dockerfile")
    packages = [*([container] if container else []), *raw["conda"], *raw["pip"]]
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


def _attempts(job: "Job", now: float) -> "Table | Text | None":
    attempts = job.attempts
    if not attempts:
        return None
    titles = ("#", "TARGET", "STARTED", "TOOK", "EXIT", "REASON")
    rows = [_attempt(each, now) for each in attempts]
    return new_table(titles, rows, flexible="REASON", optional=("TARGET", "TOOK"), wrap=True)


def _attempt(each: "Attempt", now: float) -> list[Cell]:
    length = took({"started": each.started, "ended": each.ended}, now)
    code = "" if each.exit_code is None else str(each.exit_code)
    return [str(each.number), each.target, when(each.started), length, code, each.reason]


def outputs_table(outputs: "Sequence[Output]") -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    for each in outputs:
        name = visible(each.path).replace("\n", "\\n").replace("\t", "\\t")  # one row a file
        table.add_row(Text(name), show_memory(each.size))
    return table


def _history(job: "Job") -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, min_width=len("2026-01-01 00:00:00"))
    table.add_column(no_wrap=True, min_width=max(len(state.value) for state in JobState))
    table.add_column(overflow="fold")
    for each in job.history():
        table.add_row(when(each.at), state_text(each.state), Text(visible(each.reason)))
    return table


def section(title: str, table: "Table | Text | None") -> None:
    if table is not None:
        tell("")
        show(Text(title, "bold"))
        show(table)
