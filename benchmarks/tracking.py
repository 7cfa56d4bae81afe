"""Compares tracking with a real MLflow server: logging, searching, histories, start time."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks import fill
from benchmarks.client import API, Client, batch, concurrent_rate, latencies, single
from benchmarks.harness import (
    CACHE,
    CONSOLE,
    RETARGET,
    ROOT,
    Goal,
    Row,
    Server,
    Start,
    digest,
    environment,
    free_port,
    measure_rounds,
    peer_process,
    run_server,
    temporary_folder,
    wait_until_stable,
)
from benchmarks.retarget_server import start_retarget

PEER = "MLflow"

_READY = f"{API}/experiments/get?experiment_id=0"
_BATCHES = 20
_SINGLES = 200
_CLIENTS = 8
_SECONDS = 2.0
_MAX_SEARCH_SECONDS = 10.0  # a slower search is not repeated
_SEARCHES: dict[str, dict[str, Any]] = {
    "newest 100": {},
    "metrics.acc > 0.9": {"filter": "metrics.acc > 0.9"},
    "params.lr = '0.1'": {"filter": "params.lr = '0.1'"},
    "tags.team = 'vision'": {"filter": "tags.team = 'vision'"},
    "tags.rare = 'yes' (20 runs)": {"filter": "tags.rare = 'yes'"},
    "all three filters, best first": {
        "filter": "metrics.acc > 0.9 AND params.lr = '0.1' AND tags.team = 'vision'",
        "order_by": ["metrics.acc DESC"],
    },
    # last, because MLflow keeps working on it long after the client has given up
    "best by metrics.acc": {"order_by": ["metrics.acc DESC"]},
}


def measure() -> Iterator[Row]:
    """Measure everything side by side. Databases and environments are kept for the next run."""
    kinds = (_Retarget(), _MLflow(environment("mlflow")))
    filled = {kind.name: _filled(kind) for kind in kinds}
    with temporary_folder() as folder:
        yield _starting(kinds, Path(folder))
        with ExitStack() as stack:
            sides: dict[str, Server] = {}
            for kind in kinds:
                copy = Path(folder) / kind.name
                shutil.copytree(filled[kind.name], copy)
                sides[kind.name] = stack.enter_context(run_server(kind.start(copy)))
            yield from _memory("idle", sides)
            yield from _logging(sides)
            yield from _through_mlflow(sides, kinds[1].python)
            yield from _at_once(sides)
            yield from _reading(sides)
            yield from _searching(sides)
            yield from _memory("after all measurements", sides)


@dataclass(frozen=True)
class _Retarget:
    name: str = RETARGET

    def start(self, folder: Path) -> Start:
        return start_retarget(folder, _READY)

    def fill(self, folder: Path, experiment: str) -> None:
        fill.fill_retarget(folder / "retarget.db", experiment)

    def sources(self) -> list[Path]:
        migrations = ROOT.parent / "src/retarget/store/migrations/versions"
        return [Path(fill.__file__), *sorted(migrations.glob("*.py"))]


@dataclass(frozen=True)
class _MLflow:
    python: Path
    name: str = PEER

    def start(self, folder: Path) -> Start:
        port = free_port()
        database = ("--backend-store-uri", f"sqlite:///{folder}/mlflow.db")
        artifacts = ("--artifacts-destination", str(folder / "artifacts"))
        listen = ("--host", "127.0.0.1", "--port", str(port))
        command = [str(self.python.parent / "mlflow"), "server", *database, *artifacts, *listen]
        path = f"{self.python.parent}:/usr/bin:/bin"
        return Start(self.name, command, port, _READY, folder, {"PATH": path})

    def fill(self, folder: Path, experiment: str) -> None:
        fill.fill_mlflow(folder / "mlflow.db", experiment)

    def sources(self) -> list[Path]:
        return [Path(fill.__file__), ROOT / "requirements/mlflow.txt"]


_Kind = _Retarget | _MLflow


def _filled(kind: _Kind) -> Path:
    """Return a folder with 100,000 runs in its database; create it if it does not exist."""
    folder = CACHE / "databases" / f"{kind.name}-{digest(*kind.sources())}"
    if folder.exists():
        return folder
    CONSOLE.print(f"filling a database for {kind.name}")
    partial = folder.with_suffix(".part")
    shutil.rmtree(partial, ignore_errors=True)
    with run_server(kind.start(partial)) as server:
        experiment = Client(server).create_experiment("many")
    kind.fill(partial, experiment)
    return partial.rename(folder)


def _starting(kinds: tuple[_Kind, ...], folder: Path) -> Row:
    def start(kind: _Kind, number: Iterator[int]) -> float:
        with run_server(kind.start(folder / f"{kind.name}-{next(number)}")) as server:
            return server.start_seconds

    sides = {kind.name: _bind(start, kind, iter(range(100))) for kind in kinds}
    return Row("start to ready, in an empty folder", "s", measure_rounds(sides))


def _memory(when: str, sides: dict[str, Server]) -> Iterator[Row]:
    for server in sides.values():
        wait_until_stable(server)
    for kind, goal in (("Rss", Goal(150)), ("Pss", Goal())):
        memory = {name: [server.memory(kind)] for name, server in sides.items()}
        yield Row(f"memory, {when} ({kind.upper()} of all processes)", "MB", memory, goal=goal)


def _logging(sides: dict[str, Server]) -> Iterator[Row]:
    def batches(server: Server) -> float:
        client = Client(server)
        run = client.create_run("0")
        bodies = [batch(run, number, 1000) for number in range(_BATCHES)]
        duration = latencies(
            lambda body: client.send(f"{API}/runs/log-batch", body), bodies, _SECONDS
        )
        return 1000 / (sum(duration) / len(duration)) * 1000

    def singles(server: Server) -> list[float]:
        client = Client(server)
        run = client.create_run("0")
        bodies = [single(run, number) for number in range(_SINGLES)]
        return latencies(lambda body: client.send(f"{API}/runs/log-metric", body), bodies, _SECONDS)

    rates = measure_rounds(_bind_each(batches, sides), 5)
    yield Row("metrics in batches of 1,000", "/s", rates, higher_is_better=True, goal=Goal(40_000))
    yield from _quantiles("one metric", measure_rounds(_bind_each(singles, sides), 5), Goal(3))


def _through_mlflow(sides: dict[str, Server], python: Path) -> Iterator[Row]:
    token = {"MLFLOW_TRACKING_TOKEN": sides[RETARGET].token}
    with (
        temporary_folder() as folder,
        peer_process(python, ROOT / "peers/mlflow_client.py", Path(folder), token) as send,
    ):
        runs = {name: Client(server).create_run("0") for name, server in sides.items()}
        firsts = iter(range(0, 1_000_000, _SINGLES))

        def singles(server: Server, *, fluent: bool) -> list[float]:
            request = {"url": server.url, "run": runs[server.name], "calls": _SINGLES}
            return send({**request, "first": next(firsts), "fluent": fluent})

        latencies_ms = measure_rounds(
            _bind_each(lambda server: singles(server, fluent=False), sides)
        )
        yield from _quantiles("one metric, MlflowClient.log_metric", latencies_ms, Goal(3))


def _at_once(sides: dict[str, Server]) -> Iterator[Row]:
    for size, content in ((1, "single metrics"), (100, "batches of 100")):

        def clients(server: Server, size: int = size) -> float:
            return concurrent_rate(server, _CLIENTS, size, _SECONDS)

        rates = measure_rounds(_bind_each(clients, sides))
        name = f"{_CLIENTS} clients at once, {content}"
        yield Row(name, "/s", rates, higher_is_better=True, goal=Goal(ratio=4, peer=PEER))


def _searching(sides: dict[str, Server]) -> Iterator[Row]:
    for title, query in _SEARCHES.items():

        def search(server: Server, query: dict[str, Any] = query) -> float:
            client = Client(server, timeout=60)
            experiment = client.request(f"{API}/experiments/get-by-name?experiment_name=many")
            experiment_id = experiment["experiment"]["experiment_id"]
            page = {"experiment_ids": [experiment_id], "max_results": 100}
            body = json.dumps({**page, **query}).encode()
            [duration] = latencies(lambda body: client.send(f"{API}/runs/search", body), [body])
            return duration

        name = f"search 100 of 100,000 runs: {title}"
        yield Row(
            name,
            "ms",
            measure_rounds(_bind_each(search, sides), max_seconds=_MAX_SEARCH_SECONDS),
            goal=Goal(50),
        )


def _reading(sides: dict[str, Server]) -> Iterator[Row]:
    query = f"run_ids={fill.HISTORY}&metric_key=loss&max_results=320"
    path = f"/ajax-api/2.0/mlflow/metrics/get-history-bulk-interval?{query}"

    def read(server: Server) -> float:
        client = Client(server)
        [duration] = latencies(lambda _: client.send(path), [b""])
        return duration

    latencies_ms = measure_rounds(_bind_each(read, sides), max_seconds=_MAX_SEARCH_SECONDS)
    yield Row("a history of 1,000,000 points, for a plot", "ms", latencies_ms, goal=Goal(300))


def _bind_each(
    measure_side: Callable[[Server], Any], sides: dict[str, Server]
) -> dict[str, Callable[[], Any]]:
    return {name: _bind(measure_side, server) for name, server in sides.items()}


def _bind(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    return lambda: function(*arguments)


def _quantiles(name: str, results: dict[str, list[list[float]]], goal: Goal) -> Iterator[Row]:
    medians = {side: [median(times) for times in rounds] for side, rounds in results.items()}
    yield Row(f"{name}, p50", "ms", medians, goal=goal)
    p95s = {
        side: [quantiles(times, n=20)[-1] for times in rounds] for side, rounds in results.items()
    }
    yield Row(f"{name}, p95", "ms", p95s)
