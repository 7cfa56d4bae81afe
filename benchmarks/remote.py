"""Measures jobs over SSH and in containers, compared with plain ssh and docker."""

import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from benchmarks.harness import (
    CONSOLE,
    RETARGET,
    Goal,
    MeasurementFailed,
    Row,
    measure_rounds,
    temporary_folder,
)
from benchmarks.retarget_server import Retarget, run_retarget, seconds_between
from benchmarks.snapshots import large_folder
from benchmarks.starting import time_command
from tests.testbeds.engines import IMAGE, Engine, docker_engine, missing_for_engines
from tests.testbeds.hosts import SshHost, missing_for_ssh_hosts, start_ssh_hosts

_ROUNDS, _CALLS_PER_ROUND = 5, 6
_SSH, _DOCKER = "ssh, open master", "docker run"
_LOG_BYTES = 50_000_000
_PRINT = f"""
import sys
line = (b"x" * 99 + b"\\n") * 10_000
for _ in range({_LOG_BYTES} // len(line)):
    sys.stdout.buffer.write(line)
"""
_TARGET_PYTHON = {"environment": {"kind": "user"}}


def measure() -> Iterator[Row]:
    with temporary_folder() as temporary:
        folder = Path(temporary)
        with run_retarget(folder / "home") as retarget:
            if missing := missing_for_ssh_hosts():
                CONSOLE.print(f"skipped SSH: {missing}", style="red")
            else:
                yield from _over_ssh(retarget, folder)
            if missing := missing_for_engines("docker"):
                CONSOLE.print(f"skipped containers: {missing}", style="red")
            else:
                yield from _in_containers(retarget, folder)


def _over_ssh(retarget: Retarget, folder: Path) -> Iterator[Row]:
    (hosts_folder := folder / "lab").mkdir()
    with start_ssh_hosts(1, folder=hosts_folder) as (host,), _master(host, folder) as ssh:
        config = {"address": f"root@{host.address}", "key": host.key.read_text()}
        _attach(retarget, "far", "ssh", config)
        sides = {
            RETARGET: _first_line(retarget, "far"),
            _SSH: _timed([*ssh, "python3", "-c", "pass"]),
        }
        rounds = _in_rounds(sides)
        yield Row("over SSH, submit to the first line at the client, p50", "ms", rounds)
        extra = [job - bare for job, bare in zip(rounds[RETARGET], rounds[_SSH], strict=True)]
        yield Row("… extra time over plain ssh", "ms", {RETARGET: extra}, goal=Goal(150))
        rates = measure_rounds(
            {RETARGET: lambda: _throughput(retarget, "far"), "ssh cat": _cat(ssh)}
        )
        yield Row("a log of 50 MB over SSH", "MB/s", rates, higher_is_better=True, goal=Goal(20))
        yield from _large(retarget)


def _large(retarget: Retarget) -> Iterator[Row]:
    folder = large_folder()

    def submit() -> tuple[float, float]:
        start_time = time.perf_counter()
        command = ("run", "--target", "far", "--detach", "--", "true")
        submit_seconds = time_command(retarget, folder, *command)() / 1000
        (newest,) = retarget.client.get("/api/jobs?limit=1")
        retarget.wait(newest["name"])
        return submit_seconds, time.perf_counter() - start_time

    first = submit()
    again = [submit() for _ in range(5)]
    yield Row("1 GB over SSH, first time: until the job has ended", "s", {RETARGET: [first[1]]})
    submit_times = [submit_seconds for submit_seconds, _ in again]
    yield Row(
        "1 GB over SSH, second time, unchanged: submit", "s", {RETARGET: submit_times}, goal=Goal(1)
    )
    end_times = [end_seconds for _, end_seconds in again]
    yield Row("1 GB over SSH, second time: until the job has ended", "s", {RETARGET: end_times})


def _in_containers(retarget: Retarget, folder: Path) -> Iterator[Row]:
    (engine_folder := folder / "docker").mkdir()
    with docker_engine(engine_folder) as engine:
        engine.load_image()
        _attach(retarget, "box", "container", {"engine": engine.url, "image": IMAGE})
        bare = _timed_run(engine)
        rounds = _in_rounds({RETARGET: _first_line(retarget, "box"), _DOCKER: bare})
        name = "in a container, submit to the first line at the client, p50"
        yield Row(name, "ms", rounds, goal=Goal(ratio=1 / 1.5, peer=_DOCKER))


def _attach(retarget: Retarget, name: str, kind: str, config: dict[str, str]) -> None:
    retarget.client.request("/api/targets", {"name": name, "kind": kind, "config": config})


def _in_rounds(sides: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    for run in sides.values():
        run()  # warm up
    repeated = {name: _repeat(run) for name, run in sides.items()}
    results = measure_rounds(repeated, _ROUNDS)
    return {name: [median(times) for times in rounds] for name, rounds in results.items()}


def _repeat(run: Callable[[], float]) -> Callable[[], list[float]]:
    return lambda: [run() for _ in range(_CALLS_PER_ROUND)]


def _first_line(retarget: Retarget, target: str) -> Callable[[], float]:
    def run() -> float:
        start_time = time.perf_counter()
        job = retarget.submit("python", "-c", "print('hello')", target=target, **_TARGET_PYTHON)
        connection = HTTPConnection(str(urlsplit(retarget.server.url).netloc), timeout=60)
        headers = {"Authorization": f"Bearer {retarget.server.token}"}
        connection.request("GET", f"/api/jobs/{job['name']}/logs?follow=true", headers=headers)
        line = connection.getresponse().readline()
        duration = (time.perf_counter() - start_time) * 1000
        connection.close()
        if line != b"hello\n":
            raise MeasurementFailed(f"the first line was {line!r}")
        retarget.wait(job["name"])
        return duration

    return run


def _throughput(retarget: Retarget, target: str) -> float:
    submitted = retarget.submit("python", "-c", _PRINT, target=target, **_TARGET_PYTHON)
    job = retarget.wait(submitted["name"])
    return _LOG_BYTES / 1e6 / seconds_between(job["started_at"], job["ended_at"])


def _cat(ssh: list[str]) -> Callable[[], float]:
    def run() -> float:
        start_time = time.perf_counter()
        command = [*ssh, "head", "-c", str(_LOG_BYTES), "/dev/zero"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return _LOG_BYTES / 1e6 / (time.perf_counter() - start_time)

    return run


@contextmanager
def _master(host: SshHost, folder: Path) -> Generator[list[str], None, None]:
    """Open a master connection for later commands."""
    known_hosts = folder / "known_hosts"
    known_hosts.write_text(host.known_hosts)
    options = [
        "-i",
        str(host.key),
        "-o",
        f"UserKnownHostsFile={known_hosts}",
        "-o",
        "BatchMode=yes",
    ]
    with tempfile.TemporaryDirectory() as short:
        ssh = ["ssh", *options, "-S", f"{short}/s", f"root@{host.address}"]
        subprocess.run([*ssh[:-1], "-M", "-N", "-f", ssh[-1]], check=True)
        try:
            yield ssh
        finally:
            subprocess.run([*ssh, "-O", "exit"], check=False, stderr=subprocess.DEVNULL)


def _timed(command: list[str]) -> Callable[[], float]:
    def run() -> float:
        start_time = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return (time.perf_counter() - start_time) * 1000

    return run


def _timed_run(engine: Engine) -> Callable[[], float]:
    command = ["docker", "-H", engine.url, "run", "--rm", IMAGE, "python3", "-c", "print('hello')"]
    return _timed(command)
