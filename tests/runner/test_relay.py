"""The address of MLflow clients in a script: a port of the runner that leads to the server."""

import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from retarget.runner.request_heads import RequestHeads
from tests.runner.harness import PATIENCE, HarnessLaunch, RunnerHarness
from tests.runner.impostor import impostor, is_free

_ASK = """
import os, sys, time, urllib.request
uri, token = os.environ["MLFLOW_TRACKING_URI"], os.environ["MLFLOW_TRACKING_TOKEN"]
def ask(path, data=None):
    head = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{uri}/{path}", data, head)
    return urllib.request.urlopen(request, timeout=200).read()
def wait(name):
    while not os.path.exists(name): time.sleep(0.02)
print(uri, flush=True)
"""


def begin(harness: RunnerHarness, code: str) -> tuple[HarnessLaunch, int]:
    """Start a script, and return the port of its relay as well."""
    launch = harness.launch("python", "-c", _ASK + code).start()
    reports = launch.wait_for_output("output", b"\n")
    match = re.match(r"http://127\.0\.0\.1:(\d+)\n", reports.stream().decode())
    assert match
    return launch, int(match[1])


def test_requests_and_answers_of_any_size_pass_through(harness: RunnerHarness) -> None:
    code = "for size in (0, 1, 10**5, 10**7): print(ask('x', b'y' * size))"
    launch, _ = begin(harness, code)
    assert launch.finish().stream().decode().split("\n")[1:] == ["b'{}'"] * 4 + [""]
    token = f"Bearer {harness.receiver.script_token}"
    assert harness.receiver.tracking == [("/x", token)] * 4


def test_many_connections_at_once_pass_through(harness: RunnerHarness) -> None:
    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(20) as pool: print(len(list(pool.map(ask, ['x'] * 100))))"
    )
    launch, _ = begin(harness, code)
    assert launch.finish().stream().endswith(b"\n100\n")


def test_a_script_waits_for_a_server_that_is_away(harness: RunnerHarness) -> None:
    launch, _ = begin(harness, "wait('go'); print('asking', flush=True); print(ask('x'))")
    harness.receiver.stop()
    (launch.folder / "work/go").touch()
    output = launch.folder / "streams/output"
    deadline = time.monotonic() + PATIENCE
    while b"asking" not in output.read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.5)  # the request is on its way
    harness.receiver.start()
    assert launch.finish().stream().endswith(b"asking\nb'{}'\n")


def test_a_connection_that_is_kept_is_closed_when_the_server_goes(harness: RunnerHarness) -> None:
    """So clients notice, as they do without a relay, and open another one."""
    code = (
        "import http.client\n"
        "kept = http.client.HTTPConnection(uri[7:], timeout=200)\n"
        "kept.request('GET', '/x'); kept.getresponse().read(); print('kept', flush=True)\n"
        "print(kept.sock.recv(1)); wait('go'); print(ask('y'))"
    )
    launch, _ = begin(harness, code)
    launch.wait_for_output("output", b"kept")
    harness.receiver.stop()
    harness.receiver.start()
    (launch.folder / "work/go").touch()
    assert launch.finish().stream().endswith(b"kept\nb''\nb'{}'\n")


def test_the_token_never_reaches_an_impostor(harness: RunnerHarness, tmp_path: Path) -> None:
    launch, _ = begin(harness, "wait('go'); print(ask('x', b'metric'))")
    harness.receiver.stop()
    with impostor(harness.receiver.port, "html200", tmp_path / "received") as other:
        (launch.folder / "work/go").touch()
        other.wait_for_requests(8)
    assert harness.receiver.script_token.encode() not in other.received
    assert b"metric" not in other.received
    harness.receiver.start()
    assert launch.finish().stream().endswith(b"b'{}'\n")


def test_the_port_stays_taken_when_the_runner_is_killed(harness: RunnerHarness) -> None:
    launch, port = begin(harness, "print('pid', os.getpid(), '.', flush=True); wait('go')")
    reports = launch.wait_for_output("output", b".\n")
    launch.kill()
    os.kill(int(reports.stream().split()[2]), 0)  # the script runs
    assert not is_free(port)
    launch.start().finish()  # which ends the script
    assert reports.finished["outcome"] == "lost"
    assert is_free(port)


def test_the_port_is_free_after_the_script(harness: RunnerHarness) -> None:
    launch, port = begin(harness, "")
    launch.finish()
    assert is_free(port)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_other_users_cannot_use_it(harness: RunnerHarness) -> None:
    code = (
        "import os, socket, sys; os.setuid(int(sys.argv[2]))\n"
        "client = socket.socket(); client.connect(('127.0.0.1', int(sys.argv[1])))\n"
        "client.sendall(b'GET /x HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n')\n"
        "try: print(client.recv(100))\n"
        "except ConnectionResetError: print(b'')"
    )
    launch, port = begin(harness, "wait('go')")
    command = [sys.executable, "-I", "-S", "-c", code, str(port)]
    answers = [
        subprocess.run([*command, uid], check=True, capture_output=True, timeout=PATIENCE).stdout
        for uid in ("65534", "0")
    ]
    assert answers[0] == b"b''\n"
    assert answers[1].startswith(b"b'HTTP/1.1 200")
    assert [path for path, _ in harness.receiver.tracking] == ["/x"]
    (launch.folder / "work/go").touch()
    launch.finish()


