"""Experiments for people."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from retarget.cli.numbers import show_number
from retarget.cli.show import ago, pairs, short_list, state_text, took
from retarget.cli.tables import Cell, new_table, without
from retarget.cli.terminal import say, show, tell

if TYPE_CHECKING:
    from retarget.sdk.tracking import Experiment, Run


def show_experiments(found: "Sequence[Experiment]") -> None:
    now = time.time()
    titles = ["NAME", "STAGE", "JOBS", "RUNS", "LAST", "TAGS"]
    rows: list[list[Cell]] = [
        [
            each.name,
            each.stage,
            str(each.jobs),
            str(each.runs),
            ago(now - each.changed) if each.changed else "",
            _tags(each),
        ]
        for each in found
    ]
    if all(each.stage == "active" for each in found):
        titles, rows = without("STAGE", titles, rows)
    if not any(each.tags for each in found):
        titles, rows = without("TAGS", titles, rows)
    show(
        new_table(
            titles, rows, flexible="NAME", optional=("TAGS", "JOBS") if "TAGS" in titles else ()
        )
    )


def show_experiment(found: "Experiment") -> None:
    stage = "" if found.stage == "active" else found.stage
    counts = f"{found.runs}, {found.jobs} of them jobs"
    about = [("experiment", found.name), ("id", found.id), ("stage", stage)]
    show(pairs([*about, ("runs", counts), ("tags", _tags(found))]))
    newest = found.newest or []
    if not newest:
        name = found.name
        say(f"no runs; `retarget run --experiment {name} SCRIPT` makes one", "dim")
        return
    now = time.time()
    tell("")
    titles: list[str] = ["NAME", "JOB", "STATE", "AGE", "TOOK", "LOGGED"]
    rows = [_row(run, now, _differing(newest)) for run in newest]
    optional = ("TOOK", "AGE", "JOB")
    if all(run.state is not None for run in newest):
        titles, rows = without("JOB", titles, rows)
        optional = ("TOOK", "AGE")
    show(new_table(titles, rows, flexible="LOGGED", optional=optional))
    if len(newest) < found.runs:
        say(f"the {len(newest)} newest of {found.runs} runs; --limit shows more", "dim")


def _differing(found: "Sequence[Run]") -> list[str]:
    """Return the params that are not the same in all runs."""
    keys = sorted({key for run in found for key in run.params})
    return [key for key in keys if len({run.params.get(key) for run in found}) > 1]


def _row(run: "Run", now: float, differing: Sequence[str]) -> list[Cell]:
    state = Text(run.status.lower()) if run.state is None else state_text(run.state)
    age = ago(now - run.started) if run.started else ""
    length = took({"started": run.started or None, "ended": run.ended}, now)
    metrics = {key: show_number(point.value) for key, point in run.metrics.items()}
    first = {key: run.params[key] for key in differing if key in run.params}
    name = run.name if run.state is None else run.job or run.name
    logged = short_list(first | metrics | run.params, "see --csv")
    return [name, run.job or "", state, age, length, logged]


def _tags(found: "Experiment") -> str:
    return " ".join(f"{key}={value}" for key, value in found.tags.items())
