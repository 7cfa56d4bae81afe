"""MLflow's API: the histories of metrics."""

import json
from collections.abc import Generator, Iterator
from typing import Any

from retarget.core.errors import Invalid
from retarget.core.pages import read_offset, write_token
from retarget.core.tracking import Metric
from retarget.server.mlflow.app import Table
from retarget.server.mlflow.ask import Ask, missing
from retarget.server.mlflow.show import show_metric

_MOST = 25_000
_MOST_RUNS = 100
_MOST_AT_ONCE = 1_000_000  # points of a history that are asked for in pages
_MOST_SAMPLED = 2500


def history(ask: Ask) -> dict[str, Any] | Generator[bytes]:
    """Give out the points of a metric; without `max_results` all, as they are read."""
    run_id, key = ask.text("run_uuid") or ask.need("run_id"), ask.need("metric_key")
    most, skip = ask.whole("max_results"), _offset(ask.text("page_token"))
    if most is None:
        ask.parts.metrics.history(run_id, key, most=0)  # says now that there is no such run
        return _streamed(ask.parts.metrics.every(run_id, key), skip)
    if most <= 0:
        raise Invalid(
            f"Invalid value {most} for parameter 'max_results' supplied. "
            "It must be a positive integer."
        )
    most = min(most, _MOST_AT_ONCE)
    found = ask.parts.metrics.history(run_id, key, most=most + 1, skip=skip)
    answer: dict[str, Any] = {"metrics": [show_metric(metric) for metric in found[:most]]}
    if len(found) > most:
        answer["next_page_token"] = write_token({"offset": skip + most})
    return answer


def bulk(ask: Ask) -> dict[str, Any]:
    run_ids = ask.texts("run_id")
    if not run_ids:
        raise Invalid("GetMetricHistoryBulk request must specify at least one run_id.")
    if len(run_ids) > _MOST_RUNS:
        raise Invalid(
            f"GetMetricHistoryBulk request cannot specify more than {_MOST_RUNS} run_ids. "
            f"Received {len(run_ids)} run_ids."
        )
    if ask.body.get("metric_key") is None:
        raise Invalid("GetMetricHistoryBulk request must specify a metric_key.")
    most = max(0, min(ask.whole("max_results", _MOST) or 0, _MOST))
    found = ask.parts.metrics.bulk(run_ids, ask.text("metric_key"), most=most)
    return {"metrics": [{**show_metric(metric), "run_id": run_id} for run_id, metric in found]}


def bulk_interval(ask: Ask) -> dict[str, Any]:
    """Give out as many points as a plot needs."""
    run_ids, key = ask.texts("run_ids"), ask.need("metric_key")
    if not run_ids:
        raise missing("run_ids")
    if len(run_ids) > _MOST_RUNS:
        raise Invalid(
            f"GetMetricHistoryBulkInterval request must specify at most {_MOST_RUNS} run_ids. "
            f"Received {len(run_ids)} run_ids."
        )
    most = ask.whole("max_results", _MOST_SAMPLED) or 0
    if not 1 <= most <= _MOST_SAMPLED:
        raise Invalid(f"max_results must be between 1 and {_MOST_SAMPLED}.")
    steps = _steps(ask.whole("start_step"), ask.whole("end_step"))
    found = [
        {**show_metric(metric), "run_id": run_id}
        for run_id in run_ids
        for metric in ask.parts.metrics.sampled(run_id, key, most=most, steps=steps)
    ]
    return {"metrics": found}


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


def _streamed(parts: Iterator[list[Metric]], skip: int) -> Generator[bytes]:
    yield b'{"metrics":['
    between = ""
    for part in parts:
        left = part[skip:]
        skip = max(0, skip - len(part))
        shown = ",".join(json.dumps(show_metric(metric)) for metric in left)
        if shown:
            yield (between + shown).encode()
            between = ","
    yield b"]}"


def _offset(token: str) -> int:
    """Return how many points a page token has us pass over."""
    if not token:
        return 0
    return read_offset(token)


TABLE: Table = [
    ("GET", "/mlflow/metrics/get-history", history),
    ("GET", "/mlflow/metrics/get-history-bulk", bulk),
    ("GET", "/mlflow/metrics/get-history-bulk-interval", bulk_interval),
]
