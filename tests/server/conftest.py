"""A real server in its own process, and a plain HTTP client for it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

from retarget.core.tokens import runner_key, script_token
from retarget.runner.proof import (
    DIGEST_HEADER,
    NONCE_HEADER,
    PROOF_HEADER,
    TRAILER,
    DigestedBody,
    TrailedBody,
    Trailer,
    digest_of,
    new_nonce,
    prove_answer,
    prove_request,
)
from tests.preloaded import Process, Program, preloaded
from tests.store.conftest import cluster as cluster  # a fixture

_SERVER = ("-m", "retarget.server")


class Answer:
    def __init__(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.status = status
        self.content = content
        self.headers = headers

    @property
    def json(self) -> Any:
        return json.loads(self.content)


class Api:
    def __init__(self, home: Path, server_info: dict[str, Any], token: str) -> None:
        self.home = home
        self.pid = int(server_info["pid"])
        self.url = str(server_info["url"])
        self.token = token

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        proven_by: str = "",
        **query: Any,
    ) -> Answer:
        """Send a request with the user's token, or with another one. `token=""` sends none.

        With `proven_by`, the key of a runner, send a proof instead, and verify that of the answer.
        """
        chosen_token = self.token if token is None and not proven_by else token
        headers = {"Authorization": f"Bearer {chosen_token}"} if chosen_token else {}
        content = body
        if body is not None and not isinstance(body, bytes):
            content, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        url = f"{self.url}{path}" + (f"?{urlencode(query, doseq=True)}" if query else "")
        if proven_by:
            headers |= proof_headers(proven_by, method, url.removeprefix(self.url), content or b"")
        answer = _send(Request(url, data=content, headers=headers, method=method))
        return _verified(answer, proven_by, headers) if proven_by else answer

    def runner_key(self, key: str) -> str:
        """Return the key of the runner of an attempt."""
        return runner_key((self.home / "secret").read_text().encode(), key)

    def script_token(self, key: str) -> str:
        """Return the token of the script of an attempt."""
        return script_token((self.home / "secret").read_text().encode(), key)

    def submit(self, *command: str, **fields: Any) -> dict[str, Any]:
        answer = self.ask("POST", "/api/jobs", {"command": command or ("true",), **fields})
        assert answer.status == 201, answer.content
        return answer.json

    def job(self, name: str) -> dict[str, Any]:
        return self.ask("GET", f"/api/jobs/{name}").json

    def wait(self, name: str, *states: str, timeout: float = 200.0) -> dict[str, Any]:
        """Wait until the job is in one of these states; by default, until it has ended."""
        final_states = states or ("succeeded", "failed", "canceled")
        deadline = time.monotonic() + timeout
        while (job := self.job(name))["state"] not in final_states:
            assert time.monotonic() < deadline, f"still {job['state']}: {job['reason']}"
            version = job["version"]
            self.ask("GET", f"/api/jobs/{name}", wait=2, version=version)
        return job

    def cleared(self, timeout: float = 200.0) -> None:
        """Wait until the target has removed the folders of all launches."""
        deadline = time.monotonic() + timeout
        while list((self.home / "targets/local/launches").glob("*")):
            assert time.monotonic() < deadline, "launches were not removed"
            time.sleep(0.05)


def proof_headers(key: str, method: str, target: str, content: bytes) -> dict[str, str]:
    """Return the headers with which a runner proves a request."""
    nonce, digest = new_nonce(), digest_of(content)
    proof = prove_request(key, nonce, method, target, digest)
    return {NONCE_HEADER: nonce, DIGEST_HEADER: digest, PROOF_HEADER: proof}


def _send(request: Request) -> Answer:
    """Send a request. Raise OSError if no complete answer comes: the server was killed."""
    try:
        with urlopen(request, timeout=200) as response:
            return Answer(response.status, response.read(), dict(response.headers))
    except HTTPError as error:
        with error:
            return Answer(error.code, error.read(), dict(error.headers))
    except HTTPException as error:  # such as a body that is cut off
        raise ConnectionError(repr(error)) from error


def _verified(answer: Answer, key: str, headers: dict[str, str]) -> Answer:
    """Return an answer without its trailer. One that is not proven can only be a refusal."""
    nonce, digest = headers[NONCE_HEADER], answer.headers.get(DIGEST_HEADER.lower(), "")
    if not digest:
        assert answer.status == 401, answer.status
        return answer
    assert answer.headers[PROOF_HEADER.lower()] == prove_answer(key, nonce, answer.status, digest)
    body: DigestedBody | TrailedBody = DigestedBody(digest)
    if digest == TRAILER:
        body = TrailedBody(Trailer(key, "answer", nonce))
    content = body.add(answer.content)
    assert body.is_proven()
    return Answer(answer.status, content, answer.headers)


@contextmanager
def serving(home: Path, *, program: Sequence[str] = _SERVER, **variables: str) -> Generator[Api]:
    """Run a server for `home` until the end of the block."""
    environ = os.environ | {"RETARGET_HOME": str(home)} | variables
    with tempfile.TemporaryFile() as stderr:
        process = _start(program, environ, stderr.fileno())
        try:
            yield _api(home, process, stderr)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=200)
            assert "Traceback" not in _text(stderr), _text(stderr)


def _start(program: Sequence[str], environ: dict[str, str], stderr: int) -> Process:
    if program == _SERVER and preloaded().can_run(environ):
        server = Program("retarget.server", [], os.getcwd(), environ)
        return preloaded().start(server, output=stderr)
    return subprocess.Popen([sys.executable, *program], env=environ, stderr=stderr)


def _api(home: Path, process: Process, stderr: IO[bytes]) -> Api:
    """Wait until the server is ready."""
    deadline = time.monotonic() + 200
    while not (home / "servers/main/server.json").exists():
        assert process.poll() is None, _text(stderr)
        assert time.monotonic() < deadline, "the server is not ready after 200 s"
        time.sleep(0.02)
    server_info = json.loads((home / "servers/main/server.json").read_text())
    return Api(home, server_info, (home / "token").read_text())


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


@contextmanager
def serving_tests(home: Path) -> Generator[Api]:
    """Run a server for many tests, and cancel their jobs at the end."""
    with serving(home, RETARGET_POLL_SECONDS="0.2") as api:
        yield api
        for job in api.ask("GET", "/api/jobs", limit=1000).json:
            if job["ended_at"] is None:
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
    """Return a function that starts a job on all CPUs of the node until it is canceled."""
    cpus = api.ask("POST", "/api/targets/local/check").json["inventory"]["nodes"][0]["cpus"]

    def hold(name: str) -> dict[str, Any]:
        api.submit("sleep", "600", name=name, cpus=cpus)
        return api.wait(name, "running")

    return hold
