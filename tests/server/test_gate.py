"""The token is checked by the head of a request alone; bodies share one memory budget."""

import json
import re
import select
import socket
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from retarget.core.tokens import script_token
from retarget.server.mlflow import ROUTE_TABLES
from retarget.server.mlflow.app import PREFIXES
from tests.server.conftest import Api, serving
from tests.server.test_access import operations

MIB = 1 << 20
_BYTE_ROUTES = [
    *((method, "/mlflow-artifacts/artifacts/0/x") for method in ("GET", "PUT", "DELETE")),
    ("GET", "/mlflow/logged-models/m/artifacts/files"),
    ("POST", "/mlflow/upload-artifact"),
]
# Small limits, in a server that is otherwise the same.
_IMPATIENT = """
import runpy
from retarget.server import connections, request_bodies
connections._HEAD_SECONDS = request_bodies._STALL_SECONDS = 1.0
runpy.run_module("retarget.server", run_name="__main__")
"""


def connect(api: Api) -> socket.socket:
    address = urlsplit(api.url)
    return socket.create_connection((address.hostname, address.port or 0), timeout=200)


def head(method: str, path: str, *lines: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *lines, "", ""]).encode("latin-1")


def answer_to(api: Api, request: bytes) -> tuple[int, bytes]:
    """Send these bytes and nothing more. Return the status and the body of the answer."""
    with connect(api) as connection:
        connection.sendall(request)
        return read_answer(connection)


def read_answer(connection: socket.socket) -> tuple[int, bytes]:
    content = b""
    while b"\r\n\r\n" not in content:
        chunk = connection.recv(65536)
        assert chunk, content
        content += chunk
    top, _, body = content.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", top)
    while length and len(body) < int(length[1]):
        body += connection.recv(65536)
    return int(top.split()[1]), body


