"""MLflow's API: metric histories."""

import json
from collections.abc import Generator, Iterator
from typing import Any

from retarget.core.errors import Invalid
from retarget.core.pages import read_offset, write_token
from retarget.core.tracking import Metric
from retarget.server.mlflow.app import RouteTable
from retarget.server.mlflow.request import MlflowRequest, missing
from retarget.server.mlflow.show import show_metric

_MAX_BULK_POINTS = 25_000
_MAX_RUNS = 100
_MAX_PAGE_POINTS = 1_000_000
_MAX_SAMPLED_POINTS = 2500


def history(request: MlflowRequest) -> dict[str, Any] | Generator[bytes]:
    """Return the points of a metric. Without `max_results`, stream all of them."""
    run_id = request.string("run_uuid") or request.required_string("run_id")
    key = request.required_string("metric_key")
    limit, offset = request.integer("max_results"), _offset(request.string("page_token"))
    if limit is None:
        request.context.store.metrics.history(
            run_id, key, limit=0
        )  # raises now if there is no such run
        return _stream_json(request.context.store.metrics.iterate(run_id, key), offset)
    if limit <= 0:
        raise Invalid(
            f"Invalid value {limit} for parameter 'max_results' supplied. "
            "It must be a positive integer."
        )
    limit = min(limit, _MAX_PAGE_POINTS)
    points = request.context.store.metrics.history(run_id, key, limit=limit + 1, offset=offset)
    page: dict[str, Any] = {"metrics": [show_metric(point) for point in points[:limit]]}
    if len(points) > limit:
        page["next_page_token"] = write_token({"offset": offset + limit})
    return page


def bulk(request: MlflowRequest) -> dict[str, Any]:
    run_ids = request.strings("run_id")
    if not run_ids:
        raise Invalid("GetMetricHistoryBulk request must specify at least one run_id.")
    if len(run_ids) > _MAX_RUNS:
        raise Invalid(
            f"GetMetricHistoryBulk request cannot specify more than {_MAX_RUNS} run_ids. "
            f"Received {len(run_ids)} run_ids."
        )
    if request.body.get("metric_key") is None:
        raise Invalid("GetMetricHistoryBulk request must specify a metric_key.")
    limit = max(0, min(request.integer("max_results", _MAX_BULK_POINTS) or 0, _MAX_BULK_POINTS))
    key = request.string("metric_key")
    points = request.context.store.metrics.history_of_runs(run_ids, key, limit=limit)
    return {"metrics": [{**show_metric(point), "run_id": run_id} for run_id, point in points]}


def bulk_interval(request: MlflowRequest) -> dict[str, Any]:
    """Return as many points as a plot needs."""
    run_ids, key = request.strings("run_ids"), request.required_string("metric_key")
    if not run_ids:
        raise missing("run_ids")
    if len(run_ids) > _MAX_RUNS:
        raise Invalid(
            f"GetMetricHistoryBulkInterval request must specify at most {_MAX_RUNS} run_ids. "
            f"Received {len(run_ids)} run_ids."
        )
    limit = request.integer("max_results", _MAX_SAMPLED_POINTS) or 0
    if not 1 <= limit <= _MAX_SAMPLED_POINTS:
        raise Invalid(f"max_results must be between 1 and {_MAX_SAMPLED_POINTS}.")
    steps = _steps(request.integer("start_step"), request.integer("end_step"))
    points = [
        {**show_metric(point), "run_id": run_id}
        for run_id in run_ids
        for point in request.context.store.metrics.sample(
            run_id, key, max_points=limit, steps=steps
        )
    ]
    return {"metrics": points}


def _steps(start: int | None, end: int | None) -> tuple[int, int] | None:
    if start is None and end is None:
        return None
    if start is None or end is None:
        raise Invalid("If either start step or end step are specified, both must be specified.")
    if start > end:
        raise Invalid(
            "end_step must be greater than start_step. "
            f"Found start_step={start} and end_step={end}."
        )
    return start, end


def _stream_json(batches: Iterator[list[Metric]], skip: int) -> Generator[bytes]:
    yield b'{"metrics":['
    separator = ""
    for batch in batches:
        points = batch[skip:]
        skip = max(0, skip - len(batch))
        items = ",".join(json.dumps(show_metric(point)) for point in points)
        if items:
            yield (separator + items).encode()
            separator = ","
    yield b"]}"


def _offset(token: str) -> int:
    """Return how many points to skip, by the page token."""
    if not token:
        return 0
    return read_offset(token)


ROUTES: RouteTable = [
    ("GET", "/mlflow/metrics/get-history", history),
    ("GET", "/mlflow/metrics/get-history-bulk", bulk),
    ("GET", "/mlflow/metrics/get-history-bulk-interval", bulk_interval),
]
