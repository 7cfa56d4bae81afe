"""Real clients of MLflow, new and a year old, a real MLflow server, and ours beside it."""

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.server.conftest import Api, serving

HERE = Path(__file__).parent
PARTS = HERE.parents[1] / ".parts"
# Nothing is sent to anybody; what a model needs is not looked for: that takes long, and is local.
_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_REQUIREMENTS_INFERENCE_TIMEOUT": "1",
    "GIT_PYTHON_REFRESH": "quiet",
}


def part(name: str) -> Path:
    """Return an environment's Python; without it the test is skipped, and fails in CI."""
    python = PARTS / name / "bin/python"
    if not (PARTS / name / "ready").exists():
        lacking(f"{python.parents[1]} is not installed: run scripts/test-parts.sh")
    return python


def lacking(message: str) -> None:
    """Skip a test whose part cannot be had here; in CI it fails."""
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def environ(**more: str) -> dict[str, str]:
    """Return the variables of a client: none of those that this process may have been given."""
    own = ("MLFLOW_", "RETARGET_", "VIRTUAL_ENV", "PYTHONPATH", "PYTEST_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return kept | _QUIET | more


class Client:
    """One of the environments, whose Python runs the scripts beside this file."""

    def __init__(self, name: str, folder: Path) -> None:
        self.python = part(name)
        self._folder = folder

    def run(self, script: str, *arguments: str, **variables: str) -> str:
        ended = subprocess.run(
            [self.python, HERE / script, *arguments],
            cwd=self._folder,
            env=environ(**variables),
            capture_output=True,
            text=True,
            timeout=300,  # it takes 36 s on two quiet cores
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def compare(self, script: str, ours: Api, theirs: str) -> list[dict[str, Any]]:
        """Let a script ask both servers, one after the other, and return what it said of each."""
        prefix = f"check-{uuid.uuid4().hex[:8]}"
        said = self.run(script, prefix, theirs, ours.url, MLFLOW_TRACKING_TOKEN=ours.token)
        return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


@pytest.fixture
def client(tmp_path: Path) -> Callable[[str], Client]:
    def make(name: str) -> Client:
        folder = tmp_path / name
        folder.mkdir()
        return Client(name, folder)

    return make


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server for a module whose tests run jobs, which leave nothing behind."""
    with serving(tmp_path_factory.mktemp("home"), RETARGET_POLL_SECONDS="0.2") as api:
        yield api
        api.cleared()


@pytest.fixture(scope="module")
def our_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with serving(tmp_path_factory.mktemp("home")) as api:
        yield api


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real MLflow server, one for all workers: starting it takes long."""
    part("mlflow-new")
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "mlflow"
    shared.mkdir(exist_ok=True)
    with _locked(shared) as users:
        if users == 0:
            _start(shared)
        _count(shared, users + 1)
    facts = json.loads((shared / "server.json").read_text())
    yield facts["url"]
    with _locked(shared) as users:
        _count(shared, users - 1)
        if users == 1:
            os.killpg(facts["pid"], signal.SIGKILL)
            shutil.rmtree(shared / "data", ignore_errors=True)


@contextmanager
def _locked(shared: Path) -> Generator[int]:
    """Hold the lock on the server, and tell how many use it."""
    with open(shared / "users", "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        yield int(file.read() or 0)


def _count(shared: Path, users: int) -> None:
    (shared / "users").write_text(str(users))


def _start(shared: Path) -> None:
    data = shared / "data"
    data.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [PARTS / "mlflow-new/bin/mlflow", "server", "--host", "127.0.0.1", "--workers", "1"]
    command += ["--port", str(port), "--backend-store-uri", f"sqlite:///{data}/m.db"]
    command += ["--artifacts-destination", data / "artifacts"]
    variables = environ(MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false")  # else it starts a dozen more
    with open(shared / "log", "w") as log:
        process = subprocess.Popen(
            command, cwd=data, env=variables, stdout=log, stderr=log, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _await(url, process)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    (shared / "server.json").write_text(json.dumps({"pid": process.pid, "url": url}))


def _await(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 200
    while True:
        try:
            with urlopen(f"{url}/health", timeout=5):
                return
        except (URLError, OSError):
            assert process.poll() is None, "MLflow's server did not start"
            assert time.monotonic() < deadline, "MLflow's server is not ready after 200 s"
            time.sleep(0.2)
