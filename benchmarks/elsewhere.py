"""Jobs that run somewhere else: over SSH, and in containers, beside the tools themselves."""

import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from benchmarks.frame import CACHE, CONSOLE, OURS, Bar, Refused, Row, take_turns
from benchmarks.ours import Retarget, running
from benchmarks.snapshots import large_folder
from benchmarks.starting import timed_command
from tests.testbeds.engines import IMAGE, Engine, docker_engine, engines_missing
from tests.testbeds.hosts import Host, hosts_missing, machines

_ROUNDS, _TIMES = 5, 6
_SSH, _DOCKER = "ssh, open master", "docker run"
_LOG = 50_000_000
_PRINT = f"""
import sys
line = (b"x" * 99 + b"\\n") * 10_000
for _ in range({_LOG} // len(line)):
    sys.stdout.buffer.write(line)
"""
_HERE = {"environment": {"kind": "user"}}  # what is there, is taken


def measure() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
        place = Path(temporary)
        with running(place / "home") as retarget:
            if missing := hosts_missing():
                CONSOLE.print(f"SSH is left out: {missing}", style="red")
            else:
                yield from _over_ssh(retarget, place)
            if missing := engines_missing("docker"):
                CONSOLE.print(f"containers are left out: {missing}", style="red")
            else:
                yield from _in_containers(retarget, place)


def _over_ssh(retarget: Retarget, place: Path) -> Iterator[Row]:
    (where := place / "lab").mkdir()
    with machines(1, where=where) as (host,), _master(host, place) as ssh:
        config = {"address": f"root@{host.address}", "key": host.key.read_text()}
        _attach(retarget, "far", "ssh", config)
        sides = {OURS: _first_line(retarget, "far"), _SSH: _timed([*ssh, "python3", "-c", "pass"])}
        rounds = _in_rounds(sides)
        yield Row("over SSH, submit to the first line at the client, p50", "ms", rounds)
        added = [ours - bare for ours, bare in zip(rounds[OURS], rounds[_SSH], strict=True)]
        yield Row("… added to a bare ssh", "ms", {OURS: added}, bar=Bar(150))
        found = take_turns({OURS: lambda: _throughput(retarget, "far"), "ssh cat": _cat(ssh)})
        yield Row("a log of 50 MB over SSH", "MB/s", found, more=True, bar=Bar(20))
        yield from _large(retarget)


def _large(retarget: Retarget) -> Iterator[Row]:
    folder = large_folder()

    def whole() -> tuple[float, float]:
        began = time.perf_counter()
        run = ("run", "--target", "far", "--detach", "--", "true")
        sent = timed_command(retarget, folder, *run)() / 1000
        (newest,) = retarget.client.get("/api/jobs?limit=1")
        retarget.wait(newest["name"])
        return sent, time.perf_counter() - began

    first = whole()
    again = [whole() for _ in range(5)]
    yield Row("1 GB over SSH, first: until the job has ended", "s", {OURS: [first[1]]})
    sent = [each for each, _ in again]
    yield Row("1 GB over SSH, again and unchanged: submit", "s", {OURS: sent}, bar=Bar(1))
    ended = [each for _, each in again]
    yield Row("1 GB over SSH, again: until the job has ended", "s", {OURS: ended})


def _in_containers(retarget: Retarget, place: Path) -> Iterator[Row]:
    (where := place / "docker").mkdir()
    with docker_engine(where) as engine:
        engine.load_image()
        _attach(retarget, "box", "container", {"engine": engine.url, "image": IMAGE})
        bare = _timed_run(engine)
        rounds = _in_rounds({OURS: _first_line(retarget, "box"), _DOCKER: bare})
        what = "in a container, submit to the first line at the client, p50"
        yield Row(what, "ms", rounds, bar=Bar(times=1 / 1.5, of=_DOCKER))


def _attach(retarget: Retarget, name: str, kind: str, config: dict[str, str]) -> None:
    retarget.client.ask("/api/targets", {"name": name, "kind": kind, "config": config})


def _in_rounds(sides: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    for once in sides.values():
        once()  # warm
    turns = {
        name: lambda once=once: [once() for _ in range(_TIMES)] for name, once in sides.items()
    }
    found = take_turns(turns, _ROUNDS)
    return {name: [median(each) for each in rounds] for name, rounds in found.items()}


def _first_line(retarget: Retarget, target: str) -> Callable[[], float]:
    def once() -> float:
        began = time.perf_counter()
        job = retarget.submit("python", "-c", "print('here')", target=target, **_HERE)
        connection = HTTPConnection(str(urlsplit(retarget.server.url).netloc), timeout=60)
        headers = {"Authorization": f"Bearer {retarget.server.token}"}
        connection.request("GET", f"/api/jobs/{job['name']}/logs?follow=true", headers=headers)
        line = connection.getresponse().readline()
        took = (time.perf_counter() - began) * 1000
        connection.close()
        if line != b"here\n":
            raise Refused(f"the first line was {line!r}")
        retarget.wait(job["name"])
        return took

    return once


def _throughput(retarget: Retarget, target: str) -> float:
    submitted = retarget.submit("python", "-c", _PRINT, target=target, **_HERE)
    job = retarget.wait(submitted["name"])
    return _LOG / 1e6 / (job["ended"] - job["started"])


def _cat(ssh: list[str]) -> Callable[[], float]:
    def once() -> float:
        began = time.perf_counter()
        command = [*ssh, "head", "-c", str(_LOG), "/dev/zero"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return _LOG / 1e6 / (time.perf_counter() - began)

    return once


@contextmanager
def _master(host: Host, place: Path) -> Generator[list[str], None, None]:
    """Open a connection that later commands go over."""
    known = place / "known_hosts"
    known.write_text(host.known_hosts)
    options = ["-i", str(host.key), "-o", f"UserKnownHostsFile={known}", "-o", "BatchMode=yes"]
    with tempfile.TemporaryDirectory() as short:
        ssh = ["ssh", *options, "-S", f"{short}/s", f"root@{host.address}"]
        subprocess.run([*ssh[:-1], "-M", "-N", "-f", ssh[-1]], check=True)
        try:
            yield ssh
        finally:
            subprocess.run([*ssh, "-O", "exit"], check=False, stderr=subprocess.DEVNULL)


def _timed(command: list[str]) -> Callable[[], float]:
    def once() -> float:
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return (time.perf_counter() - began) * 1000

    return once


def _timed_run(engine: Engine) -> Callable[[], float]:
    command = ["docker", "-H", engine.url, "run", "--rm", IMAGE, "python3", "-c", "print('here')"]
    return _timed(command)
