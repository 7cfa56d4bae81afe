"""How long a script waits to be run: beside a bare process, and the peers that run scripts."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.frame import (
    CACHE,
    CONSOLE,
    OURS,
    ROOT,
    Bar,
    Refused,
    Row,
    environment,
    free_port,
    ordering,
    take_turns,
)
from benchmarks.ours import Retarget, running

BARE = "a bare process"
_ROUNDS = 5
_TIMES = 10  # in a round
_SLOW = 3  # times in a round, for what takes seconds
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
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        place = Path(folder)
        code = place / "code"
        code.mkdir()
        (code / "script.py").write_text(_SCRIPT)
        (code / "MLproject").write_text(_PROJECT)
        with running(place / "home") as retarget:
            yield from _first_lines(retarget, code, place)
            yield from _stages(retarget)
            yield from _commands(retarget, place)
            yield _environments(retarget)


def _first_lines(retarget: Retarget, code: Path, place: Path) -> Iterator[Row]:
    numbers = count()
    script = code / "script.py"

    def fresh() -> Path:
        return place / f"out-{next(numbers)}"

    def ours() -> float:
        out = fresh()
        began = time.monotonic_ns()
        job = retarget.submit("python", "script.py", str(out), snapshot=snapshot)
        while not out.exists():
            time.sleep(0.002)
        took = (int(out.read_text()) - began) / 1e6
        retarget.wait(job["name"])
        return took

    snapshot = _snapshot(retarget, code)
    with ExitStack() as stack:
        sides: dict[str, Callable[[], float]] = {OURS: ours}
        for name, start in _PEERS.items():
            folder = place / f"peer-{len(sides)}"
            folder.mkdir()
            try:
                order = stack.enter_context(start(folder))
            except (Refused, OSError, subprocess.CalledProcessError) as error:
                CONSOLE.print(f"{name} is left out: {error}", style="red", markup=False)
                continue
            sides[name] = lambda order=order: order({"script": str(script), "out": str(fresh())})
        for once in sides.values():
            once()  # warm
        found = take_turns({name: _several(name, once) for name, once in sides.items()}, _ROUNDS)
    halves = {name: [median(each) for each in rounds] for name, rounds in found.items()}
    highs = {
        name: [quantiles(each, n=20, method="inclusive")[-1] for each in rounds]
        for name, rounds in found.items()
    }
    what = "submit to the first line of the script"
    yield Row(f"{what}, p50", "ms", halves, bar=Bar(100, times=1 / 8, of=BARE))
    yield Row(f"{what}, p95", "ms", highs)


def _stages(retarget: Retarget) -> Iterator[Row]:
    """Tell when each stage before the first line was reached, as `job show --timing` does."""
    stages = {
        "created": "placed on its target",
        "preparing": "its runner has begun",
        "starting": "code and environment are ready",
        "started": "the script's process is there",
    }
    code = "import time; open('outputs/now', 'w').write(str(time.time()))"
    reached: dict[str, list[float]] = {}
    for _ in range(_ROUNDS * _TIMES):
        began = time.time()
        job = retarget.wait(retarget.submit("python", "-c", code)["name"])
        (attempt,) = job["attempts"]
        line = float(retarget.client.send(f"/api/jobs/{job['name']}/outputs/outputs/now"))
        times = {"the server has it": job["created"]}
        times |= {what: attempt[name] for name, what in stages.items()} | {"its first line": line}
        for what, at in times.items():
            reached.setdefault(what, []).append((at - began) * 1000)
    for what, times in reached.items():
        yield Row(f"submit until … {what}", "ms", {OURS: times})


def _several(name: str, once: Callable[[], float]) -> Callable[[], list[float]]:
    times = _TIMES if name in (OURS, BARE) else _SLOW
    return lambda: [once() for _ in range(times)]


def _snapshot(retarget: Retarget, code: Path) -> str:
    """Send the code, as a client does, and return its digest."""
    command = ["run", "--name", "warm", "script.py", "--", str(code / "out")]
    _retarget(retarget, *command, cwd=code)
    return str(retarget.client.ask("/api/jobs/warm")["snapshot"])


def _commands(retarget: Retarget, place: Path) -> Iterator[Row]:
    folder = place / "hello"
    folder.mkdir()
    (folder / "hello.py").write_text("print('hello')\n")

    for what, bar, arguments in (
        ("retarget run hello.py, the whole command", 600, ("run", "hello.py")),
        ("retarget --help", 200, ("--help",)),
        ("retarget job list", None, ("job", "list")),
    ):
        once = timed_command(retarget, folder, *arguments)
        once()
        yield Row(what, "ms", take_turns({OURS: once}, 10), bar=Bar(bar))


def timed_command(retarget: Retarget, cwd: Path, *arguments: str) -> Callable[[], float]:
    """Return what runs a command of ours and tells the milliseconds that all of it took."""

    def run() -> float:
        began = time.perf_counter()
        _retarget(retarget, *arguments, cwd=cwd)
        return (time.perf_counter() - began) * 1000

    return run


def _environments(retarget: Retarget) -> Row:
    """Compare a job in an environment that was built before with one in a plain interpreter."""

    def whole(**asked: object) -> float:
        began = time.perf_counter()
        retarget.wait(retarget.submit("python", "-c", "pass", **asked)["name"])
        return (time.perf_counter() - began) * 1000

    built = {"environment": {"kind": "system", "pip": ["six==1.17.0"]}}
    whole(**built)
    turns = {"plain": whole, "built": lambda: whole(**built)}
    found = take_turns(turns, 15)
    added = [median(found["built"]) - median(found["plain"])]
    return Row("a job in an environment that is there, added", "ms", {OURS: added}, bar=Bar(30))


def _retarget(retarget: Retarget, *arguments: str, cwd: Path) -> None:
    command = [str(Path(sys.executable).parent / "retarget"), *arguments]
    environ = {**os.environ, **retarget.variables()}
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, check=False)
    if done.returncode:
        raise Refused(f"{' '.join(arguments)}: {done.stderr.decode()[-500:]}")


Order = Callable[[Mapping[str, Any]], Any]
Peer = Callable[[Path], AbstractContextManager[Order]]


def _peer(script: str, python: Callable[[], Path], **variables: Callable[[], str]) -> Peer:
    def start(folder: Path) -> AbstractContextManager[Order]:
        environ = {name: make() for name, make in variables.items()}
        return ordering(python(), ROOT / "peers" / script, folder, environ)

    return start


def _installed(name: str) -> Callable[[], Path]:
    return lambda: environment(name)


def _slurm() -> Path:
    if shutil.which("sbatch") is None:
        raise Refused("Slurm is not installed")
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
