"""`retarget experiment …`: experiments and the jobs and runs that they group."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retarget.cli.completion import complete_experiment
from retarget.cli.groups import new_group
from retarget.cli.job_list import Sort, Top, best_order
from retarget.cli.lookup import AsCsv, AsJson, check_one_format, closest_name
from retarget.cli.terminal import write_csv, write_json
from retarget.core.errors import NotFound

if TYPE_CHECKING:
    from retarget.sdk.tracking import Experiment, Run

app = new_group()

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="Name of an experiment.", autocompletion=complete_experiment
    ),
]
_RUN_FIELDS = ("run_id", "name", "job", "state", "status", "started_at", "ended_at")


@app.command("list")
def list_experiments(
    show_all: Annotated[
        bool, typer.Option("--all", "-a", help="Include deleted experiments.")
    ] = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """List experiments, the most recently used first.

    \b
    Example:
      retarget run --experiment baseline train.py
      retarget experiment list
    """
    from retarget.sdk.workspace import Workspace

    check_one_format(as_json, as_csv)
    experiments = [
        experiment
        for experiment in Workspace().experiments.list()
        if show_all or experiment.stage == "active"
    ]
    if as_json:
        write_json([_without_runs(experiment) for experiment in experiments])
    elif as_csv:
        titles = ("id", "name", "stage", "jobs", "runs", "changed_at")
        write_csv(titles, ([getattr(item, title) for title in titles] for item in experiments))
    else:
        from retarget.cli.show_experiments import show_experiments

        show_experiments(experiments)


@app.command()
def show(  # noqa: PLR0913  one parameter per option
    name: Name,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=1000, help="Show at most N runs.")
    ] = 100,
    sort: Sort = None,
    top: Top = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Show an experiment and its runs, newest first.

    Each metric has a column, and so has each param that differs between the runs. Fields to sort
    by: name, status, started_at, ended_at, and metrics.KEY, params.KEY, tags.KEY.

    \b
    Examples:
      retarget experiment show baseline
      retarget experiment show baseline --sort metrics.val_acc --top 5
      retarget experiment show baseline --csv > runs.csv
    """
    check_one_format(as_json, as_csv)
    order = best_order(sort, top)
    experiment = _find(name, top or limit, order)
    if as_json:
        write_json(asdict(experiment))
    elif as_csv:
        _write_runs(experiment.newest or [])
    else:
        from retarget.cli.show_experiments import show_experiment

        show_experiment(experiment, sorted_by=order)


def _find(name: str, limit: int, sort: str | None) -> "Experiment":
    from retarget.sdk.workspace import Workspace

    workspace = Workspace()
    try:
        return workspace.experiments.get(name, limit=limit, sort=sort)
    except NotFound as error:
        names = [experiment.name for experiment in workspace.experiments]
        suggestion = closest_name(name, names)
        if suggestion is None:
            raise
        raise NotFound(f"no experiment named {name!r}; did you mean {suggestion!r}?") from error


def _without_runs(experiment: "Experiment") -> dict[str, Any]:
    return {name: value for name, value in asdict(experiment).items() if name != "newest"}


def _write_runs(runs: "list[Run]") -> None:
    params = sorted({key for run in runs for key in run.params})
    metrics = sorted({key for run in runs for key in run.metrics})
    titles = [f"params.{key}" for key in params] + [f"metrics.{key}" for key in metrics]
    write_csv([*_RUN_FIELDS, *titles], (_cells(run, params, metrics) for run in runs))


def _cells(run: "Run", params: list[str], metrics: list[str]) -> list[Any]:
    fields = [getattr(run, name) for name in _RUN_FIELDS]
    points = [run.metrics.get(key) for key in metrics]
    values = [None if point is None else point.value for point in points]
    return [*fields, *(run.params.get(key) for key in params), *values]
