"""Searches for runs: every query strategy returns the same as plain Python."""

import math
import operator
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine

from retarget.core.filters import Clause, Order, Search
from retarget.core.grammars import Kind
from retarget.core.tracking import ACTIVE, Metric, Run, RunStatus
from retarget.store.run_search import Scope, Thresholds
from retarget.store.runs import Runs
from retarget.store.search import Searches

THRESHOLDS = [
    Thresholds(),  # every run is tested
    Thresholds(few=0, some=1_000, many=2_000),  # sets of ids are built
    Thresholds(few=0, some=0, many=20),  # runs are tested in the order of a value
    Thresholds(few=0, some=0, many=0),
    Thresholds(few=3, some=5, many=9),
]
SCOPE = Scope([0], [ACTIVE])
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


def make(number: int) -> Run:
    """Return a run that shares some values with other runs and differs in others."""
    values = [0.0, 0.5, -1.0, math.nan, math.inf, 2.0]
    metrics = {"acc": values[number % 6], "loss": float(number // 4)}
    strings = ["a", "b", "ab", "B", "a%", "a_b", ""]
    return Run(
        id=f"{(number * 7919) % 1000:03}",
        experiment_id="0",
        name=strings[number % 3],
        user="me",
        status=list(RunStatus)[number % 3],
        started_at=100 + number // 2,
        location=f"mlflow-artifacts:/0/{number}",
        metrics=tuple(
            Metric(key, value, 1, 1) for key, value in metrics.items() if number % 5 or key != "acc"
        ),
        params={"lr": strings[number % 6], **({"rare": "yes"} if number % 11 == 0 else {})},
        tags={"t": strings[number % 7], "mlflow.runName": strings[number % 3]},
    )


RUNS = [make(number) for number in range(60)]


def holds(run: Run, clause: Clause) -> bool:
    actual, op = value(run, clause.kind, clause.key), clause.op
    if op in NULLS:
        return (actual is None) == (op == "IS NULL")
    if actual is None:
        return False
    if op in ("LIKE", "ILIKE"):
        regex = [{"%": ".*", "_": "."}.get(char, re.escape(char)) for char in str(clause.value)]
        ignore = re.IGNORECASE if op == "ILIKE" else 0
        return re.fullmatch("".join(regex), str(actual), re.DOTALL | ignore) is not None
    return OPERATORS[op](actual, clause.value)


def value(run: Run, kind: Kind, key: str) -> Any:
    if kind == Kind.METRIC:
        return next((metric.value for metric in run.metrics if metric.key == key), None)
    if kind == Kind.ATTRIBUTE:
        return {"status": run.status.value, "start_time": run.started_at, "run_name": run.name}[key]
    return (run.params if kind == Kind.PARAM else run.tags).get(key)


def expected(search: Search) -> list[str]:
    matches = [run for run in RUNS if all(holds(run, clause) for clause in search.clauses)]
    matches.sort(key=lambda run: run.id)
    if not any(order.key == "start_time" for order in search.orders):
        matches.sort(key=lambda run: -(run.started_at or 0))
    for order in reversed(search.orders):
        matches = ordered(matches, order)
    return [run.id for run in matches[search.offset : search.offset + search.limit + 1]]


def ordered(runs: list[Run], order: Order) -> list[Run]:
    """Sort stably by one value. NaN comes after numbers, and a missing value last."""

    def of(run: Run) -> Any:
        return value(run, order.kind, order.key)

    def group(run: Run) -> int:
        return 2 if of(run) is None else int(of(run) != of(run))

    groups = [[run for run in runs if group(run) == number] for number in range(3)]
    groups[0].sort(key=of, reverse=not order.ascending)
    return [run for group_runs in groups for run in group_runs]


def _compare(named: tuple[Kind, str], op: str, word: str | None) -> Clause:
    return Clause(*named, op, word)


def _order(named: tuple[Kind, str], ascending: bool) -> Order:
    return Order(*named, ascending)


def _field(order: Order) -> tuple[Kind, str]:
    return order.kind, order.key


NULLS = ["IS NULL", "IS NOT NULL"]
_number = st.sampled_from([0.0, 0.5, 1.0, -1.0, 2.0, 3.0])
_word = st.sampled_from(["a", "b", "ab", "B", "a%", "%b", "_", "%", "yes", "A"])
_textual = st.sampled_from(["=", "=", "=", "!=", "LIKE", "ILIKE"])
_numeric = st.sampled_from(sorted(OPERATORS))
_texts = st.sampled_from(
    [(Kind.PARAM, "lr"), (Kind.PARAM, "rare"), (Kind.TAG, "t"), (Kind.ATTRIBUTE, "run_name")]
)
_clauses = st.one_of(
    st.builds(Clause, st.just(Kind.METRIC), st.sampled_from(["acc", "loss"]), _numeric, _number),
    st.builds(_compare, _texts, _textual, _word),
    st.builds(_compare, st.just((Kind.PARAM, "rare")), st.sampled_from(NULLS), st.none()),
    st.builds(
        Clause, st.just(Kind.ATTRIBUTE), st.just("start_time"), _numeric, st.integers(99, 131)
    ),
)
_orders = st.builds(
    _order,
    st.sampled_from(
        [
            (Kind.METRIC, "acc"),
            (Kind.METRIC, "loss"),
            (Kind.PARAM, "lr"),
            (Kind.PARAM, "rare"),
            (Kind.TAG, "t"),
            (Kind.ATTRIBUTE, "start_time"),
            (Kind.ATTRIBUTE, "status"),
        ]
    ),
    st.booleans(),
)
_searches = st.builds(
    Search,
    clauses=st.lists(_clauses, max_size=3).map(tuple),
    orders=st.lists(_orders, max_size=2, unique_by=_field).map(tuple),
    limit=st.sampled_from([1, 7, 100]),
    offset=st.sampled_from([0, 0, 3]),
)


@pytest.fixture
def filled(engine: Engine) -> Engine:
    runs = Runs(engine)
    for run in RUNS:
        runs.create(run.model_copy(update={"metrics": (), "params": {}}))
        runs.log(run.id, run.metrics, run.params, run.tags)
    return engine


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(search=_searches, thresholds=st.sampled_from(THRESHOLDS))
def test_every_strategy_finds_the_same(
    filled: Engine, search: Search, thresholds: Thresholds
) -> None:
    assert Searches(filled, thresholds).runs(search, SCOPE) == expected(search)


def test_runs_outside_the_scope_are_not_found(filled: Engine) -> None:
    for thresholds in THRESHOLDS:
        searches = Searches(filled, thresholds)
        best = Search(orders=(Order(Kind.METRIC, "acc", False),))
        for scope in (Scope([1], [ACTIVE]), Scope([0], ["deleted"]), Scope([], [ACTIVE])):
            assert searches.runs(best, scope) == []
