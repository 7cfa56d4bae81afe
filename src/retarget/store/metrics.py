"""The points of metrics in SQL: histories, pages of them, and samples for plots."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, func, select, tuple_

from retarget.core.errors import NotFound
from retarget.core.tracking import Metric
from retarget.store.engine import reading
from retarget.store.schema import metrics, points, runs

_ROWS_PER_READ = 5000
_ORDER = (points.c.step, points.c.logged_at, points.c.value, points.c.nan)
_SELECT_POINTS = select(*_ORDER)


class Metrics:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def history(self, run_id: str, key: str, *, limit: int, offset: int = 0) -> list[Metric]:
        """Return a page of a metric's points, by time."""
        with reading(self.engine) as db:
            metric_id = _find(db, run_id, key)
            if metric_id is None:
                return []
            rows = db.execute(_by_time(metric_id).limit(limit).offset(offset))
            return [_metric(key, row) for row in rows]

    def iterate(self, run_id: str, key: str) -> Iterator[list[Metric]]:
        """Yield all of a metric's points by time, in batches, as there may be millions."""
        with reading(self.engine) as db:
            metric_id = _find(db, run_id, key)
            if metric_id is None:
                return
            query = _by_time(metric_id).execution_options(yield_per=_ROWS_PER_READ)
            for rows in db.execute(query).partitions():
                yield [_metric(key, row) for row in rows]

    def history_of_runs(
        self, run_ids: Sequence[str], key: str, *, limit: int
    ) -> list[tuple[str, Metric]]:
        """Return the points of one metric of several runs: by run, then by time."""
        is_metric = (metrics.c.run_id.in_(run_ids)) & (metrics.c.key == key)
        query = select(metrics.c.run_id, *_ORDER).join(points, points.c.metric_id == metrics.c.id)
        order = (metrics.c.run_id, points.c.logged_at, points.c.step, points.c.value)
        with reading(self.engine) as db:
            rows = db.execute(query.where(is_metric).order_by(*order).limit(limit))
            return [
                (run_id, Metric(key, math.nan if nan else value, logged_at, step))
                for run_id, step, logged_at, value, nan in rows
            ]

    def sample(
        self, run_id: str, key: str, *, max_points: int, steps: tuple[int, int] | None = None
    ) -> list[Metric]:
        """Return at most `max_points` points by step, evenly spaced, with the first and the last.

        The database skips the rows between two of them and never returns them.
        """
        with reading(self.engine) as db:
            metric_id = _find(db, run_id, key)
            if metric_id is None:
                return []
            conditions = [points.c.metric_id == metric_id]
            if steps is not None:
                conditions.append(points.c.step.between(*steps))
            return [_metric(key, row) for row in _sample(db, conditions, max_points)]


def _find(db: Connection, run_id: str, key: str) -> int | None:
    """Return the id of a metric or None. Raise NotFound if the run does not exist."""
    is_metric = (metrics.c.run_id == run_id) & (metrics.c.key == key)
    metric_id = db.scalar(select(metrics.c.id).where(is_metric))
    if metric_id is None and db.scalar(select(runs.c.id).where(runs.c.id == run_id)) is None:
        raise NotFound(f"Run with id={run_id} not found")
    return metric_id


def _by_time(metric_id: int) -> Any:
    order = (points.c.logged_at, points.c.step, points.c.value)
    return _SELECT_POINTS.where(points.c.metric_id == metric_id).order_by(*order)


def _sample(
    db: Connection, conditions: list[ColumnElement[bool]], max_points: int
) -> Sequence[Sequence[Any]]:
    query = _SELECT_POINTS.where(*conditions)
    total = db.scalar(select(func.count()).select_from(points).where(*conditions)) or 0
    if total <= max_points:
        return db.execute(query.order_by(*_ORDER)).all()
    last = db.execute(query.order_by(*(column.desc() for column in _ORDER)).limit(1)).one()
    if max_points == 1:
        return [last]
    # buckets as in SQL's NTILE: if they cannot be equal, the first ones have one row more
    size, longer = divmod(total, max_points)
    row = db.execute(query.order_by(*_ORDER).limit(1)).one()
    sample = [row]
    for bucket in range(max_points - 1):
        later = query.where(tuple_(*_ORDER) > tuple_(*row))
        stride = size + (bucket < longer)
        row = db.execute(later.order_by(*_ORDER).limit(1).offset(stride - 1)).one()
        sample.append(row)
    return sample if sample[-1] == last else [*sample[:-1], last]


def _metric(key: str, row: Sequence[Any]) -> Metric:
    step, logged_at, value, nan = row
    return Metric(key, math.nan if nan else value, logged_at, step)
