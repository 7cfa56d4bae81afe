"""`retarget job list`: filter, sort and show jobs."""

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from retarget.cli.completion import complete_experiment, complete_state, complete_target
from retarget.cli.lookup import AsJson
from retarget.cli.ranking import best_first
from retarget.cli.terminal import print_status, write_json
from retarget.core.errors import Invalid
from retarget.core.grammars import Kind
from retarget.core.states import JobState

_STATES = ", ".join(JobState)
_PREFIXES = {
    Kind.METRIC: "metrics",
    Kind.PARAM: "params",
    Kind.TAG: "tags",
    Kind.PROPERTY: "properties",
}
_CHOICE = "Which jobs"

Sort = Annotated[
    str | None,
    typer.Option(
        metavar="FIELD",
        help="Sort by metrics.KEY, params.KEY or a field. `-FIELD` or `FIELD desc` sorts in "
        "descending order.",
    ),
]
Top = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        max=1000,
        help="Show only the first N. By a metric without a direction: the N best.",
    ),
]


def list_jobs(  # noqa: PLR0913  one parameter per option
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE",
            help=f"Only jobs in this state; repeatable. States: {_STATES}.",
            autocompletion=complete_state,
            rich_help_panel=_CHOICE,
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "-t",
            metavar="NAME",
            help="Only jobs on this target.",
            autocompletion=complete_target,
            rich_help_panel=_CHOICE,
        ),
    ] = None,
    experiment: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Only jobs of this experiment.",
            autocompletion=complete_experiment,
            rich_help_panel=_CHOICE,
        ),
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(
            metavar="K=V|K",
            help="Only jobs with this tag; K alone: with any value. Repeatable.",
            rich_help_panel=_CHOICE,
        ),
    ] = None,
    filter_text: Annotated[
        str | None,
        typer.Option(
            "--filter",
            metavar="TEXT",
            help="Only jobs for which this holds, such as 'metrics.acc > 0.9 and params.lr = 0.1'.",
            rich_help_panel=_CHOICE,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Show at most N jobs. Default: 100.",
            rich_help_panel=_CHOICE,
        ),
    ] = None,
    show_all: Annotated[
        bool, typer.Option("--all", "-a", help="Show all jobs.", rich_help_panel=_CHOICE)
    ] = False,
    sort: Sort = None,
    top: Top = None,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Columns to show, separated by commas: name,state,metrics.acc.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first.

    Fields to sort and filter by: name, display_name, description, id, state, target, experiment,
    reason, exit_code, priority, took (seconds), created_at, started_at, ended_at, and metrics.KEY,
    params.KEY, tags.KEY, properties.KEY.

    \b
    Examples:
      retarget job list --state running
      retarget job list --experiment sweep --sort metrics.val_acc --top 5
      retarget job list --filter 'metrics.loss < 0.2 and params.lr = 0.1'
      retarget job list --tag team=vision --filter "display_name LIKE '%b64%'"
      retarget job list --filter 'state = failed and created_at > "2026-11-01"'
      retarget job list --columns name,took,metrics.loss,params.lr
    """
    from retarget.cli.show_jobs import Table, parse_columns, show_jobs
    from retarget.sdk.workspace import Workspace

    if sum((limit is not None, show_all, top is not None)) > 1:
        raise Invalid("--limit, --all and --top exclude each other; choose one")
    chosen = None if columns is None else parse_columns(columns)
    logged = _logged_columns(sort, filter_text) if chosen is None else chosen.logged
    jobs = Workspace().jobs.list(
        state=check_states(state or []),
        target=target,
        experiment=experiment,
        tags=_tags(tag or []),
        filter=filter_text,
        sort=best_order(sort, top),
        limit=None if show_all else top or limit or 100,
        logged=logged,
    )
    if as_json:
        write_json([job.to_json() for job in jobs])
        return
    filtered = bool(state or target or experiment or tag or filter_text)
    show_jobs(jobs, Table(chosen, tuple(logged)), filtered=filtered)
    if limit is None and not show_all and top is None and len(jobs) == 100:  # the default limit
        print_status("the first 100 jobs; --all or --limit shows more", "dim")


def best_order(sort: str | None, top: int | None) -> str | None:
    """Return what to sort by. With --top, a metric without a direction is sorted best first."""
    order = best_first(sort) if sort is not None and top is not None else None
    if order is None:
        return sort
    size = "largest" if order.startswith("-") else "smallest"
    print_status(f"best first: the {size} {order.removeprefix('-')}", "dim")
    return order


def _tags(texts: list[str]) -> dict[str, str | None]:
    """Return tags by key. None stands for any value."""
    pairs = (text.partition("=") for text in texts)
    return {key: value if equals else None for key, equals, value in pairs}


def check_states(states: list[str]) -> list[str]:
    for state in states:
        if state not in list(JobState):
            raise Invalid(f"unknown state {state!r}; states are {_STATES}")
    return states


def _logged_columns(sort: str | None, filter_text: str | None) -> Sequence[str]:
    """Return the logged values that an order and a filter name, as columns."""
    return list(dict.fromkeys(_logged_names(sort, filter_text)))


def _logged_names(sort: str | None, filter_text: str | None) -> Iterator[str]:
    from retarget.core.job_queries import parse_job_filter, parse_job_sort

    orders = [] if sort is None else [parse_job_sort(sort)]
    for item in (*orders, *parse_job_filter(filter_text or "")):
        if item.kind in _PREFIXES:
            yield f"{_PREFIXES[item.kind]}.{item.key}"
