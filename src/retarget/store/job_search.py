"""Search for jobs by their columns and by what their runs logged.

A listing reads jobs newest first until the page is full. Sorted by a logged value, it reads the
index of these values. On SQLite, a condition that few rows meet becomes a set of ids.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Dialect,
    Select,
    false,
    func,
    select,
    true,
)

from retarget.core.filters import Clause, Order
from retarget.core.grammars import Kind
from retarget.core.job_queries import JobQuery, LoggedKey
from retarget.core.tracking import NAME_TAG, NOTE_TAG
from retarget.store.comparisons import compare, directed, matches_pattern
from retarget.store.run_search import VALUE_TABLES, count_rows, row_condition
from retarget.store.schema import jobs

_Term = TypeVar("_Term", Clause, Order)
_FEW = 1_000  # up to this many rows, SQLite builds the set of their ids
_COLUMNS: dict[str, ColumnElement[Any]] = {
    **{name: jobs.c[name] for name in ("id", "name", "state", "target", "experiment", "reason")},
    **{name: jobs.c[name] for name in ("exit_code", "priority")},
    **{name: jobs.c[name] for name in ("created_at", "started_at", "ended_at")},
    "took": jobs.c.ended_at - jobs.c.started_at,
}
_TAG_KEYS = {"display_name": NAME_TAG, "description": NOTE_TAG}  # these fields are tags of the run


def find_jobs(db: Connection, query: JobQuery, *, few: int = _FEW) -> list[str]:
    """Return the ids of the jobs that a query asks for, in its order."""
    query = _with_tags(query)
    where = [*_conditions(query, db.dialect), *_logged_conditions(db, query.clauses, few)]
    matches = select(jobs.c.id).where(*where)
    if query.order is not None and query.order.kind in VALUE_TABLES:
        return _by_value(db, matches, query.order, query)
    if query.order is not None:
        column = _COLUMNS[query.order.key]
        matches = matches.order_by(directed(column, db.dialect, ascending=query.order.ascending))
    page = matches.order_by(jobs.c.id.desc()).offset(query.offset).limit(query.limit)
    return list(db.scalars(page))


def read_logged(
    db: Connection, ids: Sequence[str], keys: Sequence[LoggedKey]
) -> dict[str, dict[str, float | str]]:
    """Return the latest of these values for each job that logged one of them."""
    titles = {(key.kind, key.key): key.title for key in keys}
    values: dict[str, dict[str, float | str]] = {}
    for kind, table in VALUE_TABLES.items():
        key_names = [key.key for key in keys if key.kind == kind]
        if not key_names:
            continue
        nan = table.c.nan if kind == Kind.METRIC else false()
        query = select(table.c.run_id, table.c.key, table.c.value, nan)
        rows = db.execute(query.where(table.c.run_id.in_(ids), table.c.key.in_(key_names)))
        for run_id, key, value, is_nan in rows:
            number = float("nan") if is_nan else value
            values.setdefault(run_id, {})[titles[kind, key]] = number
    return values


def _with_tags(query: JobQuery) -> JobQuery:
    """Return the query with tags in place of the fields that are stored as such."""
    clauses = tuple(_as_tag(clause) for clause in query.clauses)
    return replace(query, clauses=clauses, order=query.order and _as_tag(query.order))


def _as_tag(term: _Term) -> _Term:
    if term.kind == Kind.ATTRIBUTE and term.key in _TAG_KEYS:
        return term._replace(kind=Kind.TAG, key=_TAG_KEYS[term.key])
    return term


def _conditions(query: JobQuery, dialect: Dialect) -> Iterator[ColumnElement[bool]]:
    if query.states:
        yield jobs.c.state.in_(query.states)
    if query.target is not None:
        yield jobs.c.target == query.target
    if query.experiment is not None:
        yield jobs.c.experiment == query.experiment
    if query.name is not None:
        yield matches_pattern(jobs.c.name, query.name, dialect)
    if query.older_than_at is not None:
        yield func.coalesce(jobs.c.ended_at, jobs.c.created_at) < query.older_than_at
    for clause in query.clauses:
        if clause.kind == Kind.ATTRIBUTE:
            yield compare(_COLUMNS[clause.key], clause.op, clause.value, dialect)


def _logged_conditions(
    db: Connection, clauses: Sequence[Clause], few: int
) -> Iterator[ColumnElement[bool]]:
    for clause in clauses:
        if clause.kind == Kind.ATTRIBUTE:
            continue
        rows = row_condition(clause, db.dialect)
        if clause.op == "IS NULL":
            yield ~rows.probe(jobs.c.id)
        elif db.dialect.name == "sqlite" and count_rows(db, rows.ids(), few) < few:
            yield jobs.c.id.in_(rows.ids())
        else:
            yield rows.probe(jobs.c.id)


def _by_value(db: Connection, matches: Select[Any], order: Order, query: JobQuery) -> list[str]:
    """Return ids by a logged value: the numbers, then NaN, then jobs without this value."""
    count = query.offset + query.limit
    ids: list[str] = []
    for part in _value_ranges(matches, order, db.dialect):
        ids += db.scalars(part.order_by(jobs.c.id.desc()).limit(count - len(ids)))
        if len(ids) == count:
            break
    return ids[query.offset :]


def _value_ranges(matches: Select[Any], order: Order, dialect: Dialect) -> Iterator[Select[Any]]:
    rows = VALUE_TABLES[order.kind].alias()
    of_job = (rows.c.run_id == jobs.c.id) & (rows.c.key == order.key)
    with_value = matches.join(rows, of_job)
    by_value = directed(rows.c.value, dialect, ascending=order.ascending)
    if order.kind == Kind.METRIC:
        yield with_value.where(rows.c.nan == false()).order_by(by_value)
        yield with_value.where(rows.c.nan == true())
    else:
        yield with_value.order_by(by_value)
    yield matches.where(~select(rows.c.run_id).where(of_job).correlate(jobs).exists())
