"""A new home for every test that needs one, and the real command that uses it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

COMMAND = str(Path(sys.executable).parent / "retarget")
pytest_plugins = [
    "tests.testbeds.fixtures",
    "tests.temp_folder",
    "tests.durations",
    "tests.everything",
    "tests.second_chance",
]
Cli = Callable[..., subprocess.CompletedProcess[str]]

# No test may depend on how busy the machine is, nor on chance. `make fuzz` uses the long profile,
# with new cases each time.
settings.register_profile("quick", settings(), deadline=None, derandomize=True, database=None)
settings.register_profile(
    "fuzz",
    deadline=None,
    derandomize=False,
    max_examples=1000,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("quick")

# A shell that runs the tests with `&` makes them, and all they start, ignore these signals.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fresh RETARGET_HOME. At the end its server is stopped, and no process may remain."""
    path = tmp_path / "home"
    monkeypatch.setenv("RETARGET_HOME", str(path))
    names = ("RETARGET_URL", "RETARGET_TOKEN", "RETARGET_DEBUG", "VIRTUAL_ENV", "CONDA_PREFIX")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    yield path
    stopped = subprocess.run([COMMAND, "server", "stop"], capture_output=True, timeout=200)
    leftovers = _wait_for_exits(path, timeout=100.0)
    for pid in leftovers:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert stopped.returncode == 0, stopped.stderr.decode()
    assert not leftovers, f"these outlived the test: {leftovers}"


@pytest.fixture
def retarget(home: Path, tmp_path: Path) -> Cli:
    """The `retarget` command: `retarget("run", "x.py", cwd=folder, env={...}, timeout=60)`."""

    def run(
        *args: str | Path,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        input: str | None = None,
        timeout: float = 200,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [COMMAND, *map(str, args)],
            cwd=cwd or tmp_path,
            env=os.environ | (env or {}),
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run


def _wait_for_exits(home: Path, *, timeout: float) -> dict[int, str]:
    deadline = time.monotonic() + timeout
    while (processes := _processes_of(home)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return processes


def _processes_of(home: Path) -> dict[int, str]:
    """Return the processes of this home: the server, its runners, their scripts."""
    commands: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            in_home = f"RETARGET_HOME={home}\0".encode() in (entry / "environ").read_bytes()
            if in_home or str(home) in command or str(home) in os.readlink(entry / "cwd"):
                commands[int(entry.name)] = command
        except OSError:
            continue  # it has just ended, or belongs to another user
    return commands
