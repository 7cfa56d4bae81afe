"""Search for runs. There may be many, so the query depends on how many rows match.

PostgreSQL has statistics and plans by itself. For SQLite we first count the matches, up to a
limit. For a clause that few rows match, SQLite builds the set of their runs. A clause that many
rows match is tested on one run after the other, in order, until the page is full.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Dialect,
    FromClause,
    Select,
    Table,
    false,
    func,
    intersect,
    literal_column,
    or_,
    select,
    true,
)

from retarget.core.filters import Clause, Order, Search
from retarget.core.grammars import Kind
from retarget.core.tracking import NAME_TAG
from retarget.store.comparisons import as_number, compare, directed
from retarget.store.schema import (
    MAX_INDEXED_LENGTH,
    datasets,
    metrics,
    params,
    properties,
    run_dataset_tags,
    run_datasets,
    runs,
    tags,
)

CONTEXT_TAG = "mlflow.data.context"  # what a run used a dataset for

_COLUMNS: dict[str, ColumnElement[Any]] = {
    "run_id": runs.c.id,
    "run_name": runs.c.name,
    "user_id": runs.c.user,
    "status": runs.c.status,
    "artifact_uri": runs.c.location,
    "start_time": runs.c.started_at,
    "end_time": runs.c.ended_at,
}
VALUE_TABLES: dict[Kind, Table] = {
    Kind.METRIC: metrics,
    Kind.PARAM: params,
    Kind.TAG: tags,
    Kind.PROPERTY: properties,
}


class Thresholds(NamedTuple):
    """Row counts at which the query for SQLite changes."""

    few: int = 1_000  # up to this many ids are tested one by one
    some: int = 5_000  # fewer runs than this are sorted instead of read in order
    many: int = 20_000  # from this many ids on, no set is built and counting stops


class Scope(NamedTuple):
    """The experiments and stages that a search covers."""

    experiments: Sequence[int]
    stages: Sequence[str]


THRESHOLDS = Thresholds()


def find_runs(
    db: Connection, search: Search, scope: Scope, thresholds: Thresholds = THRESHOLDS
) -> list[str]:
    """Return the ids of a page of runs, and one more id if there is another page."""
    plan = _plan(db, search, scope, thresholds)
    if plan.walks_values:
        return _walk(db, search, scope, plan)
    query = select(runs.c.id).where(
        *_within(scope, leading=not plan.leads_with_sets), *plan.where()
    )
    ordered = _sorted(query, search.orders, db.dialect)
    return list(db.scalars(ordered.offset(search.offset).limit(search.limit + 1)))


class RowCondition(NamedTuple):
    """A condition that a run meets if it has such a row in another table."""

    clause: Clause
    run_id: ColumnElement[str]
    where: tuple[ColumnElement[bool], ...]
    by_value: bool = False  # SQLite is to use the index by key, value and run

    def ids(self) -> Select[Any]:
        return select(self.run_id).where(*self.where)

    def probe(self, run_id: ColumnElement[str] = runs.c.id) -> ColumnElement[bool]:
        # a range keeps SQLite from using the primary key, which would need a lookup of the value
        is_run = self.run_id.between(run_id, run_id) if self.by_value else self.run_id == run_id
        rows = self.ids().where(is_run)
        return rows.correlate(run_id.table).exists()


class _Plan(NamedTuple):
    """How each condition is tested: as a set of ids, or on one run after the other."""

    conditions: list[ColumnElement[bool]]  # on columns of the runs, besides the scope
    probed: list[RowCondition]
    sets: Sequence[RowCondition] = ()
    leads_with_sets: bool = False  # SQLite reads the ids of the sets, not the scope
    walks_values: bool = False  # SQLite reads the index of the values to order by

    def where(self) -> list[ColumnElement[bool]]:
        sets = _in_sets([rows.ids() for rows in self.sets], leading=self.leads_with_sets)
        return [*sets, *self.conditions, *(rows.probe() for rows in self.probed)]


def _plan(db: Connection, search: Search, scope: Scope, thresholds: Thresholds) -> _Plan:
    conditions, row_conditions = _split_clauses(search.clauses, db.dialect)
    by_value = bool(search.orders) and search.orders[0].kind in VALUE_TABLES
    probing = _Plan(conditions, row_conditions)
    if db.dialect.name != "sqlite" or not (row_conditions or by_value):
        return probing
    within = count_rows(db, select(runs.c.id).where(*_within(scope)), thresholds.many)
    if within <= thresholds.few:
        return probing
    counted = [(rows, count_rows(db, rows.ids(), thresholds.many)) for rows in row_conditions]
    sets = [rows for rows, count in counted if count < thresholds.many]
    probed = [rows for rows, count in counted if count >= thresholds.many]
    least = min((count for _, count in counted), default=thresholds.many)
    leads_with_sets = least <= thresholds.few or len(sets) > 1
    walks_values = (
        by_value and not leads_with_sets and within >= thresholds.many and least >= thresholds.some
    )
    return _Plan(conditions, probed, sets, leads_with_sets, walks_values)


def _in_sets(sets: Sequence[Select[Any]], *, leading: bool) -> list[ColumnElement[bool]]:
    if not sets:
        return []
    run_id = runs.c.id if leading else _unindexed(runs.c.id)
    return [run_id.in_(intersect(*sets) if len(sets) > 1 else sets[0])]


def _within(scope: Scope, *, leading: bool = True) -> list[ColumnElement[bool]]:
    """Return the conditions of a scope. Unless they lead, SQLite uses no index for them."""
    experiment, stage = runs.c.experiment_id, runs.c.stage
    if not leading:
        experiment, stage = _unindexed(experiment), _unindexed(stage)
    # literal numbers, because there may be more of them than SQLite accepts parameters
    ids: list[Any] = [literal_column(str(int(number))) for number in scope.experiments]
    return [experiment.in_(ids), stage.in_(scope.stages)]


def _unindexed(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Keep SQLite from using the index of a column. The plus sign does this."""
    return literal_column(f"+{column}", column.type)


