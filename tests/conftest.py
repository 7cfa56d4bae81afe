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

from tests.preloaded import Program, preloaded

COMMAND = str(Path(sys.executable).parent / "retarget")
# commands that need no server, or start, stop and describe it themselves
_WITHOUT_SERVER = ("server", "config", "snapshot", "--help", "--version")
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
    stopped = run_command("server", "stop", folder=path.parent)
    leftovers = _wait_for_exits(path, timeout=100.0)
    for pid in leftovers:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert stopped.returncode == 0, stopped.stderr
    assert not leftovers, f"these outlived the test: {leftovers}"


@pytest.fixture
def server(home: Path) -> None:
    """The server of this home, already running: most tests are not about how it starts."""
    start_server(home, dict(os.environ))


@pytest.fixture
def retarget(home: Path, tmp_path: Path) -> Cli:
    """The `retarget` command: `retarget("run", "x.py", cwd=folder, env={...}, timeout=60)`.

    It finds a running server, unless the test has created the home, or asks about the server.
    """

    def run(
        *args: str | Path,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        input: str | None = None,
        timeout: float = 200,
    ) -> subprocess.CompletedProcess[str]:
        arguments, variables = [*map(str, args)], os.environ | (env or {})
        needs_server = not {*arguments[:1], *arguments[-1:]} & {*_WITHOUT_SERVER}
        if needs_server and not home.exists() and variables["RETARGET_HOME"] == str(home):
            start_server(home, variables)
        folder = cwd or tmp_path
        return run_command(*arguments, folder=folder, env=env, input=input, timeout=timeout)

    return run


def run_command(
    *arguments: str,
    folder: Path,
    env: dict[str, str] | None = None,
    input: str | None = None,
    timeout: float = 200,
) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, forked from one that has imported it if possible."""
    variables = os.environ | (env or {})
    if preloaded().can_run(variables):
        program = Program("retarget", [*arguments], str(folder), variables)
        return preloaded().run(program, input=input, timeout=timeout)
    return subprocess.run(
        [COMMAND, *arguments],
        cwd=folder,
        env=variables,
        input=input,
        stdin=subprocess.DEVNULL if input is None else None,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def start_server(home: Path, variables: dict[str, str]) -> None:
    """Start a server for a new home as the first command would, and return when it is ready."""
    if variables.get("RETARGET_URL") or not preloaded().can_run(variables):
        return  # the first command starts it
    folder = home / "servers/main"
    for path in (home, folder.parent, folder):
        path.mkdir(mode=0o700)
    with open(
        folder / "server.log", "ab", opener=lambda path, flags: os.open(path, flags, 0o600)
    ) as log:
        log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} starting a server\n".encode())
        log.flush()
        program = Program("retarget.server", [], str(home), variables, new_session=True)
        process = preloaded().start(program, output=log.fileno())
    deadline = time.monotonic() + 100
    while not (folder / "server.json").exists() and process.poll() is None:
        assert time.monotonic() < deadline, (folder / "server.log").read_text()
        time.sleep(0.01)
    process.forget()


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
