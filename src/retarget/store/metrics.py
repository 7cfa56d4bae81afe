"""The points of metrics, in SQL: whole histories, pages of them, and as many as a plot needs."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, func, select, tuple_

from retarget.core.errors import NotFound
from retarget.core.tracking import Metric
from retarget.store.engine import reading
from retarget.store.schema import metrics, points, runs

_CHUNK = 5000
_WALK = (points.c.step, points.c.timestamp, points.c.value, points.c.nan)
_COLUMNS = select(*_WALK)


class Metrics:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def history(self, run_id: str, key: str, *, most: int, skip: int = 0) -> list[Metric]:
        """Return a page of a metric's points, by time."""
        with reading(self.engine) as db:
            metric_id = _find(db, run_id, key)
            if metric_id is None:
                return []
            rows = db.execute(_by_time(metric_id).limit(most).offset(skip))
            return [_metric(key, row) for row in rows]

    def every(self, run_id: str, key: str) -> Iterator[list[Metric]]:
        """Yield all of a metric's points by time, in parts: they may be millions."""
        with reading(self.engine) as db:
            metric_id = _find(db, run_id, key)
            if metric_id is None:
                return
            query = _by_time(metric_id).execution_options(yield_per=_CHUNK)
            for rows in db.execute(query).partitions():
                yield [_metric(key, row) for row in rows]

    def bulk(self, run_ids: Sequence[str], key: str, *, most: int) -> list[tuple[str, Metric]]:
        """Return the points of one metric of several runs: by run, then by time."""
        which = (metrics.c.run_id.in_(run_ids)) & (metrics.c.key == key)
        query = select(metrics.c.run_id, *_WALK).join(points, points.c.metric_id == metrics.c.id)
        order = (metrics.c.run_id, points.c.timestamp, points.c.step, points.c.value)
        with reading(self.engine) as db:
            rows = db.execute(query.where(which).order_by(*order).limit(most))
            return [
                (run_id, Metric(key, math.nan if nan else value, timestamp, step))
                for run_id, step, timestamp, value, nan in rows
            ]

    def sampled(
        self, run_id: str, key: str, *, most: int, steps: tuple[int, int] | None = None
    ) -> list[Metric]:
        """Return at most `most` points by step, evenly taken, the first and the last among them.

        The rows between two of them are stepped over by the database and never read.
        """
        with reading(self.engine) as db:
            metric_id = _find(db, run_id, key)
            if metric_id is None:
                return []
            mine = [points.c.metric_id == metric_id]
            if steps is not None:
                mine.append(points.c.step.between(*steps))
            return [_metric(key, row) for row in _sample(db, mine, most)]


def _find(db: Connection, run_id: str, key: str) -> int | None:
    """Return the id of a metric, None if it was never logged; raise NotFound without the run."""
    which = (metrics.c.run_id == run_id) & (metrics.c.key == key)
    found = db.scalar(select(metrics.c.id).where(which))
    if found is None and db.scalar(select(runs.c.id).where(runs.c.id == run_id)) is None:
        raise NotFound(f"Run with id={run_id} not found")
    return found


def _by_time(metric_id: int) -> Any:
    order = (points.c.timestamp, points.c.step, points.c.value)
    return _COLUMNS.where(points.c.metric_id == metric_id).order_by(*order)


def _sample(db: Connection, mine: list[ColumnElement[bool]], most: int) -> Sequence[Sequence[Any]]:
    query = _COLUMNS.where(*mine)
    total = db.scalar(select(func.count()).select_from(points).where(*mine)) or 0
    if total <= most:
        return db.execute(query.order_by(*_WALK)).all()
    last = db.execute(query.order_by(*(column.desc() for column in _WALK)).limit(1)).one()
    if most == 1:
        return [last]
    # as SQL's NTILE would part them: the first ones are longer by one where it does not come out
    size, longer = divmod(total, most)
    place = db.execute(query.order_by(*_WALK).limit(1)).one()
    taken = [place]
    for bucket in range(most - 1):
        beyond = query.where(tuple_(*_WALK) > tuple_(*place))
        stride = size + (bucket < longer)
        place = db.execute(beyond.order_by(*_WALK).limit(1).offset(stride - 1)).one()
        taken.append(place)
    return taken if taken[-1] == last else [*taken[:-1], last]


def _metric(key: str, row: Sequence[Any]) -> Metric:
    step, timestamp, value, nan = row
    return Metric(key, math.nan if nan else value, timestamp, step)
