"""Searches for runs, each way the store may go about them, beside the same done in plain Python."""

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
from retarget.store.run_search import Scope, Sizes
from retarget.store.runs import Runs
from retarget.store.search import Searches

SIZES = [
    Sizes(),  # few: each run is asked
    Sizes(few=0, some=1_000, many=2_000),  # sets of ids are made
    Sizes(few=0, some=0, many=20),  # what many have is asked of each, in the order of a value
    Sizes(few=0, some=0, many=0),
    Sizes(few=3, some=5, many=9),
]
EVERYWHERE = Scope([0], [ACTIVE])
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


def make(number: int) -> Run:
    """Return a run that is unlike the others in some ways and like many in others."""
    values = [0.0, 0.5, -1.0, math.nan, math.inf, 2.0]
    metrics = {"acc": values[number % 6], "loss": float(number // 4)}
    words = ["a", "b", "ab", "B", "a%", "a_b", ""]
    return Run(
        id=f"{(number * 7919) % 1000:03}",
        experiment_id="0",
        name=words[number % 3],
        user="me",
        status=list(RunStatus)[number % 3],
        started=100 + number // 2,
        location=f"mlflow-artifacts:/0/{number}",
        metrics=tuple(
            Metric(key, value, 1, 1) for key, value in metrics.items() if number % 5 or key != "acc"
        ),
        params={"lr": words[number % 6], **({"rare": "yes"} if number % 11 == 0 else {})},
        tags={"t": words[number % 7], "mlflow.runName": words[number % 3]},
    )


RUNS = [make(number) for number in range(60)]


def holds(run: Run, clause: Clause) -> bool:
    found, op = value(run, clause.kind, clause.key), clause.op
    if op in NULLS:
        return (found is None) == (op == "IS NULL")
    if found is None:
        return False
    if op in ("LIKE", "ILIKE"):
        parts = [{"%": ".*", "_": "."}.get(each, re.escape(each)) for each in str(clause.value)]
        ignore = re.IGNORECASE if op == "ILIKE" else 0
        return re.fullmatch("".join(parts), str(found), re.DOTALL | ignore) is not None
    return OPERATORS[op](found, clause.value)


def value(run: Run, kind: Kind, key: str) -> Any:
    if kind == Kind.METRIC:
        return next((metric.value for metric in run.metrics if metric.key == key), None)
    if kind == Kind.ATTRIBUTE:
        return {"status": run.status.value, "start_time": run.started, "run_name": run.name}[key]
    return (run.params if kind == Kind.PARAM else run.tags).get(key)


def expected(search: Search) -> list[str]:
    found = [run for run in RUNS if all(holds(run, clause) for clause in search.clauses)]
    found.sort(key=lambda run: run.id)
    if not any(order.key == "start_time" for order in search.orders):
        found.sort(key=lambda run: -(run.started or 0))
    for order in reversed(search.orders):
        found = ordered(found, order)
    return [run.id for run in found[search.offset : search.offset + search.limit + 1]]


def ordered(runs: list[Run], order: Order) -> list[Run]:
    """Sort by one value, equal ones as they are; NaN comes after numbers, and nothing last."""

    def of(run: Run) -> Any:
        return value(run, order.kind, order.key)

    def group(run: Run) -> int:
        return 2 if of(run) is None else int(of(run) != of(run))

    groups = [[run for run in runs if group(run) == number] for number in range(3)]
    groups[0].sort(key=of, reverse=not order.ascending)
    return [run for each in groups for run in each]


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
@given(search=_searches, sizes=st.sampled_from(SIZES))
def test_every_way_finds_the_same(filled: Engine, search: Search, sizes: Sizes) -> None:
    assert Searches(filled, sizes).runs(search, EVERYWHERE) == expected(search)


def test_runs_elsewhere_are_not_found(filled: Engine) -> None:
    for sizes in SIZES:
        searches = Searches(filled, sizes)
        best = Search(orders=(Order(Kind.METRIC, "acc", False),))
        for scope in (Scope([1], [ACTIVE]), Scope([0], ["deleted"]), Scope([], [ACTIVE])):
            assert searches.runs(best, scope) == []
