"""Measures what waits and what listens: many queued jobs, many streams, and a target that hangs."""

import socket
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.harness import RETARGET, Goal, Row, Server, run_server, temporary_folder
from benchmarks.retarget_server import Retarget, find_retarget, start_retarget

_MEASURED_SECONDS = 60.0
_SETTLING_SECONDS = 20.0
_WAITING_JOBS = 10_000
_BATCH = 1000
_STREAMS = 200
_HANGING_ATTEMPTS = 40
_JOBS = 20
_ALONE = "without them"
# a target on which each call lasts as long as a host that does not answer
_HANGING_KIND = '''
"""A target that hangs."""

import time

from pydantic import BaseModel

from retarget.core.driver import Observation, Phase
from retarget.core.errors import TargetUnreachable
from retarget.core.targets import Inventory, Node


class Driver:
    class Config(BaseModel):
        pass

    def __init__(self, config, *more):
        self.config = config

    def check(self):
        return Inventory(nodes=(Node(name="far", cpus=1000, memory=2**40),))

    def plan(self, launch):
        return {}

    def launch(self, launch):
        self._hang()

    def poll(self, handles):
        self._hang()

    def cancel(self, handle):
        self._hang()

    def forget(self, handle):
        self._hang()

    def diagnose(self, handle):
        return ""

    def _hang(self):
        time.sleep(12)
        raise TargetUnreachable("far does not answer")
'''


def measure() -> Iterator[Row]:
    with temporary_folder() as temporary:
        folder = Path(temporary)
        with _serving(folder / "waiting") as retarget:
            alone = _idle_cores(retarget.server)
            _queue(retarget)
            time.sleep(_SETTLING_SECONDS)
            waiting = _idle_cores(retarget.server)
        yield _cores(f"{_WAITING_JOBS:,} waiting jobs, while nothing happens", waiting, alone)
        with _serving(folder / "streams") as retarget, _streams(retarget.server):
            time.sleep(_SETTLING_SECONDS)
            listening = _idle_cores(retarget.server)
        yield _cores(f"{_STREAMS} event streams, while nothing happens", listening, alone)
        yield _delay(folder)


def _cores(name: str, used: float, alone: float) -> Row:
    return Row(name, "% of a core", {RETARGET: [used], "neither": [alone]}, goal=Goal(0.5))


def _delay(folder: Path) -> Row:
    """Measure a healthy target alone, and beside one on which attempts hang."""
    with _serving(folder / "hanging", _install(folder)) as retarget:
        retarget.client.request("/api/targets", {"name": "far", "kind": "hanging", "config": {}})
        _launch_ms(retarget)
        alone = [_launch_ms(retarget) for _ in range(_JOBS)]
        retarget.submit_all(_HANGING_ATTEMPTS, "true", target="far", cpus=1)
        time.sleep(1.0)
        beside = [_launch_ms(retarget) for _ in range(_JOBS)]
    name = f"submit to start of a job, while {_HANGING_ATTEMPTS} attempts hang on another target"
    return Row(name, "ms", {RETARGET: beside, _ALONE: alone})


def _launch_ms(retarget: Retarget) -> float:
    """Return the time from submit until the job has ended: `true` takes a constant part of it."""
    start_time = time.perf_counter()
    retarget.wait(retarget.submit("true")["name"])
    return (time.perf_counter() - start_time) * 1000


def _queue(retarget: Retarget) -> None:
    nodes = retarget.client.request("/api/targets/local/check", {})["inventory"]["nodes"]
    cpus = nodes[0]["cpus"]
    retarget.submit("sleep", "3600", cpus=cpus)
    for _ in range(_WAITING_JOBS // _BATCH):
        retarget.submit_all(_BATCH, "true", cpus=cpus)


def _idle_cores(server: Server) -> float:
    """Return the CPU time of a server over a minute, in percent of one core."""
    before = server.cpu_seconds()
    time.sleep(_MEASURED_SECONDS)
    return (server.cpu_seconds() - before) / _MEASURED_SECONDS * 100


@contextmanager
def _streams(server: Server) -> Generator[None, None, None]:
    address = urlsplit(server.url)
    request = f"GET /api/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.token}\r\n\r\n"
    with ExitStack() as connections:
        for _ in range(_STREAMS):
            connection = socket.create_connection((address.hostname or "", address.port or 0))
            connections.enter_context(connection)
            connection.sendall(request.encode())
            connection.recv(1024)
        yield


@contextmanager
def _serving(home: Path, plugins: str = "") -> Generator[Retarget, None, None]:
    start = start_retarget(home)
    if plugins:
        start = replace(start, variables={**start.variables, "PYTHONPATH": plugins})
    with run_server(start) as server:
        yield find_retarget(server, home)


def _install(folder: Path) -> str:
    """Install the kind as a plug-in, and return the folder for PYTHONPATH."""
    info = folder / "plugins/hanging-1.dist-info"
    info.mkdir(parents=True)
    (info.parent / "hanging_kind.py").write_text(_HANGING_KIND.lstrip())
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hanging\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[retarget.drivers]\nhanging = hanging_kind:Driver\n")
    return str(info.parent)
