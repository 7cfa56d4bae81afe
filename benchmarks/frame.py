"""What every benchmark needs: peers' environments, servers, turns, and one table at the end."""

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
CACHE = ROOT / ".cache"  # environments and filled databases: what a second run need not make again
RESULTS = ROOT / "results"
OURS = "Retarget"
CONSOLE = Console(width=None if sys.stdout.isatty() else 120, highlight=False)

_PATIENCE = 180.0  # seconds that a server may take to be ready

Result = TypeVar("Result")


class Refused(Exception):
    """A server did not do what was asked of it."""


@dataclass(frozen=True)
class Bar:
    """What must be reached: a number, or so many times as good as another side; or both."""

    number: float | None = None
    times: float | None = None
    of: str = ""  # the side that is meant


@dataclass(frozen=True)
class Row:
    """One thing measured: for each side the result of every round, none where it failed."""

    what: str
    unit: str
    rounds: Mapping[str, list[float]]
    more: bool = False  # whether more is better
    bar: Bar = field(default_factory=Bar)

    def value(self, side: str) -> float | None:
        found = self.rounds.get(side)
        return median(found) if found else None

    def others(self) -> list[str]:
        return [side for side in self.rounds if side != OURS]

    def ratio(self, peer: str) -> float | None:
        """Return how many times better we are."""
        ours, theirs = self.value(OURS), self.value(peer)
        if not ours or not theirs:
            return None
        return ours / theirs if self.more else theirs / ours

    def met(self) -> bool | None:
        """Tell whether the bar is reached; None if there is none."""
        found: list[bool] = []
        if self.bar.times is not None:
            ratio = self.ratio(self.bar.of)
            found.append(ratio is not None and ratio >= self.bar.times)
        if self.bar.number is not None:
            ours = self.value(OURS)
            enough = operator.ge if self.more else operator.le
            found.append(ours is not None and enough(ours, self.bar.number))
        return all(found) if found else None


def take_turns(
    sides: Mapping[str, Callable[[], Result]], rounds: int = 3, *, longest: float = math.inf
) -> dict[str, list[Result]]:
    """Measure all sides in each round, the last one first in the next.

    A side that refuses, or takes longer than so many seconds for a round, is left out from then on.
    """
    found: dict[str, list[Result]] = {name: [] for name in sides}
    order = list(sides)
    for _ in range(rounds):
        for name in tuple(order):
            began = time.perf_counter()
            try:
                found[name].append(sides[name]())
            except (Refused, OSError, HTTPException) as error:
                CONSOLE.print(f"{name}: {error}", style="red", markup=False)
                order.remove(name)
                continue
            if time.perf_counter() - began > longest:
                order.remove(name)
        order.reverse()
    return found


def line(row: Row) -> str:
    """Return a row as one line, to be shown as soon as it is known."""
    what, _, ours, beside = _cells(row, ", ")
    return f"{what}: {ours}" + (f"; {beside}" if beside else "")


def show(subject: str, rows: list[Row]) -> Table:
    """Return the table of a subject, for a terminal."""
    table = Table(title=subject, caption=f"in brackets: how many times better {OURS} is")
    for head in ("what", "bar", OURS, "beside it"):
        table.add_column(head, justify="left" if head == "what" else "right")
    for row in rows:
        colour = {True: "[green]", False: "[red]", None: ""}[row.met()]
        what, bar, ours, beside = _cells(row, "\n")
        table.add_row(what, bar, colour + ours, beside)
    return table


