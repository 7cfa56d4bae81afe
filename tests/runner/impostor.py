"""Programs that are not the server: one that has its port, and a proxy that alters answers."""

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

_PATIENCE = 200.0
_PROGRAM = """
import os, socket, sys, threading
log, answer = open(sys.argv[2], "ab", 0), bytes.fromhex(sys.argv[3])
if os.getuid() == 0:
    os.setuid(65534)
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", int(sys.argv[1])))
listener.listen(100)
print(listener.getsockname()[1], flush=True)
def serve(connection):
    while True:
        content = connection.recv(1 << 20)
        if not content:
            return
        log.write(content)
        if answer:
            connection.sendall(answer)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


def answer(status: int, body: bytes, media_type: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status} Whatever\r\nContent-Type: {media_type}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def problem(status: int) -> bytes:
    """Return an answer in the format of our server."""
    body = {"error": "Gone", "message": "the attempt is over", "field": None}
    return answer(status, json.dumps(body).encode())


ANSWERS = {
    "json404": answer(404, b'{"error": "Not Found"}'),
    "json403": problem(403),
    "json410": problem(410),
    "json413": problem(413),
    "json422": problem(422),
    "json502": problem(502),
    "json507": problem(507),
    "acked": answer(200, b'{"size": 1000000, "events_acked": 99, "cancel": true, "kept": 1}'),
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "html404": answer(404, b"<h1>Not found</h1>", "text/html"),
    "html200": answer(200, b"<h1>It works!</h1>", "text/html"),
    "not http": b"220 mail.example ESMTP\r\n",
    "hangs": b"",
}


class Impostor:
    """A program of another user, if this is root, that has a port and answers always the same."""

    def __init__(self, port: int, kind: str, log: Path) -> None:
        self._log = log
        command = [sys.executable, "-I", "-S", "-c", _PROGRAM]
        self._process = subprocess.Popen(
            [*command, str(port), log, ANSWERS[kind].hex()], stdout=subprocess.PIPE
        )
        assert self._process.stdout
        self.port = int(self._process.stdout.readline())

    @property
    def received(self) -> bytes:
        return self._log.read_bytes()

    def wait_for_requests(self, count: int) -> None:
        deadline = time.monotonic() + _PATIENCE
        while self.received.count(b"HTTP/1.1\r\n") < count:
            assert time.monotonic() < deadline, self.received
            time.sleep(0.02)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def impostor(port: int, kind: str, log: Path) -> Generator[Impostor]:
    """Let an impostor have a port until the end of the block."""
    running = Impostor(port, kind, log)
    try:
        yield running
    finally:
        running.end()


Alter = Callable[[int, dict[str, str], bytes], tuple[int, dict[str, str], bytes]]


class AlteringProxy(ThreadingHTTPServer):
    """Passes requests on to a server, and alters the answers, or the requests."""

    daemon_threads = True

    def __init__(self, url: str) -> None:
        super().__init__(("127.0.0.1", 0), _ProxyHandler)
        self.server_url = url.removeprefix("http://")
        self.alter_answer: Alter | None = None
        self.alter_body: Callable[[bytes], bytes] | None = None
        self.altered = 0
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def wait_for_altered(self, count: int) -> None:
        deadline = time.monotonic() + _PATIENCE
        while self.altered < count:
            assert time.monotonic() < deadline, f"only {self.altered} were altered"
            time.sleep(0.02)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: connections break."""


class _ProxyHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def do_GET(self) -> None:
        proxy = cast("AlteringProxy", self.server)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if proxy.alter_body is not None and body:
            body = proxy.alter_body(body)
            proxy.altered += 1
        upstream = http.client.HTTPConnection(proxy.server_url, timeout=_PATIENCE)
        headers = {**self.headers, "Content-Length": str(len(body))}
        upstream.request(self.command, self.path, body, headers)
        response = upstream.getresponse()
        status, content, fields = response.status, response.read(), dict(response.headers)
        upstream.close()
        if proxy.alter_answer is not None and not self.path.endswith("/proof"):
            status, fields, content = proxy.alter_answer(status, fields, content)
            proxy.altered += 1
        self.send_response(status)
        fields["Content-Length"] = str(len(content))
        for name, value in fields.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_PUT = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


def is_free(port: int) -> bool:
    """Return whether somebody could listen on a port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