def is_closed_by(connection: socket.socket) -> bool:
    """Wait until the server closes the connection; return whether it did."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        return True
    return True


def resident(api: Api) -> int:
    """Return the memory of the server, in MiB."""
    status = Path(f"/proc/{api.pid}/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert match
    return int(match[1]) // 1024


def routes_with_a_token(api: Api) -> Iterator[tuple[str, str]]:
    for method, path, _ in operations(api):
        if path != "/health":
            yield method, re.sub(r"[{}]", "", path)
    rows = [(method, path) for table in ROUTE_TABLES for method, path, _ in table]
    for method, path in [*rows, *_BYTE_ROUTES]:
        for prefix in PREFIXES:
            yield method, prefix + re.sub(r"\{(\w+)[^}]*\}", r"\1", path)
    yield "GET", "/get-artifact"
    yield "GET", "/model-versions/get-artifact"


def test_every_route_answers_401_to_a_head_alone(api: Api) -> None:
    count = 0
    for method, path in routes_with_a_token(api):
        for lines in (
            ["Content-Length: 99999999999", "Content-Type: application/json"],
            ["Authorization: Bearer wrong", "Transfer-Encoding: chunked"],
            ["Authorization: Basic bm9ib2R5", "Content-Length: 5", "Expect: 100-continue"],
        ):
            status, body = answer_to(api, head(method, path, *lines))
            assert status == 401, (method, path, lines, body)
            problem = json.loads(body)
            assert problem.get("error", problem.get("error_code")) in {
                "Unauthorized",
                "UNAUTHENTICATED",
            }
            count += 1
    assert count > 900


def test_401_comes_before_422_404_and_405(api: Api) -> None:
    for method, path in (
        ("POST", "/api/jobs/wait"),
        ("POST", "/api/jobs"),
        ("GET", "/api/nothing"),
        ("PATCH", "/api/jobs/x"),
        ("GET", "/api/attempts/none"),
        ("POST", "/api/2.0/mlflow/nothing"),
        ("GET", "/ajax-api/3.0/mlflow/runs/create"),
    ):
        for token in ("", "wrong"):
            assert api.ask(method, path, b"{no JSON", token=token).status == 401, path


def test_a_jobs_token_is_refused_by_the_head_alone(api: Api) -> None:
    secret = (api.home / "secret").read_text().encode()
    token = f"Authorization: Bearer {script_token(secret, 'some-key')}"
    request = head("POST", "/api/jobs/plan", token, "Content-Length: 1000000")
    assert answer_to(api, request)[0] == 403
    request = head("POST", "/api/attempts/other/events", token, "Content-Length: 1000000")
    assert answer_to(api, request)[0] == 401


def test_what_was_open_stays_open(api: Api) -> None:
    for path in ("/health", "/openapi.json", *(f"{p}/mlflow/server-info" for p in PREFIXES)):
        assert api.ask("GET", path, token="").status == 200, path
    assert api.ask("GET", "/nothing", token="").status == 404
    assert api.ask("POST", "/health", token="").status == 405
    part = f"{PREFIXES[0]}/mlflow-artifacts/mpu/part/some/1"
    assert api.ask("PUT", part, b"x", token="").status == 403


def test_mlflow_takes_a_password_for_a_token(api: Api) -> None:
    basic = b64encode(f"anybody:{api.token}".encode()).decode()
    path = "/api/2.0/mlflow/experiments/search?max_results=1"
    assert answer_to(api, head("GET", path, f"Authorization: Basic {basic}"))[0] == 200


@pytest.mark.parametrize("keep_alive", [True, False])
def test_a_client_that_sends_a_large_body_first_reads_the_refusal(
    api: Api, keep_alive: bool
) -> None:
    address = urlsplit(api.url)
    with closing(HTTPConnection(str(address.hostname), address.port, timeout=200)) as connection:
        headers = {} if keep_alive else {"Connection": "close"}
        for path in ("/api/jobs", "/api/2.0/mlflow/runs/log-batch"):
            connection.request("POST", path, body=b"x" * 50 * MIB, headers=headers)
            answer = connection.getresponse()
            assert (answer.status, bool(answer.read())) == (401, True)
        connection.request("GET", "/health", headers=headers)
        answer = connection.getresponse()
        assert (answer.status, bool(answer.read())) == (200, True)


@pytest.mark.parametrize("path", ["/api/jobs", "/api/jobs/plan", "/api/2.0/mlflow/runs/log-batch"])
def test_without_a_token_no_body_is_held(api: Api, path: str) -> None:
    before = resident(api)
    with ExitStack() as stack:
        for _ in range(40):
            connection = stack.enter_context(connect(api))
            connection.sendall(head("POST", path, f"Content-Length: {63 * MIB}"))
            connection.sendall(b"x" * 20 * MIB)
        assert resident(api) - before < 60
        assert api.ask("GET", "/api/jobs").status == 200


def send_until_nothing_is_taken(connections: list[socket.socket], most: int) -> int:
    """Send up to `most` bytes over each connection; return how many were taken in all."""
    sent = dict.fromkeys(connections, 0)
    for connection in connections:
        connection.setblocking(False)
    while ready := select.select([], [c for c in sent if sent[c] < most], [], 2.0)[1]:
        for connection in ready:
            sent[connection] += connection.send(b" " * min(MIB, most - sent[connection]))
    return sum(sent.values())


@pytest.mark.parametrize("path", ["/api/jobs", "/api/jobs/plan", "/api/2.0/mlflow/runs/log-batch"])
def test_all_bodies_share_a_budget_which_returns_after_a_disconnect(api: Api, path: str) -> None:
    before = resident(api)
    token = f"Authorization: Bearer {api.token}"
    for _ in range(3):
        with ExitStack() as stack:
            connections = [stack.enter_context(connect(api)) for _ in range(20)]
            for connection in connections:
                connection.sendall(head("POST", path, token, f"Content-Length: {30 * MIB}"))
            assert send_until_nothing_is_taken(connections, 25 * MIB) < 250 * MIB
            assert resident(api) - before < 250
            assert api.ask("POST", "/api/jobs/plan", {"command": ["true"]}).status == 200
    deadline = time.monotonic() + 200
    while resident(api) - before > 70:
        assert time.monotonic() < deadline, f"{resident(api)} MiB are held, {before} at first"
        time.sleep(0.1)
    large = json.dumps({"command": ["true"], "name": "y" * 40 * MIB}).encode()
    assert api.ask("POST", path, large).status in (400, 422)


def test_requests_that_wait_for_room_are_answered_in_order(api: Api) -> None:
    body = json.dumps({"command": ["true"], "name": "y" * 40 * MIB}).encode()
    lines = (f"Authorization: Bearer {api.token}", f"Content-Length: {len(body)}")
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(api)) for _ in range(5)]
        for connection in connections:
            connection.sendall(head("POST", "/api/jobs/plan", *lines))
        for connection in connections:  # the third has room once the first is answered
            connection.sendall(body)
            assert read_answer(connection)[0] == 422


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server that waits for one second where others wait for 20 or 30."""
    with serving(tmp_path_factory.mktemp("home"), program=("-c", _IMPATIENT)) as api:
        yield api


