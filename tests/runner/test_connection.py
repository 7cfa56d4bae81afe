"""Connections of the runner to a peer that is slow, closes them, or states a false length."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import pytest

from retarget.runner import connection
from retarget.runner.errors import Unreachable
from retarget.runner.folder import Folder
from retarget.runner.peers import is_same_user
from retarget.runner.proof import (
    DIGEST_HEADER,
    NONCE_HEADER,
    PROOF_HEADER,
    digest_of,
    prove_answer,
)
from retarget.runner.server import Server

_KEY = "key"
Peer = Callable[[socket.socket, int, str], None]  # gets each request of a connection, by number
Serve = Callable[[Peer], tuple[Server, list[list[str]]]]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Answer requests with a function. Returns a client, and the requests of each connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    requests: list[list[str]] = []
    clients: list[Server] = []

    def handle(peer: Peer, accepted: socket.socket, lines: list[str]) -> None:
        with suppress(OSError), accepted, accepted.makefile("rb") as file:
            while request := file.readline():
                headers = dict(line.split(": ", 1) for line in _head(file))
                file.read(int(headers["Content-Length"]))
                lines.append(request.decode().rsplit(" ", 1)[0])
                peer(accepted, len(lines), headers[NONCE_HEADER])

    def accept(peer: Peer) -> None:
        with suppress(OSError):
            while True:
                accepted = listener.accept()[0]
                requests.append([])
                arguments = (peer, accepted, requests[-1])
                threading.Thread(target=handle, args=arguments, daemon=True).start()

    def start(peer: Peer) -> tuple[Server, list[list[str]]]:
        threading.Thread(target=accept, args=(peer,), daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        contact = {"url": url, "runner_key": _KEY, "script_token": "t", "path": ""}
        (tmp_path / "launch.json").write_text(json.dumps({"contact": contact}))
        clients.append(Server(Folder(str(tmp_path))))
        return clients[-1], requests

    yield start
    for client in clients:
        client.close()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def _head(file: BinaryIO) -> Iterator[str]:
    while line := file.readline().decode().strip():
        yield line


def proven(nonce: str, content: bytes, *lines: str, length: int | None = None) -> bytes:
    status, digest = 200, digest_of(content)
    head = [
        f"HTTP/1.1 {status} OK",
        f"Content-Length: {len(content) if length is None else length}",
        f"{DIGEST_HEADER}: {digest}",
        f"{PROOF_HEADER}: {prove_answer(_KEY, nonce, status, digest)}",
        *lines,
    ]
    return "\r\n".join([*head, "", ""]).encode() + content


def test_a_peer_that_answers_byte_by_byte_does_not_hold_the_runner(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_TIMEOUT_SECONDS", 0.5)

    def trickle(peer: socket.socket, _number: int, _nonce: str) -> None:
        peer.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        while True:
            peer.sendall(b"x")
            time.sleep(0.05)

    client, _ = serve(trickle)
    with pytest.raises(Unreachable, match="timed out"):
        client.report([])


def test_each_connection_begins_with_the_handshake(serve: Serve) -> None:
    def close_after_second(peer: socket.socket, number: int, nonce: str) -> None:
        answer = b'{"size": 1}' if number > 1 else b""
        peer.sendall(proven(nonce, answer, *(["Connection: close"] if number > 1 else [])))

    client, requests = serve(close_after_second)
    for offset in range(3):
        assert client.append("output", offset, b"private") == 1
    assert requests == [["GET /proof", f"PUT /streams/output?offset={n}"] for n in range(3)]


def test_a_proxy_that_closes_each_connection_is_named(serve: Serve) -> None:
    client, requests = serve(
        lambda peer, number, nonce: peer.sendall(proven(nonce, b"", "Connection: close"))
    )
    with pytest.raises(Unreachable, match="closes each connection after one response"):
        client.report([])
    assert requests == [["GET /proof"]]


@pytest.mark.parametrize("length", [10**20, 10**15])
def test_a_false_length_does_no_harm(serve: Serve, length: int) -> None:
    def lie(peer: socket.socket, number: int, nonce: str) -> None:
        if number == 1:
            peer.sendall(proven(nonce, b""))
            return
        peer.sendall(proven(nonce, b'{"events_acked": 0}', length=length))
        peer.shutdown(socket.SHUT_WR)

    client, _ = serve(lie)
    assert client.report([])["events_acked"] == 0  # the content itself is proven


def test_what_a_stranger_sends_is_not_part_of_the_error(serve: Serve) -> None:
    client, _ = serve(lambda peer, number, nonce: peer.sendall(b"\x1b[2Jowned" * 1000 + b"\r\n"))
    with pytest.raises(Unreachable) as caught:
        client.report([])
    assert str(caught.value).endswith(": BadStatusLine")


def test_a_connection_that_its_process_has_closed_belongs_to_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        accepted, address = listener.accept()
        with accepted:
            assert is_same_user(*address[:2])
            client.close()
            assert not is_same_user(*address[:2])
