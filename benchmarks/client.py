"""A plain, cheap client for the MLflow API, alone or as several processes."""

import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from multiprocessing.synchronize import Barrier
from typing import Any
from urllib.parse import urlsplit

from benchmarks.harness import MeasurementFailed, Server

API = "/api/2.0/mlflow"

_IDLE_SECONDS = 3.0  # after which a new connection is opened
_fork = multiprocessing.get_context("fork")


class Client:
    """One kept-alive connection."""

    def __init__(self, server: Server, timeout: float = 300) -> None:
        self._connection = HTTPConnection(str(urlsplit(server.url).netloc), timeout=timeout)
        self._used = time.monotonic()
        self._headers = {"Content-Type": "application/json"}
        if server.token:
            self._headers["Authorization"] = f"Bearer {server.token}"

    def send(self, path: str, body: bytes | None = None) -> bytes:
        """Send a POST request with the body, or a GET request without one."""
        method = "GET" if body is None else "POST"
        if time.monotonic() - self._used > _IDLE_SECONDS:
            self._connection.close()  # the server may have closed it; it is opened again
        self._connection.request(method, path, body, self._headers)
        response = self._connection.getresponse()
        content = response.read()
        self._used = time.monotonic()
        if response.status not in (200, 201):
            raise MeasurementFailed(f"{method} {path}: {response.status} {content[:300]!r}")
        return content

    def request(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return json.loads(self.send(path, None if body is None else json.dumps(body).encode()))

    def get(self, path: str) -> Any:
        return json.loads(self.send(path))

    def create_experiment(self, name: str) -> str:
        """Create an experiment and return its id."""
        return self.request(f"{API}/experiments/create", {"name": name})["experiment_id"]

    def create_run(self, experiment: str) -> str:
        """Create a run and return its id."""
        body = {"experiment_id": experiment, "start_time": int(time.time() * 1000)}
        return self.request(f"{API}/runs/create", body)["run"]["info"]["run_id"]


def batch(run: str, number: int, size: int) -> bytes:
    """Return a batch of ten metrics; each number has its own steps."""
    rows = [
        {"key": f"m{i % 10}", "value": i * 0.5, "timestamp": 1_700_000_000_000 + i, "step": step}
        for i, step in enumerate(range(number * size, (number + 1) * size))
    ]
    return json.dumps({"run_id": run, "metrics": rows}).encode()


def single(run: str, number: int) -> bytes:
    point = {"key": "loss", "value": 0.5, "timestamp": 1_700_000_000_000 + number, "step": number}
    return json.dumps({"run_id": run, **point}).encode()


def latencies(
    send: Callable[[bytes], object], bodies: list[bytes], seconds: float = 60.0
) -> list[float]:
    """Send bodies for up to `seconds`, and return the milliseconds that each took."""
    latencies_ms: list[float] = []
    deadline = time.perf_counter() + seconds
    for body in bodies:
        if (start_time := time.perf_counter()) > deadline:
            break
        send(body)
        latencies_ms.append((time.perf_counter() - start_time) * 1000)
    return latencies_ms


def concurrent_rate(server: Server, clients: int, size: int, seconds: float) -> float:
    """Log with several processes at once, each to its own run; return the metrics per second.

    Size 1 sends single metrics, a larger size sends batches.
    """
    barrier = _fork.Barrier(clients)
    rates = _fork.SimpleQueue()
    work = _Work(server, size, seconds, barrier, rates)
    workers = [
        _fork.Process(target=work.run, args=(Client(server).create_run("0"),))
        for _ in range(clients)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise MeasurementFailed(f"one of {clients} clients failed")
    return sum(rates.get() for _ in workers)


@dataclass(frozen=True)
class _Work:
    server: Server
    size: int
    seconds: float
    barrier: Barrier
    rates: Any

    def run(self, run: str) -> None:
        client = Client(self.server)
        path, bodies = _bodies(run, self.size)
        client.send(path, next(bodies))  # opens the connection
        self.barrier.wait(60)
        start_time, sent = time.perf_counter(), 0
        while (duration := time.perf_counter() - start_time) < self.seconds:
            client.send(path, next(bodies))
            sent += self.size
        self.rates.put(sent / duration)


def _bodies(run: str, size: int) -> tuple[str, Iterator[bytes]]:
    if size == 1:
        return f"{API}/runs/log-metric", iter([single(run, n) for n in range(20_000)])
    return f"{API}/runs/log-batch", iter([batch(run, n, size) for n in range(1_000)])