def test_a_body_that_stalls_gets_408_and_its_room_is_free(impatient: Api) -> None:
    token = f"Authorization: Bearer {impatient.token}"
    paths = ("/api/jobs", "/api/jobs/plan", "/api/2.0/mlflow/runs/log-batch", "/api/blobs")
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(impatient)) for _ in paths]
        for connection, path in zip(connections, paths, strict=True):
            connection.sendall(head("POST", path, token, f"Content-Length: {60 * MIB}") + b"{")
        for connection in connections:
            status, body = read_answer(connection)
            assert (status, b"has arrived for" in body) == (408, True), body
            assert is_closed_by(connection)


@pytest.mark.parametrize(
    "beginning",
    [b"", b"\r\n", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: x\r\nA: b"],
)
def test_a_head_that_is_not_completed_ends_its_connection(impatient: Api, beginning: bytes) -> None:
    with connect(impatient) as fresh, connect(impatient) as kept:
        kept.sendall(head("GET", "/health"))
        assert read_answer(kept)[0] == 200
        for connection in (fresh, kept):
            connection.sendall(beginning)
        assert is_closed_by(fresh)
        assert is_closed_by(kept)


def send_for_ever(connection: socket.socket, part: bytes, pause: float = 0.0) -> None:
    while True:
        connection.sendall(part)
        time.sleep(pause)


def test_a_refused_body_that_drips_ends_its_connection(impatient: Api) -> None:
    with connect(impatient) as connection:
        connection.sendall(head("POST", "/api/jobs", "Content-Length: 100000"))
        assert read_answer(connection)[0] == 401
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            send_for_ever(connection, b"x", pause=0.1)


@pytest.mark.parametrize("has_trailer", [False, True])
def test_a_head_without_end_ends_its_connection(api: Api, has_trailer: bool) -> None:
    before = resident(api)
    top = head("POST", "/api/jobs", "Transfer-Encoding: chunked") + b"0\r\n"
    with connect(api) as connection:
        connection.sendall(top if has_trailer else b"GET /health HTTP/1.1\r\n")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            send_for_ever(connection, b"A: b\r\nC: " + b"d" * MIB + b"\r\n")
    assert resident(api) - before < 30


def limited(soft: int, hard: int) -> tuple[str, str]:
    """Return the program of a server with these limits of open files."""
    program = "import resource, runpy\n"
    program += f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
    return "-c", program + "runpy.run_module('retarget.server', run_name='__main__')"


def test_the_limit_of_open_files_is_raised(tmp_path: Path) -> None:
    with serving(tmp_path / "home", program=limited(256, 4000)) as api:
        limits = Path(f"/proc/{api.pid}/limits").read_text()
        assert re.search(r"Max open files +4000 +4000 ", limits), limits


@pytest.mark.parametrize(
    "beginning",
    [
        b"GET /api/jobs HTTP/1.1\r\nHost: x\r\n",
        head("POST", "/api/jobs", "Content-Length: 1000000"),
        head("GET", "/health"),
    ],
    ids=["half a head", "a refused body", "an idle connection"],
)
def test_a_user_gets_in_past_1200_connections_without_a_token(
    tmp_path: Path, beginning: bytes
) -> None:
    with serving(tmp_path / "home", program=limited(1024, 1024)) as api, ExitStack() as stack:
        job = api.submit("sleep", "600")["name"]
        for number in range(1200):
            connection = stack.enter_context(connect(api))
            with suppress(ConnectionError):
                connection.sendall(beginning)
            if number % 50 == 0:
                assert api.ask("GET", "/api/jobs").status == 200
        for _ in range(25):
            assert api.ask("GET", "/api/jobs").status == 200
        api.wait(job, "running")
        api.ask("POST", f"/api/jobs/{job}/cancel")
        api.wait(job)
        api.cleared()
