"""Shared by all benchmarks: environments of other tools, servers, rounds and the result table."""

import hashlib
import json
import math
import operator
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent
CACHE = ROOT / ".cache"  # environments and filled databases, which later runs reuse
RESULTS = ROOT / "results"
RETARGET = "Retarget"
CONSOLE = Console(width=None if sys.stdout.isatty() else 120, highlight=False)

_READY_TIMEOUT_SECONDS = 180.0

_HEADINGS = ("measurement", "goal", RETARGET, "compared with")

Result = TypeVar("Result")


class MeasurementFailed(Exception):
    """A server or a tool failed, so there is no result."""


@dataclass(frozen=True)
class Goal:
    """The goal of a measurement: a number, a ratio to another side, or both."""

    number: float | None = None
    ratio: float | None = None  # how many times as good as `peer`
    peer: str = ""


@dataclass(frozen=True)
class Row:
    """One measurement: for each side the result of every round; empty if the side failed."""

    name: str
    unit: str
    rounds: Mapping[str, list[float]]
    higher_is_better: bool = False
    goal: Goal = field(default_factory=Goal)

    def value(self, side: str) -> float | None:
        results = self.rounds.get(side)
        return median(results) if results else None

    def peers(self) -> list[str]:
        return [side for side in self.rounds if side != RETARGET]

    def ratio(self, peer: str) -> float | None:
        """Return how many times better Retarget is."""
        value, peer_value = self.value(RETARGET), self.value(peer)
        if not value or not peer_value:
            return None
        return value / peer_value if self.higher_is_better else peer_value / value

    def met(self) -> bool | None:
        """Return whether the goal is met; None if there is none."""
        checks: list[bool] = []
        if self.goal.ratio is not None:
            ratio = self.ratio(self.goal.peer)
            checks.append(ratio is not None and ratio >= self.goal.ratio)
        if self.goal.number is not None:
            value = self.value(RETARGET)
            compare = operator.ge if self.higher_is_better else operator.le
            checks.append(value is not None and compare(value, self.goal.number))
        return all(checks) if checks else None


def measure_rounds(
    sides: Mapping[str, Callable[[], Result]], rounds: int = 3, *, max_seconds: float = math.inf
) -> dict[str, list[Result]]:
    """Measure all sides in each round; the order is reversed from round to round.

    A side that fails, or takes longer than `max_seconds` for a round, is not measured again.
    """
    results: dict[str, list[Result]] = {name: [] for name in sides}
    order = list(sides)
    for _ in range(rounds):
        for name in tuple(order):
            start_time = time.perf_counter()
            try:
                results[name].append(sides[name]())
            except (MeasurementFailed, OSError, HTTPException) as error:
                CONSOLE.print(f"{name}: {error}", style="red", markup=False)
                order.remove(name)
                continue
            if time.perf_counter() - start_time > max_seconds:
                order.remove(name)
        order.reverse()
    return results


def line(row: Row) -> str:
    """Return a row as one line, to print as soon as it is measured."""
    name, _, value, comparison = _cells(row, ", ")
    return f"{name}: {value}" + (f"; {comparison}" if comparison else "")


def show(subject: str, rows: list[Row]) -> Table:
    """Return the table of a subject, for a terminal."""
    table = Table(title=subject, caption=f"in brackets: how many times better {RETARGET} is")
    for heading in _HEADINGS:
        table.add_column(heading, justify="left" if heading == _HEADINGS[0] else "right")
    for row in rows:
        colour = {True: "[green]", False: "[red]", None: ""}[row.met()]
        name, goal, value, comparison = _cells(row, "\n")
        table.add_row(name, goal, colour + value, comparison)
    return table


def write(subject: str, rows: list[Row], folder: Path = RESULTS) -> Path:
    """Write the results as JSON, and as a Markdown table for the documentation."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        f"| {' | '.join(_HEADINGS)} |",
        "|---|--:|--:|--:|",
        *(f"| {' | '.join(_cells(row, '<br>'))} |" for row in rows),
    ]
    (folder / f"{subject}.md").write_text("\n".join(lines) + "\n")
    path = folder / f"{subject}.json"
    content = {
        "subject": subject,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {
            "cpus": os.cpu_count(),
            "system": platform.system(),
            "python": platform.python_version(),
        },
        "rows": [_json(row) for row in rows],
    }
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path


def environment(peer: str) -> Path:
    """Return the Python of another tool, installed from `requirements/PEER.txt`."""
    requirements = ROOT / "requirements" / f"{peer}.txt"
    folder = CACHE / "environments" / f"{peer}-{digest(requirements)}"
    python = folder / "bin/python"
    ready = folder / ".ready"
    if not ready.exists():
        CONSOLE.print(f"installing {peer}")
        _uv("venv", "--clear", "--python", sys.executable, str(folder))
        pinned = ("--require-hashes", "-r", str(requirements))
        _uv("pip", "install", "--python", str(python), "--compile-bytecode", *pinned)
        ready.touch()
    return python


def digest(*files: Path) -> str:
    """Return a short digest of the content of these files."""
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:12]


@dataclass(frozen=True)
class Server:
    name: str
    url: str
    token: str
    pid: int
    start_seconds: float  # from its start to its first response

    def memory(self, kind: str = "Rss") -> float:
        """Return the memory of the server and its child processes in MB; kind: Rss or Pss."""
        return sum(_memory(pid, kind) for pid in _process_tree(self.pid)) / 1e6

    def cpu_seconds(self) -> float:
        """Return the CPU time that the server itself has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Start:
    """How to start a server, and the path that answers once it is ready."""

    name: str
    command: list[str]
    port: int
    ready: str
    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    token_file: Path | None = None


