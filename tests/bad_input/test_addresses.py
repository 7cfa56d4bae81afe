"""Wrong values of RETARGET_URL and RETARGET_TOKEN: one sentence, and soon."""

import http.server
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from retarget.sdk import http as sdk_http
from tests.bad_input.conftest import Cli
from tests.server.conftest import Api


@pytest.mark.parametrize(
    "url",
    [
        *("foo", "localhost:80", "ftp://x", "file:///etc", "http://", "http://:80", "http://[::1"),
        *("http://127.0.0.1:99999", "http://127.0.0.1:abc", "http://127.0.0.1:-1", "http://a b/"),
        *("http://a\nb", "http://127.0.0.1:1/\x1b[31m", "http://127.0.0.1:1/ü", "//x"),
    ],
)
def test_an_invalid_address_is_refused(
    retarget: Cli, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("RETARGET_URL", url)
    assert "write http://host:port" in retarget("job", "list").error_line()


def test_a_user_in_an_address_is_refused_and_not_shown(
    retarget: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETARGET_URL", "http://me:secret@127.0.0.1:1")
    message = retarget("job", "list").error_line()
    assert "RETARGET_TOKEN" in message
    assert "secret" not in message


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("http://127.0.0.1:1", "no server answers at http://127.0.0.1:1 (Connection refused)"),
        (f"http://{'x' * 300}.example", "was not found; check the address"),
    ],
)
def test_an_unreachable_address_is_reported(
    retarget: Cli, code: Path, monkeypatch: pytest.MonkeyPatch, url: str, sentence: str
) -> None:
    monkeypatch.setenv("RETARGET_URL", url)
    for args in (("job", "list"), ("run", "hello.py")):
        assert sentence in retarget(*args).error_line()


HTML = b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n<html></html>"
OTHER_JSON = b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{"a": 1}'
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
REDIRECT = b"HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (HTML, "its response has an unknown format"),
        (OTHER_JSON, "its response has an unknown format"),
        (NOT_FOUND, "it answers 404 Not Found"),
        (REDIRECT, "it answers 302 Found"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "it does not speak HTTP"),
        (b"", "it does not speak HTTP"),
    ],
)
@pytest.mark.parametrize("args", [("job", "list"), ("run", "hello.py"), ("job", "logs", "x")])
def test_a_server_that_is_not_retarget_is_reported(
    retarget: Cli,
    code: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: bytes,
    sentence: str,
    args: tuple[str, ...],
) -> None:
    with listening(answer) as url:
        monkeypatch.setenv("RETARGET_URL", url)
        message = retarget(*args).error_line()
    assert f"{url} is not a Retarget server: {sentence}" in message


def test_a_web_server_is_reported_as_not_retarget(
    retarget: Cli, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Quiet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        monkeypatch.setenv("RETARGET_URL", f"http://127.0.0.1:{server.server_port}")
        assert "is not a Retarget server" in retarget("run", "hello.py").error_line()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_server_that_never_answers_times_out_soon(
    retarget: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sdk_http._HEALTH_SECONDS <= 15  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(sdk_http, "_HEALTH_SECONDS", 0.3)
    with listening(None) as url:
        monkeypatch.setenv("RETARGET_URL", url)
        message = retarget("job", "list").error_line()
    assert f"no answer from {url} after 300 ms" in message


@pytest.mark.parametrize(
    ("token", "sentence"),
    [
        ("wrong", "this server does not accept that token; check RETARGET_TOKEN"),
        ("x" * 50_000, "this server does not accept that token; check RETARGET_TOKEN"),
        ("", "missing token; set RETARGET_TOKEN"),
        ("rtj.x.y", "the token of a job cannot be used here"),
        ("a\x1bb", "the token contains invalid characters; check RETARGET_TOKEN"),
        ("tökén", "the token contains invalid characters; check RETARGET_TOKEN"),
    ],
)
def test_an_invalid_token_is_reported(
    api: Api, retarget: Cli, code: Path, monkeypatch: pytest.MonkeyPatch, token: str, sentence: str
) -> None:
    monkeypatch.setenv("RETARGET_TOKEN", token)
    for args in (("job", "list"), ("run", "hello.py")):
        assert sentence in retarget(*args).error_line()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def listening(answer: bytes | None) -> Generator[str]:
    """Send this answer to every client; None never answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    connections: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(connection)
            if answer is not None:
                connection.recv(65536)
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_RDWR)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for connection in connections:
            connection.close()
