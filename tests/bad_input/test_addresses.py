"""RETARGET_URL and RETARGET_TOKEN that lead nowhere: a sentence, and soon."""

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
def test_what_is_no_address_is_refused(
    retarget: Cli, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("RETARGET_URL", url)
    assert "write http://host:port" in retarget("job", "list").sentence()


def test_a_user_in_an_address_is_refused_and_not_shown(
    retarget: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETARGET_URL", "http://me:secret@127.0.0.1:1")
    said = retarget("job", "list").sentence()
    assert "RETARGET_TOKEN" in said
    assert "secret" not in said


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("http://127.0.0.1:1", "no server answers at http://127.0.0.1:1 (Connection refused)"),
        (f"http://{'x' * 300}.example", "there is no host"),
    ],
)
def test_where_nobody_listens_that_is_said(
    retarget: Cli, code: Path, monkeypatch: pytest.MonkeyPatch, url: str, sentence: str
) -> None:
    monkeypatch.setenv("RETARGET_URL", url)
    for args in (("job", "list"), ("run", "hello.py")):
        assert sentence in retarget(*args).sentence()


HTML = b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n<html></html>"
OTHER_JSON = b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{"a": 1}'
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
ELSEWHERE = b"HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (HTML, "its answer is another"),
        (OTHER_JSON, "its answer is another"),
        (NOT_FOUND, "it says 404 Not Found"),
        (ELSEWHERE, "it says 302 Found"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "it does not speak HTTP"),
        (b"", "it does not speak HTTP"),
    ],
)
@pytest.mark.parametrize("args", [("job", "list"), ("run", "hello.py"), ("job", "logs", "x")])
def test_what_is_not_retarget_is_told_so(
    retarget: Cli,
    code: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: bytes,
    sentence: str,
    args: tuple[str, ...],
) -> None:
    with listening(answer) as url:
        monkeypatch.setenv("RETARGET_URL", url)
        said = retarget(*args).sentence()
    assert f"what answers at {url} is not a Retarget server: {sentence}" in said


def test_a_web_server_is_no_retarget_server(
    retarget: Cli, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Quiet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        monkeypatch.setenv("RETARGET_URL", f"http://127.0.0.1:{server.server_port}")
        assert "is not a Retarget server" in retarget("run", "hello.py").sentence()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_what_takes_connections_and_never_answers_is_not_waited_for_long(
    retarget: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sdk_http._FIRST_ANSWER <= 15  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(sdk_http, "_FIRST_ANSWER", 0.3)
    with listening(None) as url:
        monkeypatch.setenv("RETARGET_URL", url)
        said = retarget("job", "list").sentence()
    assert f"what listens at {url} has not answered for 0.3 s" in said


@pytest.mark.parametrize(
    ("token", "sentence"),
    [
        ("wrong", "that token is not this server's; see RETARGET_TOKEN"),
        ("x" * 50_000, "that token is not this server's; see RETARGET_TOKEN"),
        ("", "a token is needed: set RETARGET_TOKEN"),
        ("rtj.x.y", "a job's token does not open this"),
        ("a\x1bb", "the token holds characters that no token has; see RETARGET_TOKEN"),
        ("tökén", "the token holds characters that no token has; see RETARGET_TOKEN"),
    ],
)
def test_a_token_that_opens_nothing_is_told_so(
    api: Api, retarget: Cli, code: Path, monkeypatch: pytest.MonkeyPatch, token: str, sentence: str
) -> None:
    monkeypatch.setenv("RETARGET_TOKEN", token)
    for args in (("job", "list"), ("run", "hello.py")):
        assert sentence in retarget(*args).sentence()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def listening(answer: bytes | None) -> Generator[str]:
    """Give each who connects this answer; None is none, ever."""
    listener = socket.create_server(("127.0.0.1", 0))
    taken: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                line, _ = listener.accept()
            except OSError:
                return
            taken.append(line)
            if answer is not None:
                line.recv(65536)
                line.sendall(answer)
                line.shutdown(socket.SHUT_RDWR)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for line in taken:
            line.close()
