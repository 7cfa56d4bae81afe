"""A real server, in a process of its own, and a plain HTTP client for it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest


class Answer:
    def __init__(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.status = status
        self.content = content
        self.headers = headers

    @property
    def json(self) -> Any:
        return json.loads(self.content)


class Api:
    def __init__(self, home: Path, facts: dict[str, Any], token: str) -> None:
        self.home = home
        self.pid = int(facts["pid"])
        self.url = str(facts["url"])
        self.token = token

    def ask(
        self, method: str, path: str, body: Any = None, *, token: str | None = None, **query: Any
    ) -> Answer:
        """Ask as the owner, or with another token; `token=""` sends none."""
        given = self.token if token is None else token
        headers = {"Authorization": f"Bearer {given}"} if given else {}
        content = body
        if body is not None and not isinstance(body, bytes):
            content, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        where = f"{self.url}{path}" + (f"?{urlencode(query, doseq=True)}" if query else "")
        request = Request(where, data=content, headers=headers, method=method)
        try:
            with urlopen(request, timeout=30) as response:
                return Answer(response.status, response.read(), dict(response.headers))
        except HTTPError as error:
            with error:
                return Answer(error.code, error.read(), dict(error.headers))

    def submit(self, *command: str, **asked: Any) -> dict[str, Any]:
        answer = self.ask("POST", "/api/jobs", {"command": command or ("true",), **asked})
        assert answer.status == 201, answer.content
        return answer.json

    def job(self, name: str) -> dict[str, Any]:
        return self.ask("GET", f"/api/jobs/{name}").json

    def wait(self, name: str, *states: str, patience: float = 20.0) -> dict[str, Any]:
        """Wait until the job is in one of these states; without any, until it has ended."""
        wanted = states or ("succeeded", "failed", "canceled")
        deadline = time.monotonic() + patience
        while (job := self.job(name))["state"] not in wanted:
            assert time.monotonic() < deadline, f"still {job['state']}: {job['reason']}"
            version = job["version"]
            self.ask("GET", f"/api/jobs/{name}", wait=2, version=version)
        return job

    def cleared(self, patience: float = 20.0) -> None:
        """Wait until nothing of an ended job is left on the target."""
        deadline = time.monotonic() + patience
        while list((self.home / "targets/local/launches").glob("*")):
            assert time.monotonic() < deadline, "launches were not cleared away"
            time.sleep(0.05)


@contextmanager
def serving(
    home: Path, *, program: Sequence[str] = ("-m", "retarget.server"), **variables: str
) -> Generator[Api]:
    """Run a server for `home` until the end of the block."""
    environ = os.environ | {"RETARGET_HOME": str(home)} | variables
    process = subprocess.Popen([sys.executable, *program], env=environ, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 30
        while not (home / "server.json").exists():
            assert process.poll() is None, process.communicate()[1].decode()
            assert time.monotonic() < deadline, "the server is not ready after 30 s"
            time.sleep(0.02)
        facts = json.loads((home / "server.json").read_text())
        yield Api(home, facts, (home / "token").read_text())
    finally:
        process.terminate()
        said = process.communicate(timeout=30)[1].decode()
        assert "Traceback" not in said, said


@contextmanager
def serving_tests(home: Path) -> Generator[Api]:
    """Run a server for many tests; when they end, nothing of theirs runs any more."""
    with serving(home, RETARGET_POLL_SECONDS="0.2") as api:
        yield api
        for job in api.ask("GET", "/api/jobs", limit=1000).json:
            if job["ended"] is None:
                api.ask("POST", f"/api/jobs/{job['name']}/cancel")
                api.wait(job["name"])
        api.cleared()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """One server for all tests of a module."""
    with serving_tests(tmp_path_factory.mktemp("home")) as api:
        yield api


@pytest.fixture
def all_cpus(api: Api) -> Callable[[str], dict[str, Any]]:
    """Start a job that holds the whole machine until it is canceled."""
    cpus = api.ask("POST", "/api/targets/local/check").json["facts"]["nodes"][0]["cpus"]

    def hold(name: str) -> dict[str, Any]:
        api.submit("sleep", "600", name=name, cpus=cpus)
        return api.wait(name, "running")

    return hold
