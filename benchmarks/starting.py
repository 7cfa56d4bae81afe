"""Measures the time until a script starts, compared with a bare process and other tools."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from datetime import datetime
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.harness import (
    CONSOLE,
    RETARGET,
    ROOT,
    Goal,
    MeasurementFailed,
    Row,
    environment,
    free_port,
    measure_rounds,
    peer_process,
    temporary_folder,
)
from benchmarks.retarget_server import Retarget, run_retarget

BARE = "a bare process"
_ROUNDS = 5
_CALLS_PER_ROUND = 10
_SLOW_CALLS_PER_ROUND = 3  # for tools that take seconds
_SCRIPT = """
import sys, time
now = time.monotonic_ns()
with open(sys.argv[1] + ".part", "w") as file:
    file.write(f"{now}\\n")
import os
os.rename(sys.argv[1] + ".part", sys.argv[1])
"""
_PROJECT = """
name: bench
entry_points:
  main:
    parameters: {out: string}
    command: "python script.py {out}"
"""


def measure() -> Iterator[Row]:
    with temporary_folder() as temporary:
        folder = Path(temporary)
        code = folder / "code"
        code.mkdir()
        (code / "script.py").write_text(_SCRIPT)
        (code / "MLproject").write_text(_PROJECT)
        with run_retarget(folder / "home") as retarget:
            yield from _first_lines(retarget, code, folder)
            yield from _stages(retarget)
            yield from _commands(retarget, folder)
            yield _environments(retarget)


def _first_lines(retarget: Retarget, code: Path, folder: Path) -> Iterator[Row]:
    numbers = count()
    script = code / "script.py"

    def new_path() -> Path:
        return folder / f"out-{next(numbers)}"

    def first_line() -> float:
        out = new_path()
        start_time = time.monotonic_ns()
        job = retarget.submit("python", "script.py", str(out), snapshot=snapshot)
        while not out.exists():
            time.sleep(0.002)
        duration = (int(out.read_text()) - start_time) / 1e6
        retarget.wait(job["name"])
        return duration

    snapshot = _snapshot(retarget, code)
    with ExitStack() as stack:
        sides: dict[str, Callable[[], float]] = {RETARGET: first_line}
        for name, start in _PEERS.items():
            peer_folder = folder / f"peer-{len(sides)}"
            peer_folder.mkdir()
            try:
                send = stack.enter_context(start(peer_folder))
            except (MeasurementFailed, OSError, subprocess.CalledProcessError) as error:
                CONSOLE.print(f"skipped {name}: {error}", style="red", markup=False)
                continue
            sides[name] = lambda send=send: send({"script": str(script), "out": str(new_path())})
        for run in sides.values():
            run()  # warm up
        repeated = {name: _repeat(name, run) for name, run in sides.items()}
        results = measure_rounds(repeated, _ROUNDS)
    medians = {name: [median(times) for times in rounds] for name, rounds in results.items()}
    p95s = {
        name: [quantiles(times, n=20, method="inclusive")[-1] for times in rounds]
        for name, rounds in results.items()
    }
    name = "submit to the first line of the script"
    yield Row(f"{name}, p50", "ms", medians, goal=Goal(100, ratio=1 / 8, peer=BARE))
    yield Row(f"{name}, p95", "ms", p95s)


def _stages(retarget: Retarget) -> Iterator[Row]:
    """Measure when each stage before the first line is reached, like `job show --timing`."""
    stages = {
        "created_at": "it has been placed on its target",
        "preparing_at": "its runner has started work",
        "starting_at": "code and environment are ready",
        "started_at": "the script's process has been started",
    }
    code = "import time; open('outputs/now', 'w').write(str(time.time()))"
    reached: dict[str, list[float]] = {}
    for _ in range(_ROUNDS * _CALLS_PER_ROUND):
        start_time = time.time()
        job = retarget.wait(retarget.submit("python", "-c", code)["name"])
        (attempt,) = job["attempts"]
        line = float(retarget.client.send(f"/api/jobs/{job['name']}/outputs/outputs/now"))
        times = {"the server has received it": _to_epoch(job["created_at"])}
        times |= {stage: _to_epoch(attempt[field]) for field, stage in stages.items()}
        times["its first line"] = line
        for stage, reached_at in times.items():
            reached.setdefault(stage, []).append((reached_at - start_time) * 1000)
    for stage, milliseconds in reached.items():
        yield Row(f"submit until … {stage}", "ms", {RETARGET: milliseconds})


def _to_epoch(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()


def _repeat(name: str, run: Callable[[], float]) -> Callable[[], list[float]]:
    calls = _CALLS_PER_ROUND if name in (RETARGET, BARE) else _SLOW_CALLS_PER_ROUND
    return lambda: [run() for _ in range(calls)]


def _snapshot(retarget: Retarget, code: Path) -> str:
    """Send the code, as a client does, and return its digest."""
    command = ["run", "--name", "warm", "script.py", "--", str(code / "out")]
    _retarget(retarget, *command, cwd=code)
    return str(retarget.client.request("/api/jobs/warm")["snapshot"])


def _commands(retarget: Retarget, folder: Path) -> Iterator[Row]:
    hello = folder / "hello"
    hello.mkdir()
    (hello / "hello.py").write_text("print('hello')\n")

    for name, goal, arguments in (
        ("`retarget run hello.py`, the whole command", 600, ("run", "hello.py")),
        ("`retarget --help`", 200, ("--help",)),
        ("`retarget job list`", None, ("job", "list")),
    ):
        run = time_command(retarget, hello, *arguments)
        run()
        yield Row(name, "ms", measure_rounds({RETARGET: run}, 10), goal=Goal(goal))


def time_command(retarget: Retarget, cwd: Path, *arguments: str) -> Callable[[], float]:
    """Return a function that runs a `retarget` command and returns the milliseconds it took."""

    def run() -> float:
        start_time = time.perf_counter()
        _retarget(retarget, *arguments, cwd=cwd)
        return (time.perf_counter() - start_time) * 1000

    return run


def _environments(retarget: Retarget) -> Row:
    """Compare a job in an environment that is already built with one in a plain interpreter."""

    def run_job(**options: object) -> float:
        start_time = time.perf_counter()
        retarget.wait(retarget.submit("python", "-c", "pass", **options)["name"])
        return (time.perf_counter() - start_time) * 1000

    built = {"environment": {"kind": "system", "pip": ["six==1.17.0"]}}
    run_job(**built)
    sides = {"plain": run_job, "built": lambda: run_job(**built)}
    results = measure_rounds(sides, 15)
    extra = [median(results["built"]) - median(results["plain"])]
    return Row(
        "extra time of a job in an existing environment", "ms", {RETARGET: extra}, goal=Goal(30)
    )


def _retarget(retarget: Retarget, *arguments: str, cwd: Path) -> None:
    command = [str(Path(sys.executable).parent / "retarget"), *arguments]
    environ = {**os.environ, **retarget.variables()}
    result = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, check=False)
    if result.returncode:
        raise MeasurementFailed(f"{' '.join(arguments)}: {result.stderr.decode()[-500:]}")


Send = Callable[[Mapping[str, Any]], Any]
Peer = Callable[[Path], AbstractContextManager[Send]]


def _peer(script: str, python: Callable[[], Path], **variables: Callable[[], str]) -> Peer:
    def start(folder: Path) -> AbstractContextManager[Send]:
        environ = {name: make() for name, make in variables.items()}
        return peer_process(python(), ROOT / "peers" / script, folder, environ)

    return start


def _installed(name: str) -> Callable[[], Path]:
    return lambda: environment(name)


def _slurm() -> Path:
    if shutil.which("sbatch") is None:
        raise MeasurementFailed("Slurm is not installed")
    return Path(sys.executable)


_PEERS = {
    BARE: _peer("popen.py", lambda: Path(sys.executable)),
    "submitit": _peer("submitit_job.py", _installed("submitit")),
    "MLflow run": _peer("mlflow_run.py", _installed("mlflow")),
    "Ray": _peer(
        "ray_job.py",
        _installed("ray"),
        BENCH_PORT=lambda: str(free_port()),
        BENCH_DASHBOARD=lambda: str(free_port()),
    ),
    "Metaflow": _peer("metaflow_run.py", _installed("metaflow")),
    "Slurm": _peer("slurm_job.py", _slurm),
}
