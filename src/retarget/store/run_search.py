"""Finds runs. There may be a great many, so how to ask is chosen by how many match.

PostgreSQL knows its tables and plans by itself. For SQLite we count first, up to a point. Of a
clause that few rows match, the set of their runs is made. One that many match is asked of one run
after the other, in order, until the page is full.
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
from retarget.store.comparisons import compare, directed
from retarget.store.runs import NAME_TAG
from retarget.store.schema import (
    SHORT,
    datasets,
    metrics,
    params,
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
    "start_time": runs.c.started,
    "end_time": runs.c.ended,
}
_TABLES: dict[Kind, Table] = {Kind.METRIC: metrics, Kind.PARAM: params, Kind.TAG: tags}


class Sizes(NamedTuple):
    """How many are how many, for SQLite."""

    few: int = 1_000  # so many ids are gone through one by one
    some: int = 5_000  # so many runs are sorted rather than met in order
    many: int = 20_000  # so many ids are no longer made a set of, nor counted to the end


class Scope(NamedTuple):
    """Where runs are looked for."""

    experiments: Sequence[int]
    stages: Sequence[str]


SIZES = Sizes()


def find_runs(db: Connection, search: Search, scope: Scope, sizes: Sizes = SIZES) -> list[str]:
    """Return the ids of a page of runs, and one more if there are more."""
    plan = _plan(db, search, scope, sizes)
    if plan.walk:
        return _walk(db, search, scope, plan)
    query = select(runs.c.id).where(*_within(scope, leading=not plan.led), *plan.where())
    ordered = _sorted(query, search.orders, db.dialect)
    return list(db.scalars(ordered.offset(search.offset).limit(search.limit + 1)))


class _Rows(NamedTuple):
    """Rows of another table: a run with one of them is looked for."""

    clause: Clause
    run_id: ColumnElement[str]
    where: tuple[ColumnElement[bool], ...]
    by_value: bool = False  # SQLite is to probe along the index by key, value and run

    def ids(self) -> Select[Any]:
        return select(self.run_id).where(*self.where)

    def probe(self, run_id: ColumnElement[str] = runs.c.id) -> ColumnElement[bool]:
        # a range keeps SQLite off the primary key, from where it would have to look up the value
        own = self.run_id.between(run_id, run_id) if self.by_value else self.run_id == run_id
        mine = self.ids().where(own)
        return mine.correlate(run_id.table).exists()


class _Plan(NamedTuple):
    """How the rows are asked for: as sets of ids, or for one run after the other."""

    conditions: list[ColumnElement[bool]]  # of the runs themselves, besides the scope
    probed: list[_Rows]
    sets: Sequence[_Rows] = ()
    led: bool = False  # SQLite goes through a few ids, and not through the scope
    walk: bool = False  # it goes along the values that are ordered by

    def where(self) -> list[ColumnElement[bool]]:
        sets = _in([each.ids() for each in self.sets], leading=self.led)
        return [*sets, *self.conditions, *(each.probe() for each in self.probed)]


def _plan(db: Connection, search: Search, scope: Scope, sizes: Sizes) -> _Plan:
    conditions, rows = _read(search.clauses, db.dialect)
    by_value = bool(search.orders) and search.orders[0].kind in _TABLES
    probing = _Plan(conditions, rows)
    if db.dialect.name != "sqlite" or not (rows or by_value):
        return probing
    within = _count(db, select(runs.c.id).where(*_within(scope)), sizes.many)
    if within <= sizes.few:
        return probing
    counted = [(each, _count(db, each.ids(), sizes.many)) for each in rows]
    sets = [each for each, count in counted if count < sizes.many]
    probed = [each for each, count in counted if count >= sizes.many]
    least = min((count for _, count in counted), default=sizes.many)
    led = least <= sizes.few or len(sets) > 1
    walk = by_value and not led and within >= sizes.many and least >= sizes.some
    return _Plan(conditions, probed, sets, led, walk)


def _in(sets: Sequence[Select[Any]], *, leading: bool) -> list[ColumnElement[bool]]:
    if not sets:
        return []
    run_id = runs.c.id if leading else _unindexed(runs.c.id)
    return [run_id.in_(intersect(*sets) if len(sets) > 1 else sets[0])]


def _within(scope: Scope, *, leading: bool = True) -> list[ColumnElement[bool]]:
    """Return what keeps a search in its scope: by an index, unless something else leads."""
    experiment, stage = runs.c.experiment_id, runs.c.stage
    if not leading:
        experiment, stage = _unindexed(experiment), _unindexed(stage)
    # numbers are written out: there may be more of them than SQLite takes parameters
    ids: list[Any] = [literal_column(str(int(each))) for each in scope.experiments]
    return [experiment.in_(ids), stage.in_(scope.stages)]


def _unindexed(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Keep SQLite from searching by the index of a column: this is what the plus sign means."""
    return literal_column(f"+{column}", column.type)


def _count(db: Connection, query: Select[Any], most: int) -> int:
    found = db.scalar(select(func.count()).select_from(query.limit(most).subquery()))
    return int(found or 0)


