"""Tracking beside a real MLflow server: logging, searching, reading histories, starting."""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks import fill
from benchmarks.client import API, Client, batch, latencies, single, together
from benchmarks.frame import (
    CACHE,
    CONSOLE,
    OURS,
    ROOT,
    Bar,
    Row,
    Server,
    Start,
    digest,
    environment,
    free_port,
    ordering,
    serving,
    settle,
    take_turns,
)
from benchmarks.ours import start_retarget

PEER = "MLflow"

_READY = f"{API}/experiments/get?experiment_id=0"
_BATCHES = 20
_SINGLES = 200
_CLIENTS = 8
_SECONDS = 2.0
_LONGEST = 10.0  # a search that takes longer is not asked for again
_SEARCHES: dict[str, dict[str, Any]] = {
    "newest 100": {},
    "metrics.acc > 0.9": {"filter": "metrics.acc > 0.9"},
    "params.lr = '0.1'": {"filter": "params.lr = '0.1'"},
    "tags.team = 'vision'": {"filter": "tags.team = 'vision'"},
    "tags.rare = 'yes' (20 runs)": {"filter": "tags.rare = 'yes'"},
    "all of these, the best first": {
        "filter": "metrics.acc > 0.9 AND params.lr = '0.1' AND tags.team = 'vision'",
        "order_by": ["metrics.acc DESC"],
    },
    # the last one: MLflow is at it long after nobody waits any more
    "the best by metrics.acc": {"order_by": ["metrics.acc DESC"]},
}


def measure() -> Iterator[Row]:
    """Measure everything, side by side. Databases and environments are kept for the next time."""
    kinds = (_Retarget(), _MLflow(environment("mlflow")))
    filled = {kind.name: _filled(kind) for kind in kinds}
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        yield _starting(kinds, Path(folder))
        with ExitStack() as stack:
            sides: dict[str, Server] = {}
            for kind in kinds:
                place = Path(folder) / kind.name
                shutil.copytree(filled[kind.name], place)
                sides[kind.name] = stack.enter_context(serving(kind.start(place)))
            yield from _memory("idle", sides)
            yield from _logging(sides)
            yield from _through_mlflow(sides, kinds[1].python)
            yield from _at_once(sides)
            yield from _reading(sides)
            yield from _searching(sides)
            yield from _memory("after all this", sides)


@dataclass(frozen=True)
class _Retarget:
    name: str = OURS

    def start(self, folder: Path) -> Start:
        return start_retarget(folder, _READY)

    def fill(self, folder: Path, experiment: str) -> None:
        fill.fill_retarget(folder / "retarget.db", experiment)

    def made_of(self) -> list[Path]:
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
        where = ("--host", "127.0.0.1", "--port", str(port))
        command = [str(self.python.parent / "mlflow"), "server", *database, *artifacts, *where]
        path = f"{self.python.parent}:/usr/bin:/bin"
        return Start(self.name, command, port, _READY, folder, {"PATH": path})

    def fill(self, folder: Path, experiment: str) -> None:
        fill.fill_mlflow(folder / "mlflow.db", experiment)

    def made_of(self) -> list[Path]:
        return [Path(fill.__file__), ROOT / "requirements/mlflow.txt"]


_Kind = _Retarget | _MLflow


def _filled(kind: _Kind) -> Path:
    """Return a folder with 100,000 runs in its database, made if it is not there."""
    folder = CACHE / "databases" / f"{kind.name}-{digest(*kind.made_of())}"
    if folder.exists():
        return folder
    CONSOLE.print(f"filling a database for {kind.name}")
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    with serving(kind.start(part)) as server:
        experiment = Client(server).experiment("many")
    kind.fill(part, experiment)
    return part.rename(folder)


def _starting(kinds: tuple[_Kind, ...], folder: Path) -> Row:
    def start(kind: _Kind, number: Iterator[int]) -> float:
        with serving(kind.start(folder / f"{kind.name}-{next(number)}")) as server:
            return server.started

    turns = {kind.name: _bound(start, kind, iter(range(100))) for kind in kinds}
    return Row("start to ready, with nothing there yet", "s", take_turns(turns))


def _memory(when: str, sides: dict[str, Server]) -> Iterator[Row]:
    for server in sides.values():
        settle(server)
    for kind, bar in (("Rss", Bar(150)), ("Pss", Bar())):
        found = {name: [server.memory(kind)] for name, server in sides.items()}
        yield Row(f"memory, {when} ({kind.upper()} of all processes)", "MB", found, bar=bar)


