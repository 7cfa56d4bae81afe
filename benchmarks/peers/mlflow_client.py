"""Logs with MLflow's own client, unmodified. Run by MLflow's Python: a JSON order in, numbers out.

An order has the url, the run, the number of calls, the first step, and whether to call through
`mlflow.log_metric` or MlflowClient.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import mlflow

_SECONDS = 2.0  # no round takes longer


def main() -> None:
    answers = sys.stdout
    sys.stdout = sys.stderr  # what MLflow prints is no answer
    answers.write('"ready"\n')
    answers.flush()
    for line in sys.stdin:
        answers.write(json.dumps(_obey(json.loads(line))) + "\n")
        answers.flush()


def _obey(order: dict[str, Any]) -> list[float]:
    mlflow.set_tracking_uri(order["url"])
    steps = range(order["first"], order["first"] + order["calls"])
    if not order["fluent"]:
        client = mlflow.MlflowClient(order["url"])
        run = order["run"]
        return _timed(lambda step: client.log_metric(run, "loss", 0.5, step=step), steps)
    with mlflow.start_run(order["run"]):
        return _timed(lambda step: mlflow.log_metric("loss", 0.5, step=step), steps)


def _timed(log: Callable[[int], object], steps: range) -> list[float]:
    found: list[float] = []
    deadline = time.perf_counter() + _SECONDS
    for step in steps:
        if (began := time.perf_counter()) > deadline:
            break
        log(step)
        found.append((time.perf_counter() - began) * 1000)
    return found


if __name__ == "__main__":
    main()