def test_a_client_with_an_ipv6_socket_can_use_it(harness: RunnerHarness) -> None:
    """As clients written in Java do."""
    code = (
        "import socket\n"
        "client = socket.socket(socket.AF_INET6)\n"
        "client.connect(('::ffff:127.0.0.1', int(uri.rpartition(':')[2])))\n"
        "client.sendall(b'GET /x HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n'); print(client.recv(8))"
    )
    launch, _ = begin(harness, code)
    assert launch.finish().stream().endswith(b"b'HTTP/1.1'\n")


def test_a_script_that_is_canceled_can_log_its_last_metrics(harness: RunnerHarness) -> None:
    code = (
        "import signal\n"
        "def end(*_): print(ask('last')); sys.exit()\n"
        "signal.signal(signal.SIGTERM, end); print('ready', flush=True); time.sleep(600)"
    )
    launch = harness.launch("python", "-c", _ASK + code, grace_seconds=60).start()
    launch.wait_for_output("output", b"ready")
    launch.cancel()
    reports = launch.finish()
    assert reports.finished["outcome"] == "canceled"
    assert reports.stream().endswith(b"b'{}'\n")


def test_a_script_that_runs_wild_with_connections_does_no_harm(harness: RunnerHarness) -> None:
    code = (
        "import socket\n"
        "address = ('127.0.0.1', int(uri.rpartition(':')[2]))\n"
        "idle = [socket.create_connection(address) for _ in range(100)]\n"
        "for one in idle[:50]: one.sendall(b'\\0' * 1000); one.close()\n"
        "print(ask('x'))"
    )
    launch, _ = begin(harness, code)
    reports = launch.finish()
    assert reports.stream().endswith(b"b'{}'\n")


def test_it_leads_to_an_https_server(
    harness: RunnerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = make_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    port = serve_tls(certificate, harness.receiver.port)
    code = "for size in (1, 10**6): print(ask('x', b'y' * size))"
    launch = harness.launch("python", "-c", _ASK + code, url=f"https://localhost:{port}")
    reports = launch.finish()
    assert reports.finished["outcome"] == "succeeded", reports.stream()
    assert reports.stream().endswith(b"b'{}'\nb'{}'\n")


def make_certificate(folder: Path) -> Path:
    path = folder / "both.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    subprocess.run([*command, "-keyout", path, "-out", folder / "cert", *subject], check=True)
    path.write_text(path.read_text() + (folder / "cert").read_text())
    return path


def serve_tls(certificate: Path, port: int) -> int:
    """Return a port that leads to another one, with TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            client = listener.accept()[0]
            threading.Thread(target=terminate, args=(client,), daemon=True).start()

    def terminate(plain: socket.socket) -> None:
        with context.wrap_socket(plain, server_side=True) as client:
            client.settimeout(0.01)  # one thread for both directions, as TLS needs
            with socket.create_connection(("127.0.0.1", port)) as server:
                server.settimeout(0.01)
                while copy(client, server) and copy(server, client):
                    pass

    def copy(source: socket.socket, destination: socket.socket) -> bool:
        try:
            content = source.recv(1 << 16)
        except TimeoutError:
            return True
        destination.settimeout(PATIENCE)
        destination.sendall(content)
        destination.settimeout(0.01)
        return bool(content)

    threading.Thread(target=accept, daemon=True).start()
    return int(listener.getsockname()[1])


_REQUESTS = (
    b"GET /a HTTP/1.1\r\nHost: 127.0.0.1:5\r\nA: b\r\n\r\n"
    b"POST /b HTTP/1.1\r\nhost:x\r\nContent-Length: 12\r\n\r\nHost: inside"
    b"PUT /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\nHost: x\r\n\r\n"
    b"4;ext=1\r\nHost\r\nA\r\n: inside\r\n\r\n0\r\nHost: trailer\r\n\r\n"
    b"GET /d HTTP/1.1\r\nHost: x\r\n\r\n"
)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
def test_only_the_host_of_each_request_is_replaced(size: int) -> None:
    heads, sent = RequestHeads("retarget.example"), b""
    for start in range(0, len(_REQUESTS), size):
        sent += heads.add(_REQUESTS[start : start + size])
    assert sent == (
        b"GET /a HTTP/1.1\r\nHost: retarget.example\r\nA: b\r\n\r\n"
        b"POST /b HTTP/1.1\r\nHost: retarget.example\r\nContent-Length: 12\r\n\r\nHost: inside"
        b"PUT /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\nHost: retarget.example\r\n\r\n"
        b"4;ext=1\r\nHost\r\nA\r\n: inside\r\n\r\n0\r\nHost: trailer\r\n\r\n"
        b"GET /d HTTP/1.1\r\nHost: retarget.example\r\n\r\n"
    )
