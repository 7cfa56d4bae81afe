"""Formats one job for people, and the values that it consists of."""

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.text import Text

from retarget.cli.numbers import show_number
from retarget.cli.tables import Cell, new_table
from retarget.cli.terminal import (
    console,
    cut_middle,
    print_result,
    print_status,
    printable,
    show,
)
from retarget.cli.times import elapsed_seconds, show_age, utc_now
from retarget.cli.work_paths import shorten
from retarget.core.exclusions import Excluded, describe_exclusions
from retarget.core.kept import describe_kept
from retarget.core.states import JobState
from retarget.core.units import show_amount, show_memory
from retarget.runner.durations import show_duration
from retarget.sdk.display import show_time
from retarget.sdk.records import environment_label

if TYPE_CHECKING:
    from rich.table import Table

    from retarget.sdk.job import Job
    from retarget.sdk.records import Attempt, Output, Why
    from retarget.sdk.timing import Stage

_MAX_VALUES = 20  # metrics, params or tags on the page of a job
_MAX_VALUE_CHARACTERS = 60
_MAX_JOBS_AHEAD = 10
_LOG_LINES = 15  # of a failed job
_TIME_WIDTH = len("2026-01-01 00:00:00")
# the status of a job's run, unless its MLflow client set another one
_USUAL_STATUS = {
    JobState.SUCCEEDED: "finished",
    JobState.FAILED: "failed",
    JobState.CANCELED: "killed",
}
_STYLES = {
    JobState.QUEUED: "yellow",
    JobState.CANCELING: "yellow",
    JobState.SUCCEEDED: "green",
    JobState.FAILED: "red",
    JobState.CANCELED: "dim",
}


def show_plan(plan: dict[str, Any]) -> None:
    """Show what would be sent and started."""
    code, launch = plan["code"], plan["launch"]
    files = f"{code['files']} file{'s' * (code['files'] != 1)}"
    gpus = [len(allocation["gpus"]) for allocation in launch["allocations"]]
    rows: list[tuple[str, str | Text]] = [
        ("folder", f"{code['folder']} ({files}, {show_memory(code['bytes'])})"),
        ("excluded", describe_excluded([Excluded(**row) for row in code["excluded"]])),
        ("command", shlex.join(launch["command"])),
        ("target", plan["target"]),
        ("environment", describe_environment(launch["environment"])),
        ("also needs", _describe_required(launch)),
        ("resources", describe_resources({**launch, "gpus": max(gpus, default=0)})),
        ("variables", show_pairs(launch["variables"])),
        ("secrets", ", ".join(launch["secrets"])),
        ("timeout", show_duration(launch["timeout"]) if launch["timeout"] else ""),
        ("from retarget.toml", ", ".join(plan["project_settings"])),
        ("notice", "\n".join(plan.get("notices", []))),
    ]
    show(new_grid(rows))
    print_status("dry run: nothing was sent or started; --json shows the whole plan", "dim")


def show_job(job: "Job") -> None:
    now = utc_now()
    show(_summary(job, now))
    _show_log_end(job)
    show_section("logged", _logged(job))
    show_section("attempts", _attempts(job))
    outputs = job.outputs()
    show_section("outputs", new_outputs_table(outputs) if outputs else None)
    show_section("history", _history(job))


def show_timing(stages: "Sequence[Stage]") -> None:
    """Show when a job reached each stage, and how long the step before it took."""
    previous = stages[0].elapsed_seconds
    rows: list[list[Cell]] = []
    for stage in stages:
        elapsed = stage.elapsed_seconds
        step = f"+{_show_seconds(elapsed - previous)}"
        rows.append([stage.name, _show_seconds(elapsed), step, stage.meaning])
        previous = elapsed
    show(new_table(["STAGE", "AT", "STEP", "MEANING"], rows, flexible="MEANING"))


def show_outputs(outputs: "Sequence[Output]") -> None:
    if not outputs:
        print_status("no outputs", "dim")
        return
    show(new_outputs_table(outputs))


def show_why(why: "Why") -> None:
    state = why.state.value
    line = state if why.reason in ("", state) else f"{state}: {why.reason}"
    show(Text(printable(line)))
    if why.behind:
        count = len(why.behind) - _MAX_JOBS_AHEAD
        more = f" and {count} more" if count > 0 else ""
        show(Text(f"  behind: {', '.join(why.behind[:_MAX_JOBS_AHEAD])}{more}"))
    if why.hint:
        show(Text(printable(f"  hint: {why.hint}")))
    if why.diagnosis:
        show(Text(printable(f"  the target reports: {why.diagnosis}")))