def write(subject: str, rows: list[Row], folder: Path = RESULTS) -> Path:
    """Write the results as JSON, and as a table for the documentation beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        f"| what | bar | {OURS} | beside it |",
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
    """Return the Python of a peer, installed as `requirements/PEER.txt` pins it."""
    requirements = ROOT / "requirements" / f"{peer}.txt"
    folder = CACHE / "environments" / f"{peer}-{digest(requirements)}"
    python = folder / "bin/python"
    ready = folder / ".ready"
    if not ready.exists():
        CONSOLE.print(f"installing {peer}")
        _uv("venv", "--clear", "--python", sys.executable, str(folder))
        wanted = ("--require-hashes", "-r", str(requirements))
        _uv("pip", "install", "--python", str(python), "--compile-bytecode", *wanted)
        ready.touch()
    return python


def digest(*files: Path) -> str:
    """Return a short name for the content of these files."""
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:12]


@dataclass(frozen=True)
class Server:
    name: str
    url: str
    token: str
    pid: int
    started: float  # seconds from its start to its first answer

    def memory(self, kind: str = "Rss") -> float:
        """Return the MB of the server and of all that it started; kind: Rss or Pss."""
        return sum(_memory(pid, kind) for pid in _family(self.pid)) / 1e6


@dataclass(frozen=True)
class Start:
    """How a server is started, and the address whose answer means that it is ready."""

    name: str
    command: list[str]
    port: int
    ready: str
    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    token_file: Path | None = None


@contextmanager
def serving(start: Start) -> Generator[Server, None, None]:
    """Run a server until the end of the block; nothing that it started remains."""
    start.folder.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
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
        took = time.perf_counter() - began
        yield Server(start.name, f"http://127.0.0.1:{start.port}", token, process.pid, took)
    finally:
        _end(process)


@contextmanager
def ordering(
    python: Path, script: Path, folder: Path, variables: Mapping[str, str] | None = None
) -> Generator[Callable[[Mapping[str, Any]], Any], None, None]:
    """Run a program in a peer's environment, which answers each order, a line of JSON, with one."""
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
    orders, answers = process.stdin, process.stdout
    assert orders is not None
    assert answers is not None

    def answer() -> Any:
        said = answers.readline()
        if not said:
            log = (folder / "peer.log").read_text(errors="replace")
            raise Refused(f"{script.name} failed:\n{log[-2000:]}")
        return json.loads(said)

    def order(what: Mapping[str, Any]) -> Any:
        orders.write(json.dumps(what) + "\n")
        orders.flush()
        return answer()

    try:
        answer()  # it is ready
        yield order
    finally:
        family = _family(process.pid)
        with suppress(OSError):
            orders.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        _end(process, family)
        answers.close()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def settle(server: Server, patience: float = 30.0) -> None:
    """Wait until a server no longer grows: some go on starting processes after they answer."""
    deadline = time.monotonic() + patience
    before = 0.0
    while abs((now := server.memory()) - before) > 0.01 * now and time.monotonic() < deadline:
        before = now
        time.sleep(3.0)


def _cells(row: Row, between: str) -> list[str]:
    beside = between.join(_beside(row, side) for side in row.others())
    return [row.what, _bar(row), _number(row.value(OURS), row.unit), beside]


def _beside(row: Row, side: str) -> str:
    ratio = row.ratio(side)
    times = "" if ratio is None else f" ({ratio:.3g}x)"
    return f"{side} {_number(row.value(side), row.unit)}{times}"


def _bar(row: Row) -> str:
    shown: list[str] = []
    if row.bar.number is not None:
        shown.append(f"{'≥' if row.more else '≤'} {row.bar.number:,g}{_unit(row.unit)}")
    if row.bar.times is not None and row.bar.times >= 1:
        shown.append(f"≥ {row.bar.times:g}x {row.bar.of}")
    elif row.bar.times is not None and row.more:
        shown.append(f"≥ {row.bar.times:g} of {row.bar.of}")
    elif row.bar.times is not None:
        shown.append(f"≤ {1 / row.bar.times:g} times {row.bar.of}")
    return ", ".join(shown)


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    places = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{places}f}{_unit(unit)}"


def _unit(unit: str) -> str:
    return unit if unit.startswith("/") else f" {unit}"


def _json(row: Row) -> dict[str, Any]:
    return {
        "what": row.what,
        "unit": row.unit,
        "bar": _bar(row) or None,
        "met": row.met(),
        "ratios": {side: row.ratio(side) for side in row.others()},
        "median": {side: row.value(side) for side in row.rounds},
        "rounds": dict(row.rounds),
    }


def _uv(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "uv", "--quiet", *arguments], check=True)


def _wait_until_ready(start: Start, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        token = _token(start)
        if token is not None and _answers(start, token):
            return token
        time.sleep(0.01)
    log = (start.folder / f"{start.name}.log").read_text(errors="replace")
    raise Refused(f"it is not ready:\n{log[-2000:]}")


def _token(start: Start) -> str | None:
    if start.token_file is None:
        return ""
    return start.token_file.read_text() if start.token_file.exists() else None


def _answers(start: Start, token: str) -> bool:
    connection = HTTPConnection("127.0.0.1", start.port, timeout=10)
    try:
        connection.request("GET", start.ready, headers={"Authorization": f"Bearer {token}"})
        with connection.getresponse() as answer:
            answer.read()
            return answer.status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _end(process: subprocess.Popen[Any], family: Sequence[int] = ()) -> None:
    family = [*family, *_family(process.pid)]
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(3)
    for pid in filter(_lives, family):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    while any(map(_lives, family)):
        time.sleep(0.01)


def _family(root: int) -> list[int]:
    """Return a process and all that came from it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def _lives(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _memory(pid: int, kind: str) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(f"{kind}:"):
                return int(line.split()[1]) * 1024
    return 0
