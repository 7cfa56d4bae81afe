"""Real MLflow clients, new and a year old, a real MLflow server, and a Retarget server."""

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

FOLDER = Path(__file__).parent
ENVIRONMENTS = FOLDER.parents[1] / ".parts"
CLIENT_SECONDS = 900  # the longest script takes 20 s of CPU time, and 97 s on a busy machine
# No telemetry, and no inference of the requirements of a model, which takes long.
_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_REQUIREMENTS_INFERENCE_TIMEOUT": "1",
    "GIT_PYTHON_REFRESH": "quiet",
}


def part(name: str) -> Path:
    """Return the Python of a test environment. If it is not installed, skip, or fail in CI."""
    python = ENVIRONMENTS / name / "bin/python"
    if not (ENVIRONMENTS / name / "ready").exists():
        lacking(f"{python.parents[1]} is not installed: run scripts/test-parts.sh")
    return python


def lacking(message: str) -> None:
    """Skip a test that cannot run on this machine. In CI, fail."""
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def environ(**more: str) -> dict[str, str]:
    """Return the environment variables of a client, without those of this process's own setup."""
    excluded = ("MLFLOW_", "RETARGET_", "VIRTUAL_ENV", "PYTHONPATH", "PYTEST_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(excluded)}
    return inherited | _QUIET | more


class Client:
    """Runs the scripts of this folder with the Python of a test environment."""

    def __init__(self, name: str, folder: Path) -> None:
        self.python = part(name)
        self._folder = folder
        (folder / "tmp").mkdir()  # MLflow leaves temp folders behind

    def run(self, script: str, *arguments: str, **variables: str) -> str:
        ended = subprocess.run(
            [self.python, FOLDER / script, *arguments],
            cwd=self._folder,
            env=environ(TMPDIR=str(self._folder / "tmp"), **variables),
            capture_output=True,
            text=True,
            timeout=CLIENT_SECONDS,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def compare(self, script: str, retarget_server: Api, mlflow_url: str) -> list[dict[str, Any]]:
        """Run a script against one server after the other, and return its results for each."""
        prefix = f"check-{uuid.uuid4().hex[:8]}"
        output = self.run(
            script,
            prefix,
            mlflow_url,
            retarget_server.url,
            MLFLOW_TRACKING_TOKEN=retarget_server.token,
        )
        return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


@pytest.fixture
def client(tmp_path: Path) -> Callable[[str], Client]:
    def make(name: str) -> Client:
        folder = tmp_path / name
        folder.mkdir()
        return Client(name, folder)

    return make


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server for a module whose tests run jobs; all launches are removed at the end."""
    with serving(tmp_path_factory.mktemp("home"), RETARGET_POLL_SECONDS="0.2") as api:
        yield api
        api.cleared()


@pytest.fixture(scope="module")
def our_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with serving(tmp_path_factory.mktemp("home")) as api:
        yield api


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real MLflow server. All workers share it, because it starts slowly."""
    part("mlflow-new")
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "mlflow"
    shared.mkdir(exist_ok=True)
    with _locked(shared) as users:
        if users == 0:
            _start(shared)
        _count(shared, users + 1)
    server_info = json.loads((shared / "server.json").read_text())
    yield server_info["url"]
    with _locked(shared) as users:
        _count(shared, users - 1)
        if users == 1:
            os.killpg(server_info["pid"], signal.SIGKILL)
            shutil.rmtree(shared / "data", ignore_errors=True)


@contextmanager
def _locked(shared: Path) -> Generator[int]:
    """Hold the lock on the server, and yield how many workers use it."""
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
    command = [
        ENVIRONMENTS / "mlflow-new/bin/mlflow",
        "server",
        "--host",
        "127.0.0.1",
        "--workers",
        "1",
    ]
    command += ["--port", str(port), "--backend-store-uri", f"sqlite:///{data}/m.db"]
    command += ["--artifacts-destination", data / "artifacts"]
    variables = environ(
        TMPDIR=str(data),
        MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false",  # else it starts a dozen more processes
    )
    with open(shared / "log", "w") as log:
        process = subprocess.Popen(
            command, cwd=data, env=variables, stdout=log, stderr=log, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_ready(url, process)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    (shared / "server.json").write_text(json.dumps({"pid": process.pid, "url": url}))


def _wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 300
    while True:
        try:
            with urlopen(f"{url}/health", timeout=200):
                return
        except (URLError, OSError):
            assert process.poll() is None, "MLflow's server did not start"
            assert time.monotonic() < deadline, "MLflow's server is not ready after 300 s"
            time.sleep(0.2)
