"""Measures log output: throughput, and the delay until a follower sees a line."""

import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from statistics import median, quantiles
from urllib.parse import urlsplit

from benchmarks.harness import (
    RETARGET,
    Goal,
    MeasurementFailed,
    Row,
    measure_rounds,
    temporary_folder,
)
from benchmarks.retarget_server import Retarget, run_retarget, seconds_between

_BYTES = 400_000_000
_LINES = 200
_PRINT = f"""
import sys
line = (b"x" * 99 + b"\\n") * 10_000
for _ in range({_BYTES} // len(line)):
    sys.stdout.buffer.write(line)
"""
_PRINT_TIMES = f"""
import time
for _ in range({_LINES}):
    print(time.monotonic_ns(), flush=True)
    time.sleep(0.02)
"""


def measure() -> Iterator[Row]:
    with temporary_folder() as folder, run_retarget(Path(folder)) as retarget:
        rates = measure_rounds({RETARGET: lambda: _throughput(retarget)})
        yield Row(
            "a log, from script to server", "MB/s", rates, higher_is_better=True, goal=Goal(50)
        )
        rounds = measure_rounds({RETARGET: lambda: _latencies(retarget)})[RETARGET]
        medians = [median(latencies) for latencies in rounds]
        p75s = [quantiles(latencies)[-1] for latencies in rounds]
        yield Row("a line, from script to follower, p50", "ms", {RETARGET: medians}, goal=Goal(100))
        yield Row("a line, from script to follower, p75", "ms", {RETARGET: p75s})


def _throughput(retarget: Retarget) -> float:
    job = retarget.wait(retarget.submit("python", "-c", _PRINT)["name"])
    (stream,) = [
        stream
        for stream in retarget.client.get(f"/api/jobs/{job['name']}/streams")
        if stream["stream"] == "output"
    ]
    if stream["size"] != _BYTES:
        raise MeasurementFailed(f"{stream['size']} of {_BYTES} bytes arrived")
    return _BYTES / 1e6 / seconds_between(job["started_at"], job["ended_at"])


def _latencies(retarget: Retarget) -> list[float]:
    job = retarget.submit("python", "-c", _PRINT_TIMES)
    connection = HTTPConnection(str(urlsplit(retarget.server.url).netloc), timeout=60)
    headers = {"Authorization": f"Bearer {retarget.server.token}"}
    connection.request("GET", f"/api/jobs/{job['name']}/logs?follow=true", headers=headers)
    response = connection.getresponse()
    delays_ms: list[float] = []
    while line := response.readline():
        delays_ms.append((time.monotonic_ns() - int(line)) / 1e6)
    connection.close()
    if len(delays_ms) != _LINES:
        raise MeasurementFailed(f"{len(delays_ms)} of {_LINES} lines arrived")
    return delays_ms
