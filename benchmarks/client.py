"""A plain client for MLflow's API that costs little itself, alone or as several processes."""

import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from multiprocessing.synchronize import Barrier
from typing import Any
from urllib.parse import urlsplit

from benchmarks.frame import Refused, Server

API = "/api/2.0/mlflow"

_IDLE = 3.0  # seconds after which a connection is made anew
_fork = multiprocessing.get_context("fork")


class Client:
    """One connection that is kept alive."""

    def __init__(self, server: Server, timeout: float = 300) -> None:
        self._connection = HTTPConnection(str(urlsplit(server.url).netloc), timeout=timeout)
        self._used = time.monotonic()
        self._headers = {"Content-Type": "application/json"}
        if server.token:
            self._headers["Authorization"] = f"Bearer {server.token}"

    def send(self, path: str, body: bytes | None = None) -> bytes:
        """Post the body, or get if there is none."""
        method = "GET" if body is None else "POST"
        if time.monotonic() - self._used > _IDLE:
            self._connection.close()  # the server may have; the next request opens it again
        self._connection.request(method, path, body, self._headers)
        answer = self._connection.getresponse()
        content = answer.read()
        self._used = time.monotonic()
        if answer.status not in (200, 201):
            raise Refused(f"{method} {path}: {answer.status} {content[:300]!r}")
        return content

    def ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return json.loads(self.send(path, None if body is None else json.dumps(body).encode()))

    def get(self, path: str) -> Any:
        return json.loads(self.send(path))

    def experiment(self, name: str) -> str:
        """Make an experiment and return its id."""
        return self.ask(f"{API}/experiments/create", {"name": name})["experiment_id"]

    def run(self, experiment: str) -> str:
        """Make a run and return its id."""
        asked = {"experiment_id": experiment, "start_time": int(time.time() * 1000)}
        return self.ask(f"{API}/runs/create", asked)["run"]["info"]["run_id"]


def batch(run: str, number: int, size: int) -> bytes:
    """Return a batch of ten metrics; no other number has the same steps."""
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
    """Return the milliseconds that each took, of as many as could be sent in these seconds."""
    found: list[float] = []
    deadline = time.perf_counter() + seconds
    for body in bodies:
        if (began := time.perf_counter()) > deadline:
            break
        send(body)
        found.append((time.perf_counter() - began) * 1000)
    return found


def together(server: Server, clients: int, size: int, seconds: float) -> float:
    """Log with so many processes at once, each to a run of its own; return all metrics per second.

    Size 1 sends single metrics, more sends batches.
    """
    gate = _fork.Barrier(clients)
    rates = _fork.SimpleQueue()
    work = _Work(server, size, seconds, gate, rates)
    workers = [
        _fork.Process(target=work.do, args=(Client(server).run("0"),)) for _ in range(clients)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise Refused(f"a client of {clients} failed")
    return sum(rates.get() for _ in workers)


@dataclass(frozen=True)
class _Work:
    server: Server
    size: int
    seconds: float
    gate: Barrier
    rates: Any

    def do(self, run: str) -> None:
        client = Client(self.server)
        path, bodies = _prepared(run, self.size)
        client.send(path, next(bodies))  # the connection is made
        self.gate.wait(60)
        began, sent = time.perf_counter(), 0
        while (took := time.perf_counter() - began) < self.seconds:
            client.send(path, next(bodies))
            sent += self.size
        self.rates.put(sent / took)


def _prepared(run: str, size: int) -> tuple[str, Iterator[bytes]]:
    if size == 1:
        return f"{API}/runs/log-metric", iter([single(run, n) for n in range(20_000)])
    return f"{API}/runs/log-batch", iter([batch(run, n, size) for n in range(1_000)])