def count_rows(db: Connection, query: Select[Any], max_rows: int) -> int:
    count = db.scalar(select(func.count()).select_from(query.limit(max_rows).subquery()))
    return int(count or 0)


def _split_clauses(
    clauses: Sequence[Clause], dialect: Dialect
) -> tuple[list[ColumnElement[bool]], list[RowCondition]]:
    """Return the conditions on columns of runs, and those on their rows in other tables."""
    conditions: list[ColumnElement[bool]] = []
    rows: list[RowCondition] = []
    for clause in clauses:
        if clause.kind == Kind.ATTRIBUTE and clause.key != "run_name":
            column = _COLUMNS[clause.key]
            conditions.append(compare(column, clause.op, clause.value, dialect))
        elif clause.op == "IS NULL":
            conditions.append(~row_condition(clause, dialect).probe())
        else:
            rows.append(row_condition(clause, dialect))
    return conditions, rows


def row_condition(clause: Clause, dialect: Dialect) -> RowCondition:
    if clause.kind == Kind.DATASET:
        return _dataset(clause, dialect)
    if clause.kind == Kind.ATTRIBUTE:  # as in MLflow, the name of a run is a tag
        clause = clause._replace(kind=Kind.TAG, key=NAME_TAG)
    table = VALUE_TABLES[clause.kind]
    holds = (table.c.key == clause.key, *_value_conditions(table, clause, dialect))
    exact = clause.op == "=" and clause.kind != Kind.METRIC
    return RowCondition(clause, table.c.run_id, holds, exact and dialect.name == "sqlite")


def _value_conditions(
    table: FromClause, clause: Clause, dialect: Dialect
) -> list[ColumnElement[bool]]:
    if clause.value is None:
        return []
    if clause.kind == Kind.PARAM and isinstance(clause.value, float):
        return [compare(as_number(table.c.value, dialect), clause.op, clause.value, dialect)]
    holds = compare(table.c.value, clause.op, clause.value, dialect)
    if clause.kind != Kind.METRIC:
        short = clause.op == "=" and len(str(clause.value)) <= MAX_INDEXED_LENGTH
        return [holds, _is_short(table)] if short and dialect.name == "postgresql" else [holds]
    # NaN differs from every number and is neither more nor less; it is stored as 0
    if clause.op == "!=":
        return [or_(holds, table.c.nan == true())]
    return [table.c.nan == false(), holds]