def _read(
    clauses: Sequence[Clause], dialect: Dialect
) -> tuple[list[ColumnElement[bool]], list[_Rows]]:
    """Return what is asked of the runs themselves, and what of their rows in other tables."""
    conditions: list[ColumnElement[bool]] = []
    rows: list[_Rows] = []
    for clause in clauses:
        if clause.kind == Kind.ATTRIBUTE and clause.key != "run_name":
            column = _COLUMNS[clause.key]
            conditions.append(compare(column, clause.op, clause.value, dialect))
        elif clause.op == "IS NULL":
            conditions.append(~_rows(clause, dialect).probe())
        else:
            rows.append(_rows(clause, dialect))
    return conditions, rows


def _rows(clause: Clause, dialect: Dialect) -> _Rows:
    if clause.kind == Kind.DATASET:
        return _dataset(clause, dialect)
    if clause.kind == Kind.ATTRIBUTE:  # as in MLflow: the name of a run is a tag
        clause = clause._replace(kind=Kind.TAG, key=NAME_TAG)
    table = _TABLES[clause.kind]
    holds = (table.c.key == clause.key, *_values(table, clause, dialect))
    exact = clause.op == "=" and clause.kind != Kind.METRIC
    return _Rows(clause, table.c.run_id, holds, exact and dialect.name == "sqlite")


def _values(table: FromClause, clause: Clause, dialect: Dialect) -> list[ColumnElement[bool]]:
    if clause.value is None:
        return []
    holds = compare(table.c.value, clause.op, clause.value, dialect)
    if clause.kind != Kind.METRIC:
        short = clause.op == "=" and len(str(clause.value)) <= SHORT
        return [holds, _short(table)] if short and dialect.name == "postgresql" else [holds]
    # NaN is unlike any number, and neither more nor less; its value is kept as 0
    if clause.op == "!=":
        return [or_(holds, table.c.nan == true())]
    return [table.c.nan == false(), holds]


def _short(table: FromClause) -> ColumnElement[bool]:
    return func.length(table.c.value) <= literal_column(str(SHORT))


def _dataset(clause: Clause, dialect: Dialect) -> _Rows:
    if clause.key == "context":
        holds = compare(run_dataset_tags.c.value, clause.op, clause.value, dialect)
        named = run_dataset_tags.c.key == CONTEXT_TAG
        return _Rows(clause, run_dataset_tags.c.run_id, (named, holds))
    holds = compare(datasets.c[clause.key], clause.op, clause.value, dialect)
    joined = run_datasets.c.dataset_id == datasets.c.id
    return _Rows(clause, run_datasets.c.run_id, (joined, holds))


def _sorted(
    query: Select[Any],
    orders: Sequence[Order],
    dialect: Dialect,
    *before: ColumnElement[Any],
) -> Select[Any]:
    """Order by `before`, by `orders`, and then as MLflow does: the newest first."""
    terms = list(before)
    for order in orders:
        if order.kind == Kind.ATTRIBUTE:
            terms.append(directed(_COLUMNS[order.key], dialect, ascending=order.ascending))
            continue
        rows = _TABLES[order.kind].alias()
        query = query.outerjoin(rows, _of_run(rows, order))
        if order.kind == Kind.METRIC:  # numbers, then NaN, then runs without this metric
            terms.append(rows.c.nan.asc().nulls_last())
        terms.append(directed(rows.c.value, dialect, ascending=order.ascending))
    if not any(order[:2] == (Kind.ATTRIBUTE, "start_time") for order in orders):
        terms.append(runs.c.started.desc().nulls_last())
    return query.order_by(*terms, runs.c.id)


def _walk(db: Connection, search: Search, scope: Scope, plan: _Plan) -> list[str]:
    """Go along the index of the values to order by, then take the runs that have none."""
    wanted = search.offset + search.limit + 1
    found: list[str] = []
    for query in _stretches(search, scope, plan, db.dialect):
        found += db.scalars(query.limit(wanted - len(found)))
        if len(found) == wanted:
            break
    return found[search.offset :]


def _stretches(
    search: Search, scope: Scope, plan: _Plan, dialect: Dialect
) -> Iterator[Select[Any]]:
    first, *rest = search.orders
    rows = _TABLES[first.kind].alias()
    bounds = [
        clause for clause in search.clauses if clause[:2] == first[:2] and clause.value is not None
    ]
    query = select(runs.c.id).join(rows, _of_run(rows, first)).where(*plan.conditions)
    along = query.where(*_within(scope, leading=False))
    for clause in bounds:
        along = along.where(*_values(rows, clause, dialect))
    for each in (*plan.sets, *plan.probed):  # asked of a row, before its run is looked up
        if each.clause not in bounds:
            along = along.where(each.probe(rows.c.run_id))
    by_value = directed(rows.c.value, dialect, ascending=first.ascending)
    if first.kind == Kind.METRIC:
        yield _sorted(along.where(rows.c.nan == false()), rest, dialect, by_value)
        yield _sorted(along.where(rows.c.nan == true()), rest, dialect)
    else:
        yield _sorted(along, rest, dialect, by_value)
    if not bounds:
        without = ~select(rows.c.run_id).where(_of_run(rows, first)).correlate(runs).exists()
        others = select(runs.c.id).where(*_within(scope), *plan.where(), without)
        yield _sorted(others, rest, dialect)


def _of_run(rows: FromClause, order: Order) -> ColumnElement[bool]:
    return (rows.c.run_id == runs.c.id) & (rows.c.key == order.key)
