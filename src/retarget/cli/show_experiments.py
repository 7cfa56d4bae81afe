"""Experiments for people."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from rich.text import Text

from retarget.cli.numbers import show_number
from retarget.cli.show import new_grid, show_first, show_pairs, show_took, state_text
from retarget.cli.tables import Cell, dropped_columns, new_table, without
from retarget.cli.terminal import print_result, print_status, show
from retarget.cli.times import show_age, utc_now
from retarget.core.units import show_count

if TYPE_CHECKING:
    from retarget.sdk.tracking import Experiment, Run

_MAX_NAMED = 5  # columns that do not fit, in a message


def show_experiments(experiments: "Sequence[Experiment]") -> None:
    now = utc_now()
    titles = ["NAME", "STAGE", "JOBS", "RUNS", "CHANGED", "TAGS"]
    rows = [_experiment_row(experiment, now) for experiment in experiments]
    if all(experiment.stage == "active" for experiment in experiments):
        titles, rows = without("STAGE", titles, rows)
    if not any(experiment.tags for experiment in experiments):
        titles, rows = without("TAGS", titles, rows)
    optional = ("TAGS", "JOBS") if "TAGS" in titles else ()
    show(new_table(titles, rows, flexible="NAME", optional=optional))


def show_experiment(experiment: "Experiment", *, sorted_by: str | None = None) -> None:
    """Show an experiment and its runs, one column per metric and per param that differs."""
    runs = experiment.newest or []
    same, differing = _split_params(runs)
    rows: list[tuple[str, str | Text]] = [
        ("experiment", experiment.name),
        ("id", experiment.id),
        ("stage", "" if experiment.stage == "active" else experiment.stage),
        ("runs", f"{experiment.runs}, {experiment.jobs} of them by jobs"),
        ("tags", show_pairs(experiment.tags)),
        ("params", show_first(same, "see --csv")),
    ]
    show(new_grid(rows))
    if not runs:
        command = f"retarget run --experiment {experiment.name} SCRIPT"
        print_status(f"no runs; `{command}` adds one", "dim")
        return
    print_result("")
    _show_runs(runs, differing, sorted_by)
    if len(runs) < experiment.runs:
        first = "newest" if sorted_by is None else "first"
        hint = "; --limit shows more" if sorted_by is None else ""
        print_status(
            f"the {first} {len(runs)} of {show_count(experiment.runs, 'run')}{hint}", "dim"
        )


def _show_runs(runs: "Sequence[Run]", params: Sequence[str], sorted_by: str | None) -> None:
    now = utc_now()
    metrics = sorted({key for run in runs for key in run.metrics}, key=_first(sorted_by))
    metric_titles = [f"metrics.{key}" if key in params else key for key in metrics]
    jobs = [] if all(run.state is not None for run in runs) else ["JOB"]
    titles = ["NAME", *jobs, "STATE", *metric_titles, *params, "AGE", "TOOK"]
    rows = [_run_row(run, now, metrics, params, bool(jobs)) for run in runs]
    optional = ["TOOK", "AGE", *reversed(params), *reversed(metric_titles[1:]), *jobs]
    show(new_table(titles, rows, flexible="NAME", optional=optional))
    dropped = dropped_columns(titles, rows, flexible="NAME", optional=optional)
    logged = [title for title in titles if title in dropped and title not in ("AGE", "TOOK")]
    if logged:
        names = ", ".join(logged[:_MAX_NAMED]) + ", …" * (len(logged) > _MAX_NAMED)
        print_status(f"too wide for this screen: {names}; --csv and --json have all", "dim")


def _experiment_row(experiment: "Experiment", now: datetime) -> list[Cell]:
    return [
        experiment.name,
        experiment.stage,
        str(experiment.jobs),
        str(experiment.runs),
        show_age(experiment.changed_at, now) if experiment.changed_at else "",
        show_pairs(experiment.tags),
    ]


def _split_params(runs: "Sequence[Run]") -> tuple[dict[str, str], list[str]]:
    """Return the params that are the same in all runs, and the keys of the others."""
    keys = sorted({key for run in runs for key in run.params})
    differing = [key for key in keys if len({run.params.get(key) for run in runs}) > 1]
    return {key: runs[0].params[key] for key in keys if key not in differing}, differing


def _first(sorted_by: str | None) -> Callable[[str], tuple[bool, str]]:
    """Return the order of the metrics: the one that the runs are sorted by, then by name."""
    words = (sorted_by or "").strip().removeprefix("-").split()
    return lambda key: (not words or words[0] not in (f"metrics.{key}", f"metric.{key}"), key)


def _run_row(
    run: "Run", now: datetime, metrics: Sequence[str], params: Sequence[str], with_job: bool
) -> list[Cell]:
    state = Text(run.status.lower()) if run.state is None else state_text(run.state)
    values = [show_number(run.metrics[key].value) if key in run.metrics else "" for key in metrics]
    return [
        run.name if run.state is None else run.job or run.name,
        *([run.job or ""] if with_job else []),
        state,
        *values,
        *(run.params.get(key, "") for key in params),
        show_age(run.started_at, now).removesuffix(" ago") if run.started_at else "",
        show_took(run.started_at, run.ended_at),
    ]