def _is_short(table: FromClause) -> ColumnElement[bool]:
    return func.length(table.c.value) <= literal_column(str(MAX_INDEXED_LENGTH))


def _dataset(clause: Clause, dialect: Dialect) -> RowCondition:
    if clause.key == "context":
        holds = compare(run_dataset_tags.c.value, clause.op, clause.value, dialect)
        named = run_dataset_tags.c.key == CONTEXT_TAG
        return RowCondition(clause, run_dataset_tags.c.run_id, (named, holds))
    holds = compare(datasets.c[clause.key], clause.op, clause.value, dialect)
    joined = run_datasets.c.dataset_id == datasets.c.id
    return RowCondition(clause, run_datasets.c.run_id, (joined, holds))


def _sorted(
    query: Select[Any],
    orders: Sequence[Order],
    dialect: Dialect,
    *before: ColumnElement[Any],
) -> Select[Any]:
    """Order by `before`, then by `orders`, and then as MLflow does: the newest first."""
    terms = list(before)
    for order in orders:
        if order.kind == Kind.ATTRIBUTE:
            terms.append(directed(_COLUMNS[order.key], dialect, ascending=order.ascending))
            continue
        rows = VALUE_TABLES[order.kind].alias()
        query = query.outerjoin(rows, _row_of_run(rows, order))
        if order.kind == Kind.METRIC:  # numbers, then NaN, then runs without this metric
            terms.append(rows.c.nan.asc().nulls_last())
        terms.append(directed(rows.c.value, dialect, ascending=order.ascending))
    if not any(order[:2] == (Kind.ATTRIBUTE, "start_time") for order in orders):
        terms.append(runs.c.started_at.desc().nulls_last())
    return query.order_by(*terms, runs.c.id)


def _walk(db: Connection, search: Search, scope: Scope, plan: _Plan) -> list[str]:
    """Read the index of the values to order by, then the runs that have no value."""
    count = search.offset + search.limit + 1
    ids: list[str] = []
    for query in _value_ranges(search, scope, plan, db.dialect):
        ids += db.scalars(query.limit(count - len(ids)))
        if len(ids) == count:
            break
    return ids[search.offset :]


def _value_ranges(
    search: Search, scope: Scope, plan: _Plan, dialect: Dialect
) -> Iterator[Select[Any]]:
    first, *rest = search.orders
    rows = VALUE_TABLES[first.kind].alias()
    bounds = [
        clause for clause in search.clauses if clause[:2] == first[:2] and clause.value is not None
    ]
    query = select(runs.c.id).join(rows, _row_of_run(rows, first)).where(*plan.conditions)
    with_value = query.where(*_within(scope, leading=False))
    for clause in bounds:
        with_value = with_value.where(*_value_conditions(rows, clause, dialect))
    for condition in (*plan.sets, *plan.probed):  # tested before the run is looked up
        if condition.clause not in bounds:
            with_value = with_value.where(condition.probe(rows.c.run_id))
    by_value = directed(rows.c.value, dialect, ascending=first.ascending)
    if first.kind == Kind.METRIC:
        yield _sorted(with_value.where(rows.c.nan == false()), rest, dialect, by_value)
        yield _sorted(with_value.where(rows.c.nan == true()), rest, dialect)
    else:
        yield _sorted(with_value, rest, dialect, by_value)
    if not bounds:
        without = ~select(rows.c.run_id).where(_row_of_run(rows, first)).correlate(runs).exists()
        others = select(runs.c.id).where(*_within(scope), *plan.where(), without)
        yield _sorted(others, rest, dialect)


def _row_of_run(rows: FromClause, order: Order) -> ColumnElement[bool]:
    return (rows.c.run_id == runs.c.id) & (rows.c.key == order.key)
