"""What a listing of jobs is filtered and sorted by, as users write it."""

import re
from dataclasses import dataclass, replace

from retarget.core.errors import Invalid
from retarget.core.filters import Clause, Literal, Order, parse_filter, parse_orders
from retarget.core.grammars import JOBS, RUNS, Grammar, Kind
from retarget.core.states import JobState

MAX_LOGGED = 50  # values of one listing
_EXAMPLE = "metrics.acc > 0.9 and params.lr = '0.1'"
_UNKNOWN_FIELD = re.compile(r"Invalid attribute key '(\w+)'")
_WRONG_OPERATOR = re.compile(r"Invalid comparator '(.+?)' not one of '\{(.+)\}'")
_PATTERN = re.compile(r"[A-Za-z0-9._*?\[\]!-]{1,200}")
# the runs of an experiment are sorted by the words that our own API has for them
_RUN_ALIASES = {"name": "run_name", "started_at": "start_time", "ended_at": "end_time"}
_RUNS = replace(
    RUNS,
    kinds={prefix: kind for prefix, kind in RUNS.kinds.items() if kind != Kind.DATASET},
    order_attributes=frozenset(("run_name", "status", "start_time", "end_time")),
    aliases=_RUN_ALIASES,
)
_LOGGED_KINDS = (Kind.METRIC, Kind.PARAM, Kind.TAG, Kind.PROPERTY)


@dataclass(frozen=True)
class JobQuery:
    """Which jobs to list, in which order. Without an order the newest come first."""

    states: tuple[JobState, ...] = ()
    target: str | None = None
    experiment: str | None = None
    name: str | None = None  # a shell-style pattern
    older_than_at: float | None = None  # ended before this time, or submitted if not ended
    clauses: tuple[Clause, ...] = ()
    order: Order | None = None
    limit: int = 100
    offset: int = 0


@dataclass(frozen=True)
class LoggedKey:
    """A value of a run that a listing shows, such as `metrics.acc`."""

    title: str
    kind: Kind
    key: str


def parse_job_filter(text: str) -> tuple[Clause, ...]:
    """Return the clauses of a filter of jobs, or raise Invalid with an example."""
    try:
        clauses = parse_filter(text, JOBS)
    except Invalid as error:
        unknown = _UNKNOWN_FIELD.match(str(error))
        if unknown is not None:
            raise _no_field("filter", unknown[1], sorted(JOBS.attributes)) from None
        operator = _WRONG_OPERATOR.match(str(error))
        if operator is not None:
            known = operator[2].replace("'", "")
            raise Invalid(
                f"filter: {operator[1]!r} does not compare these values; use one of {known}, or "
                "compare a metric or a parameter with a number without quotes",
                field="filter",
            ) from None
        raise Invalid(
            f"filter: {str(error).rstrip('.')}; write for example: {_EXAMPLE}", field="filter"
        ) from None
    for clause in clauses:
        if clause[:2] == (Kind.ATTRIBUTE, "state") and clause.op in ("=", "!=", "IN", "NOT IN"):
            _check_states(clause.value)
    return clauses


def parse_job_sort(text: str) -> Order:
    """Return what jobs are sorted by: `name`, `-created_at`, `metrics.acc desc`."""
    return _parse_sort(text, JOBS, sorted(JOBS.order_attributes))


def parse_run_sort(text: str) -> Order:
    """Return what the runs of an experiment are sorted by."""
    return _parse_sort(text, _RUNS, sorted((*_RUN_ALIASES, "status")))


def parse_logged(title: str) -> LoggedKey:
    """Return what `metrics.acc`, `params.lr` or `tags.team` refers to."""
    try:
        (order,) = parse_orders([_quoted(title)], JOBS)
    except Invalid:
        order = None
    if order is None or order.kind not in _LOGGED_KINDS:
        raise Invalid(
            f"logged: {title!r} is not a logged value; write metrics.KEY, params.KEY, tags.KEY or "
            "properties.KEY",
            field="logged",
        )
    return LoggedKey(title, order.kind, order.key)


def check_pattern(pattern: str) -> str:
    """Return a pattern for names of jobs, or raise Invalid."""
    if not _PATTERN.fullmatch(pattern) or pattern.count("*") > 10:
        raise Invalid(
            f"name: {pattern[:70]!a} is not a pattern for names of jobs; write for example "
            "'sweep-*', with at most 10 '*'",
            field="name",
        )
    return pattern


def _parse_sort(text: str, grammar: Grammar, fields: list[str]) -> Order:
    plain = text.strip()
    descending = plain.startswith("-")
    field, _, direction = plain.removeprefix("-").strip().rpartition(" ")
    if direction.lower() not in ("asc", "desc"):
        field, direction = plain.removeprefix("-").strip(), ""
    try:
        if descending and direction:
            raise Invalid("write either '-' or 'desc'")
        (order,) = parse_orders([_quoted(field.strip())], grammar)
    except Invalid:
        if re.fullmatch(r"\w+", field):
            raise _no_field("sort", field, fields) from None
        raise Invalid(
            f"sort: cannot sort by {text!r}; write metrics.KEY, params.KEY or a field, with a '-' "
            "in front for descending order",
            field="sort",
        ) from None
    return order._replace(ascending=not descending and direction.lower() != "desc")


def _no_field(option: str, name: str, fields: list[str]) -> Invalid:
    return Invalid(
        f"{option}: unknown field {name!r}; for a logged value write metrics.{name} or "
        f"params.{name}; fields are {', '.join(fields)}",
        field=option,
    )


def _quoted(field: str) -> str:
    """Quote the key of a logged value, which may contain any character: metrics.`val/acc`."""
    prefix, dot, key = field.partition(".")
    if not dot or not key or "`" in key or "\n" in key:
        return field
    return f"{prefix}.`{key}`"


def _check_states(value: Literal) -> None:
    names = value if isinstance(value, tuple) else (value,)
    for name in names:
        if name not in list(JobState):
            states = ", ".join(JobState)
            raise Invalid(f"filter: unknown state {name!r}; states are {states}", field="filter")
