"""`retarget experiment …`: what groups jobs and runs."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retarget.cli.complete import complete_experiment
from retarget.cli.find import AsCsv, AsJson, check_one_form, nearest
from retarget.cli.groups import new_group
from retarget.cli.terminal import write_csv, write_json
from retarget.core.errors import NotFound

if TYPE_CHECKING:
    from retarget.sdk.tracking import Experiment, Run

app = new_group()

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="An experiment's name.", autocompletion=complete_experiment
    ),
]
_ABOUT = ("run_id", "name", "job", "state", "status", "started", "ended")


@app.command("list")
def list_experiments(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Deleted ones too.")] = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """List experiments, those where something happened last first.

    \b
    Example:
      retarget run --experiment baseline train.py
      retarget experiment list
    """
    from retarget.sdk.workspace import Workspace

    check_one_form(as_json, as_csv)
    found = [each for each in Workspace().experiments() if everything or each.stage == "active"]
    if as_json:
        write_json([_listed(each) for each in found])
    elif as_csv:
        titles = ("id", "name", "stage", "jobs", "runs", "changed")
        write_csv(titles, ([getattr(each, name) for name in titles] for each in found))
    else:
        from retarget.cli.show_experiments import show_experiments

        show_experiments(found)


@app.command()
def show(
    name: Name,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=1000, help="At most so many runs.")
    ] = 100,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Show an experiment and its runs, the newest first, with what they logged.

    \b
    Examples:
      retarget experiment show baseline
      retarget experiment show baseline --csv > runs.csv
    """
    check_one_form(as_json, as_csv)
    found = _find(name, limit)
    if as_json:
        write_json(asdict(found))
    elif as_csv:
        _write_runs(found.newest or [])
    else:
        from retarget.cli.show_experiments import show_experiment

        show_experiment(found)


def _find(name: str, limit: int) -> "Experiment":
    from retarget.sdk.workspace import Workspace

    workspace = Workspace()
    try:
        return workspace.experiment(name, limit=limit)
    except NotFound as error:
        near = nearest(name, [each.name for each in workspace.experiments()])
        if near is None:
            raise
        raise NotFound(f"no experiment named {name!r}; did you mean {near!r}?") from error


def _listed(each: "Experiment") -> dict[str, Any]:
    return {name: value for name, value in asdict(each).items() if name != "newest"}


def _write_runs(found: "list[Run]") -> None:
    params = sorted({key for run in found for key in run.params})
    metrics = sorted({key for run in found for key in run.metrics})
    titles = [*_ABOUT, *(f"params.{key}" for key in params), *(f"metrics.{key}" for key in metrics)]
    write_csv(titles, (_cells(run, params, metrics) for run in found))


def _cells(run: "Run", params: list[str], metrics: list[str]) -> list[Any]:
    about = [getattr(run, name) for name in _ABOUT]
    points = [run.metrics.get(key) for key in metrics]
    measured = [None if point is None else point.value for point in points]
    return [*about, *(run.params.get(key) for key in params), *measured]