def state_text(state: JobState) -> Text:
    return Text(state.value, _STYLES.get(state, "cyan"))


def show_took(started_at: datetime | None, ended_at: datetime | None) -> str:
    """Write how long a script took, or has taken so far; nothing if it has not started."""
    return "" if started_at is None else show_duration(elapsed_seconds(started_at, ended_at))


def show_pairs(values: Mapping[str, str]) -> str:
    """Write `K=V` for all values."""
    return " ".join(f"{key}={value}" for key, value in values.items())


def new_grid(rows: Sequence[tuple[str, str | Text]]) -> "Table":
    """Return a grid of names and values, one per line, without the empty ones."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        if str(value):
            cell = value if isinstance(value, Text) else Text(printable(value))
            grid.add_row(Text(printable(name)), cell)
    return grid


def new_outputs_table(outputs: "Sequence[Output]") -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    for output in outputs:
        # one row per file, whatever its name holds
        name = printable(output.path).replace("\n", "\\n").replace("\t", "\\t")
        size = show_memory(output.size)
        table.add_row(Text(cut_middle(name, console().width - len(size) - 2)), size)
    return table


def show_section(title: str, table: "Table | Text | None") -> None:
    if table is not None:
        print_result("")
        show(Text(title, "bold"))
        show(table)


def show_first(values: Mapping[str, str], hint: str) -> str:
    """Write the first values, and `hint` if there are more."""
    shown = [f"{key}={_cut(value)}" for key, value in list(values.items())[:_MAX_VALUES]]
    count = len(values) - len(shown)
    return "  ".join(shown) + (f"  … and {count} more; {hint}" if count else "")


def describe_resources(view: dict[str, Any]) -> str:
    """Write what a job asks for per node."""
    amounts = [f"{show_amount(view['cpus'])} CPU{'s' * (view['cpus'] != 1)}"]
    if view["memory"]:
        amounts.append(show_memory(view["memory"]))
    if view["gpus"]:
        amounts.append(f"{view['gpus']} GPU{'s' * (view['gpus'] != 1)}")
    if view["nodes"] > 1:
        amounts.append(f"on each of {view['nodes']} nodes")
    if view["processes_per_node"] > 1:
        amounts.append(f"{view['processes_per_node']} processes per node")
    return ", ".join(amounts)


def describe_excluded(exclusions: Sequence[Excluded]) -> str:
    """Write one line per rule about what was not sent."""
    lines = describe_exclusions(exclusions, limit=len(exclusions))
    return "\n".join(line.removeprefix("excluded ") for line in lines)


def describe_environment(view: dict[str, Any]) -> str:
    """Write what an environment consists of."""
    if view["kind"] == "user":
        if view["prefer"] and not view["python"]:
            return f"{view['prefer']} if the target has it, else the target's own Python"
        return view["python"] or "the target's own Python"
    image = view.get("image") or view.get("dockerfile")
    packages = [*([image] if image else []), *view["conda"], *view["pip"]]
    label = environment_label(view["name"], view.get("version"))
    name = f"{label}: " if label else ""
    version = f"Python {view['python']}, " if view["python"] else ""
    return name + version + (", ".join(packages) or "no packages")


def describe_lock(lock: dict[str, Any] | None, limit: int = _MAX_VALUES) -> str:
    """Write the resolved versions of an environment, and where they came from."""
    if lock is None:
        return ""
    packages = [*(conda.rpartition("::")[2] for conda in lock["conda"]), *lock["packages"]]
    shown = ", ".join(packages[:limit]) or "no packages"
    count = len(packages) - limit
    more = f" … and {count} more; --json shows all" if count > 0 else ""
    source = {"pypi": ", built from PyPI", "conda": ", built from conda channels"}
    where = f"Python {lock['python']} on {lock['platform']}{source.get(lock['source'], '')}"
    return f"{where}: {shown}{more}"


def _summary(job: "Job", now: datetime) -> "Table":
    view = job.to_json()
    code = "" if view["exit_code"] is None else str(view["exit_code"])  # the script's own code
    return new_grid(
        [
            ("job", job.name),
            ("display name", "" if job.display_name == job.name else job.display_name),
            ("description", job.description),
            ("state", state_text(job.state)),
            ("reason", job.reason),
            ("hint", job.hint or ""),
            ("exit code", code),
            ("attempts", _count_attempts(view)),
            ("target", job.target),
            ("nodes", ", ".join(job.attempts[-1].nodes) if job.attempts else ""),
            ("experiment", job.experiment),
            ("tags", show_first(view["tags"], "--json shows all")),
            ("properties", show_first(job.properties, "--json shows all")),
            ("command", shlex.join(view["command"])),
            ("resources", describe_resources(view)),
            ("environment", describe_environment(view["environment"])),
            ("versions", describe_lock(view.get("lock"))),
            ("notice", "\n".join(job.notices)),
            ("own packages", ", ".join(str(own.get("name")) for own in view["own_packages"])),
            ("also needs", _describe_required(view)),
            ("variables", show_pairs(view["variables"])),
            ("excluded", describe_excluded(job.excluded)),
            ("secrets", ", ".join(view["secrets"])),
            ("keep", ", ".join(view.get("keep", []))),
            ("kept", _describe_kept(job)),
            ("limits", _limits(view)),
            ("from retarget.toml", ", ".join(view.get("project_settings", []))),
            ("submitted", f"{show_time(job.created_at)} ({show_age(job.created_at, now)})"),
            ("started", show_time(job.started_at)),
            ("ended", show_time(job.ended_at)),
            ("took", show_took(job.started_at, job.ended_at)),
            ("id", job.id),
        ]
    )


def _count_attempts(view: dict[str, Any]) -> str:
    """Write how many attempts a job had and how they ended, if it had more than one."""
    counts = {"failed": view["failures"], "preempted": view["preemptions"]}
    endings = ", ".join(f"{count} {ending}" for ending, count in counts.items() if count)
    return f"{view['attempt']} ({endings})" if view["attempt"] > 1 else ""


def _describe_kept(job: "Job") -> str:
    lines = describe_kept(job.kept) if job.kept else []
    return "\n".join(line.removeprefix("also kept ") for line in lines)


def _describe_required(view: dict[str, Any]) -> str:
    """Name the packages that a job needs beside its environment, and where they come from."""
    names = ", ".join(view.get("required_packages", []))
    if not names:
        return ""
    is_image = view["environment"]["kind"] == "image"
    source = "should be in the image" if is_image else "installed for this job if missing"
    return f"{names} ({source})"


def _limits(view: dict[str, Any]) -> str:
    limits: list[str] = []
    if view["timeout"]:
        limits.append(f"timeout {show_duration(view['timeout'])}")
    if view["retries"]:
        limits.append(f"{view['retries']} {'retry' if view['retries'] == 1 else 'retries'}")
    if view["priority"]:
        limits.append(f"priority {view['priority']}")
    if view["allow_pip"]:
        limits.append("pip may change the interpreter")
    return ", ".join(limits)


def _show_log_end(job: "Job") -> None:
    """Show how the log of a failed job ends."""
    lines = job.tail(_LOG_LINES) if job.state is JobState.FAILED else []
    if lines:
        text = "\n".join(printable(shorten(line)) for line in lines)
        show_section(f"end of the log (all: retarget job logs {job.name})", Text(text))


def _logged(job: "Job") -> "Table | None":
    tracking = job.tracking()
    if not (tracking.metrics or tracking.params or tracking.models):
        return None
    metrics = {key: show_number(point.value) for key, point in tracking.metrics.items()}
    status = tracking.status.lower()
    rows: list[tuple[str, str | Text]] = [
        ("metrics", show_first(metrics, f"see `retarget job metrics {job.name}`")),
        ("params", show_first(tracking.params, "--json shows all")),
        ("models", ", ".join(tracking.models)),
        ("run", "" if status == _USUAL_STATUS.get(job.state, status) else status),
    ]
    return new_grid(rows)


def _cut(value: str) -> str:
    line = " ".join(value.split())
    if len(line) <= _MAX_VALUE_CHARACTERS:
        return line
    return f"{line[: _MAX_VALUE_CHARACTERS - 1]}…"


def _attempts(job: "Job") -> "Table | Text | None":
    attempts = job.attempts
    if not attempts:
        return None
    titles = ("#", "TARGET", "STARTED", "TOOK", "EXIT", "REASON")
    rows = [_attempt_row(attempt) for attempt in attempts]
    return new_table(titles, rows, flexible="REASON", optional=("TARGET", "TOOK"), wrap=True)


def _attempt_row(attempt: "Attempt") -> list[Cell]:
    started, took = show_time(attempt.started_at), show_took(attempt.started_at, attempt.ended_at)
    code = "" if attempt.exit_code is None else str(attempt.exit_code)
    return [str(attempt.number), attempt.target, started, took, code, attempt.reason]


def _history(job: "Job") -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, min_width=_TIME_WIDTH)
    table.add_column(no_wrap=True, min_width=max(len(state.value) for state in JobState))
    table.add_column(overflow="fold")
    for transition in job.history():
        reason = Text(printable(transition.reason))
        table.add_row(show_time(transition.at), state_text(transition.state), reason)
    return table


def _show_seconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:,.3f} s"
