"""What a script prints: how much of it a second, and how soon a follower sees a line."""

import tempfile
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from statistics import median, quantiles
from urllib.parse import urlsplit

from benchmarks.frame import CACHE, OURS, Bar, Refused, Row, take_turns
from benchmarks.ours import Retarget, running

_SIZE = 400_000_000
_LINES = 200
_PRINT = f"""
import sys
line = (b"x" * 99 + b"\\n") * 10_000
for _ in range({_SIZE} // len(line)):
    sys.stdout.buffer.write(line)
"""
_TELL = f"""
import time
for _ in range({_LINES}):
    print(time.monotonic_ns(), flush=True)
    time.sleep(0.02)
"""


def measure() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir=CACHE) as folder, running(Path(folder)) as retarget:
        found = take_turns({OURS: lambda: _throughput(retarget)})
        yield Row("a log, from script to server", "MB/s", found, more=True, bar=Bar(50))
        rounds = take_turns({OURS: lambda: _latencies(retarget)})[OURS]
        halves, highs = [median(each) for each in rounds], [quantiles(each)[-1] for each in rounds]
        yield Row("a line, from script to follower, p50", "ms", {OURS: halves}, bar=Bar(100))
        yield Row("a line, from script to follower, p75", "ms", {OURS: highs})


def _throughput(retarget: Retarget) -> float:
    job = retarget.wait(retarget.submit("python", "-c", _PRINT)["name"])
    (stream,) = [
        each
        for each in retarget.client.get(f"/api/jobs/{job['name']}/streams")
        if each["stream"] == "output"
    ]
    if stream["size"] != _SIZE:
        raise Refused(f"{stream['size']} of {_SIZE} bytes came")
    return _SIZE / 1e6 / (job["ended"] - job["started"])


def _latencies(retarget: Retarget) -> list[float]:
    job = retarget.submit("python", "-c", _TELL)
    connection = HTTPConnection(str(urlsplit(retarget.server.url).netloc), timeout=60)
    headers = {"Authorization": f"Bearer {retarget.server.token}"}
    connection.request("GET", f"/api/jobs/{job['name']}/logs?follow=true", headers=headers)
    answer = connection.getresponse()
    found: list[float] = []
    while line := answer.readline():
        found.append((time.monotonic_ns() - int(line)) / 1e6)
    connection.close()
    if len(found) != _LINES:
        raise Refused(f"{len(found)} of {_LINES} lines came")
    return found