@contextmanager
def run_server(start: Start) -> Generator[Server, None, None]:
    """Run a server until the end of the block, then end it and all its child processes."""
    start.folder.mkdir(parents=True, exist_ok=True)
    start_time = time.perf_counter()
    with (start.folder / f"{start.name}.log").open("ab") as log:
        process = subprocess.Popen(
            start.command,
            cwd=start.folder,
            env={**os.environ, **start.variables},
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        token = _wait_until_ready(start, process)
        duration = time.perf_counter() - start_time
        yield Server(start.name, f"http://127.0.0.1:{start.port}", token, process.pid, duration)
    finally:
        _end(process)


@contextmanager
def peer_process(
    python: Path, script: Path, folder: Path, variables: Mapping[str, str] | None = None
) -> Generator[Callable[[Mapping[str, Any]], Any], None, None]:
    """Run a program in the environment of another tool. It answers each line of JSON with one."""
    path = f"{python.parent}:{os.environ.get('PATH', '')}"
    with (folder / "peer.log").open("ab") as log:
        process = subprocess.Popen(
            [str(python), str(script)],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={"PATH": path, "HOME": str(folder), **(variables or {})},
            text=True,
            start_new_session=True,
        )
    requests, responses = process.stdin, process.stdout
    assert requests is not None
    assert responses is not None

    def read_response() -> Any:
        response = responses.readline()
        if not response:
            log = (folder / "peer.log").read_text(errors="replace")
            raise MeasurementFailed(f"{script.name} failed:\n{log[-2000:]}")
        return json.loads(response)

    def send(request: Mapping[str, Any]) -> Any:
        requests.write(json.dumps(request) + "\n")
        requests.flush()
        return read_response()

    try:
        read_response()  # it is ready
        yield send
    finally:
        tree = _process_tree(process.pid)
        with suppress(OSError):
            requests.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        _end(process, tree)
        responses.close()


def temporary_folder() -> "tempfile.TemporaryDirectory[str]":
    """Return a new folder on the disk of the cache, which is removed at the end of the block."""
    CACHE.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(dir=CACHE)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_until_stable(server: Server, timeout_seconds: float = 30.0) -> None:
    """Wait until the memory of a server is stable: some start processes after they are ready."""
    deadline = time.monotonic() + timeout_seconds
    previous = 0.0
    while (
        abs((current := server.memory()) - previous) > 0.01 * current
        and time.monotonic() < deadline
    ):
        previous = current
        time.sleep(3.0)


def _cells(row: Row, separator: str) -> list[str]:
    comparison = separator.join(_comparison(row, peer) for peer in row.peers())
    return [row.name, _goal(row), _number(row.value(RETARGET), row.unit), comparison]


def _comparison(row: Row, peer: str) -> str:
    ratio = row.ratio(peer)
    suffix = "" if ratio is None else f" ({ratio:.3g}x)"
    return f"{peer} {_number(row.value(peer), row.unit)}{suffix}"


def _goal(row: Row) -> str:
    goals: list[str] = []
    if row.goal.number is not None:
        goals.append(
            f"{'≥' if row.higher_is_better else '≤'} {row.goal.number:,g}{_unit(row.unit)}"
        )
    if row.goal.ratio is not None and row.goal.ratio >= 1:
        goals.append(f"≥ {row.goal.ratio:g}x {row.goal.peer}")
    elif row.goal.ratio is not None and row.higher_is_better:
        goals.append(f"≥ {row.goal.ratio:g} of {row.goal.peer}")
    elif row.goal.ratio is not None:
        goals.append(f"≤ {1 / row.goal.ratio:g} times {row.goal.peer}")
    return ", ".join(goals)


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    places = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{places}f}{_unit(unit)}"


def _unit(unit: str) -> str:
    return unit if unit.startswith("/") else f" {unit}"


def _json(row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "unit": row.unit,
        "goal": _goal(row) or None,
        "met": row.met(),
        "ratios": {side: row.ratio(side) for side in row.peers()},
        "median": {side: row.value(side) for side in row.rounds},
        "rounds": dict(row.rounds),
    }


def _uv(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "uv", "--quiet", *arguments], check=True)


def _wait_until_ready(start: Start, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + _READY_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        token = _token(start)
        if token is not None and _answers(start, token):
            return token
        time.sleep(0.01)
    log = (start.folder / f"{start.name}.log").read_text(errors="replace")
    raise MeasurementFailed(f"{start.name} is not ready:\n{log[-2000:]}")


def _token(start: Start) -> str | None:
    if start.token_file is None:
        return ""
    return start.token_file.read_text() if start.token_file.exists() else None


def _answers(start: Start, token: str) -> bool:
    connection = HTTPConnection("127.0.0.1", start.port, timeout=10)
    try:
        connection.request("GET", start.ready, headers={"Authorization": f"Bearer {token}"})
        with connection.getresponse() as response:
            response.read()
            return response.status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _end(process: subprocess.Popen[Any], tree: Sequence[int] = ()) -> None:
    tree = [*tree, *_process_tree(process.pid)]
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(3)
    for pid in filter(_is_alive, tree):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    while any(map(_is_alive, tree)):
        time.sleep(0.01)


def _process_tree(root: int) -> list[int]:
    """Return a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    tree = [root]
    for pid in tree:
        tree += children.get(pid, [])
    return tree


def _is_alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _memory(pid: int, kind: str) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(f"{kind}:"):
                return int(line.split()[1]) * 1024
    return 0