def _logging(sides: dict[str, Server]) -> Iterator[Row]:
    def batches(server: Server) -> float:
        client = Client(server)
        run = client.run("0")
        bodies = [batch(run, number, 1000) for number in range(_BATCHES)]
        took = latencies(lambda body: client.send(f"{API}/runs/log-batch", body), bodies, _SECONDS)
        return 1000 / (sum(took) / len(took)) * 1000

    def singles(server: Server) -> list[float]:
        client = Client(server)
        run = client.run("0")
        bodies = [single(run, number) for number in range(_SINGLES)]
        return latencies(lambda body: client.send(f"{API}/runs/log-metric", body), bodies, _SECONDS)

    found = take_turns(_each(batches, sides), 5)
    yield Row("metrics in batches of 1,000", "/s", found, more=True, bar=Bar(40_000))
    yield from _quantiles("one metric", take_turns(_each(singles, sides), 5), Bar(3))


def _through_mlflow(sides: dict[str, Server], python: Path) -> Iterator[Row]:
    token = {"MLFLOW_TRACKING_TOKEN": sides[OURS].token}
    with (
        tempfile.TemporaryDirectory(dir=CACHE) as folder,
        ordering(python, ROOT / "peers/mlflow_client.py", Path(folder), token) as order,
    ):
        runs = {name: Client(server).run("0") for name, server in sides.items()}
        firsts = iter(range(0, 1_000_000, _SINGLES))

        def singles(server: Server, *, fluent: bool) -> list[float]:
            asked = {"url": server.url, "run": runs[server.name], "calls": _SINGLES}
            return order({**asked, "first": next(firsts), "fluent": fluent})

        found = take_turns(_each(lambda server: singles(server, fluent=False), sides))
        yield from _quantiles("one metric, MlflowClient.log_metric", found, Bar(3))


def _at_once(sides: dict[str, Server]) -> Iterator[Row]:
    for size, what in ((1, "single metrics"), (100, "batches of 100")):

        def clients(server: Server, size: int = size) -> float:
            return together(server, _CLIENTS, size, _SECONDS)

        found = take_turns(_each(clients, sides))
        name = f"{_CLIENTS} clients at once, {what}"
        yield Row(name, "/s", found, more=True, bar=Bar(times=4, of=PEER))


def _searching(sides: dict[str, Server]) -> Iterator[Row]:
    for what, asked in _SEARCHES.items():

        def search(server: Server, asked: dict[str, Any] = asked) -> float:
            client = Client(server, timeout=60)
            many = client.ask(f"{API}/experiments/get-by-name?experiment_name=many")
            wanted = {"experiment_ids": [many["experiment"]["experiment_id"]], "max_results": 100}
            body = json.dumps({**wanted, **asked}).encode()
            [took] = latencies(lambda body: client.send(f"{API}/runs/search", body), [body])
            return took

        name = f"search 100 of 100,000 runs: {what}"
        yield Row(name, "ms", take_turns(_each(search, sides), longest=_LONGEST), bar=Bar(50))


def _reading(sides: dict[str, Server]) -> Iterator[Row]:
    asked = f"run_ids={fill.HISTORY}&metric_key=loss&max_results=320"
    path = f"/ajax-api/2.0/mlflow/metrics/get-history-bulk-interval?{asked}"

    def read(server: Server) -> float:
        client = Client(server)
        [took] = latencies(lambda _: client.send(path), [b""])
        return took

    found = take_turns(_each(read, sides), longest=_LONGEST)
    yield Row("a history of 1,000,000 points, for a plot", "ms", found, bar=Bar(300))


def _each(ask: Callable[[Server], Any], sides: dict[str, Server]) -> dict[str, Callable[[], Any]]:
    return {name: _bound(ask, server) for name, server in sides.items()}


def _bound(ask: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    return lambda: ask(*arguments)


def _quantiles(what: str, found: dict[str, list[list[float]]], bar: Bar) -> Iterator[Row]:
    halves = {name: [median(each) for each in rounds] for name, rounds in found.items()}
    yield Row(f"{what}, p50", "ms", halves, bar=bar)
    highs = {name: [quantiles(each, n=20)[-1] for each in rounds] for name, rounds in found.items()}
    yield Row(f"{what}, p95", "ms", highs)
