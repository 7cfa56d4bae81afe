"""Logs with MLflow's own client, unmodified, in MLflow's environment; reads JSON requests.

A request has the url, the run, the number of calls, the first step, and whether to call
`mlflow.log_metric` or MlflowClient.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import mlflow

_MAX_ROUND_SECONDS = 2.0


def main() -> None:
    responses = sys.stdout
    sys.stdout = sys.stderr  # output of MLflow is not a response
    responses.write('"ready"\n')
    responses.flush()
    for line in sys.stdin:
        responses.write(json.dumps(_log(json.loads(line))) + "\n")
        responses.flush()


def _log(request: dict[str, Any]) -> list[float]:
    mlflow.set_tracking_uri(request["url"])
    steps = range(request["first"], request["first"] + request["calls"])
    if not request["fluent"]:
        client = mlflow.MlflowClient(request["url"])
        run = request["run"]
        return _latencies(lambda step: client.log_metric(run, "loss", 0.5, step=step), steps)
    with mlflow.start_run(request["run"]):
        return _latencies(lambda step: mlflow.log_metric("loss", 0.5, step=step), steps)


def _latencies(log: Callable[[int], object], steps: range) -> list[float]:
    latencies_ms: list[float] = []
    deadline = time.perf_counter() + _MAX_ROUND_SECONDS
    for step in steps:
        if (start_time := time.perf_counter()) > deadline:
            break
        log(step)
        latencies_ms.append((time.perf_counter() - start_time) * 1000)
    return latencies_ms


if __name__ == "__main__":
    main()
