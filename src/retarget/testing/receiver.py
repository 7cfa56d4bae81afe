"""A real server for runners to report to: it answers /api/attempts and records every report.

It also records the requests that scripts send to the tracking API, which it answers with `{}`.
"""

import json
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

from retarget.core.snapshots import Entry, Manifest, digest_bytes
from retarget.runner.proof import (
    DIGEST_HEADER,
    NONCE_HEADER,
    PROOF_HEADER,
    TRAILER,
    DigestedBody,
    TrailedBody,
    Trailer,
    digest_of,
    prove_answer,
    prove_request,
)
from retarget.runner.sealing import seal


@dataclass
class Reports:
    """Everything that one attempt has reported."""

    events: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    streams: dict[str, bytearray] = field(default_factory=dict[str, bytearray])
    outputs: dict[str, bytes] = field(default_factory=dict[str, bytes])
    tracks: dict[str, bytearray] = field(default_factory=dict[str, bytearray])
    streamed_bytes: int = 0  # including bytes that were sent again
    canceled: bool = False  # sent with the next answer
    over: bool = False  # further reports are answered with 410

    @property
    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.events]

    @property
    def finished(self) -> dict[str, Any]:
        """Return the final event of the attempt."""
        endings = [event for event in self.events if event["kind"] == "finished"]
        assert len(endings) == 1, f"ended {len(endings)} times: {self.kinds}"
        return endings[0]

    def stream(self, name: str = "output") -> bytes:
        return bytes(self.streams.get(name, b""))

    def take_events(self, events: list[dict[str, Any]]) -> int:
        """Append events that are new and in order; return how many there are."""
        for event in events:
            if event["seq"] == len(self.events) + 1:
                self.events.append(event)
        return len(self.events)

    @property
    def track_records(self) -> list[dict[str, Any]]:
        """Return the records that the script has logged, process by process."""
        return [json.loads(line) for track in self.tracks.values() for line in track.splitlines()]

    def append_stream(self, name: str, offset: int, content: bytes) -> int:
        """Append new content unless it leaves a gap; return the size of the stream."""
        self.streamed_bytes += len(content)
        return _append(self.streams.setdefault(name, bytearray()), offset, content)

    def append_track(self, name: str, offset: int, lines: bytes) -> int:
        """Append new lines unless they leave a gap; return the size of the track."""
        assert lines.endswith(b"\n"), "the last line is incomplete"
        return _append(self.tracks.setdefault(name, bytearray()), offset, lines)


def _append(buffer: bytearray, offset: int, content: bytes) -> int:
    if offset <= len(buffer) < offset + len(content):
        buffer += content[len(buffer) - offset :]
    return len(buffer)


class Receiver:
    """A server on loopback that can be stopped, restarted, and made to refuse requests."""

    def __init__(self) -> None:
        self.runner_key = secrets.token_hex(32)  # of every attempt
        self.script_token = f"rtj.{secrets.token_hex(16)}"  # of every attempt
        self.port = 0
        self.blobs: dict[str, bytes] = {}
        self.secrets: dict[str, str] | None = {}  # of every attempt; None: one was deleted
        self.refused: set[str] = set()  # of events, streams, outputs, blobs: these get a 503
        self.refused_streams: set[str] = set()  # parts of these get a 422
        self.stream_delay = 0.0  # seconds before each part of a stream is accepted
        self.requests: list[str] = []  # such as "PUT streams/output", in order
        self.tracking: list[tuple[str, str]] = []  # requests of scripts: path, and the token
        self._attempts: dict[str, Reports] = {}
        self._changed = threading.Condition()
        self._server: _Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, *, new_port: bool = False) -> None:
        """Listen, on the previous port unless `new_port` is set."""
        if self._server is None:
            self._server = _Server(self, self.port)
            while new_port and self._server.server_port == self.port:
                self._server.server_close()
                self._server = _Server(self, 0)
            self.port = self._server.server_port
            threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Break all connections, as a killed server does."""
        if self._server is not None:
            self._server.abort()
            self._server = None

    def reports(self, key: str) -> Reports:
        with self._changed:
            return self._attempts.setdefault(key, Reports())

    def forget(self, key: str) -> None:
        """Lose all reports of an attempt, as a server whose database was lost."""
        with self._changed:
            self._attempts.pop(key, None)

    def wait(self, key: str, until: Callable[[Reports], object], *, timeout: float) -> Reports:
        """Wait until the reports of an attempt meet a condition, and return them."""
        reports, deadline = self.reports(key), time.monotonic() + timeout
        with self._changed:
            is_met = self._changed.wait_for(lambda: until(reports), deadline - time.monotonic())
        assert is_met, (
            f"not reported within {timeout} s; only {reports.kinds}, {list(reports.streams)}"
        )
        return reports

    def add_blob(self, content: bytes) -> str:
        """Serve a blob and return its digest."""
        digest = digest_bytes(content)
        self.blobs[digest] = content
        return digest

    def add_snapshot(
        self,
        files: dict[str, bytes],
        *,
        executable: tuple[str, ...] = (),
        links: dict[str, str] | None = None,
    ) -> str:
        """Serve a snapshot and return the digest of its manifest."""
        entries = [
            Entry(path, len(content), self.add_blob(content), executable=path in executable)
            for path, content in files.items()
        ]
        entries += [Entry(path, link=link) for path, link in (links or {}).items()]
        return self.add_blob(Manifest(tuple(entries)).encode())

    def answer(self, method: str, address: str, body: bytes) -> tuple[int, bytes]:
        """Answer a proven request, as the server's routes under /api/attempts do."""
        url = urlsplit(address)
        _, _, _, key, resource = url.path.split("/", 4)
        collection, _, name = resource.partition("/")
        if collection == "proof":
            return 204, b""
        if collection == "streams":
            time.sleep(self.stream_delay)
        with self._changed:
            self.requests.append(f"{method} {resource}")
            reports = self._attempts.setdefault(key, Reports())
            self._changed.notify_all()
            if reports.over:
                return 410, _problem("Gone", "the attempt is over")
            if collection in self.refused:
                return 503, _problem("TargetUnreachable", "not now")
            offset = int(parse_qs(url.query).get("offset", ["0"])[0])
            return self._take(reports, f"{method} {collection}", (unquote(name), offset), body)

    def verify(
        self, method: str, address: str, headers: dict[str, str], body: bytes
    ) -> tuple[str, bytes] | None:
        """Return the nonce and the content of a request; None if it has no valid proof."""
        nonce, digest = headers.get(NONCE_HEADER, ""), headers.get(DIGEST_HEADER, "")
        expected = prove_request(self.runner_key, nonce, method, address, digest)
        received: DigestedBody | TrailedBody = DigestedBody(digest)
        if digest == TRAILER:
            received = TrailedBody(Trailer(self.runner_key, "request", nonce))
        content = received.add(body)
        if headers.get(PROOF_HEADER) != expected or not received.is_proven():
            return None
        return nonce, content

    def prove(
        self, nonce: str, address: str, status: int, answer: bytes
    ) -> tuple[bytes, dict[str, str]]:
        """Return an answer with its trailer, if it has one, and the headers that prove it."""
        is_streamed = status == 200 and "/blobs" in address
        digest = TRAILER if is_streamed else digest_of(answer)
        if is_streamed:
            trailer = Trailer(self.runner_key, "answer", nonce)
            answer = trailer.add(answer) + trailer.value()
        proof = prove_answer(self.runner_key, nonce, status, digest)
        return answer, {DIGEST_HEADER: digest, PROOF_HEADER: proof}

    def _take(
        self, reports: Reports, request: str, position: tuple[str, int], body: bytes
    ) -> tuple[int, bytes]:
        name, offset = position
        match request:
            case "POST events":
                answer = {"events_acked": reports.take_events(json.loads(body)["events"])}
                return 200, json.dumps(answer | {"cancel": reports.canceled}).encode()
            case "PUT streams" if len(name) > 200 or name in self.refused_streams:
                return 422, _problem("Invalid", "not a valid stream name")
            case "PUT streams":
                return 200, json.dumps({"size": reports.append_stream(name, offset, body)}).encode()
            case "PUT track":
                size = reports.append_track(name, offset, body)
                return 200, json.dumps({"size": size, "refused": []}).encode()
            case "POST outputs":
                outputs = _unpack(body)
                reports.outputs.update(outputs)
                return 200, json.dumps({"kept": len(outputs), "refused": []}).encode()
            case _:
                return self._answer_download(request, name, body)

    def _answer_download(self, request: str, name: str, body: bytes) -> tuple[int, bytes]:
        match request:
            case "POST secrets" if self.secrets is not None:
                sealed = seal(self.runner_key, json.dumps(self.secrets).encode())
                return 200, json.dumps({"count": len(self.secrets), "sealed": sealed}).encode()
            case "GET blobs" if name in self.blobs:
                return 200, self.blobs[name]
            case "POST blobs" if self.blobs.keys() >= set(json.loads(body)["digests"]):
                return 200, b"".join(self._frame(digest) for digest in json.loads(body)["digests"])
            case _:
                return 404, _problem("NotFound", f"no {request}")

    def _frame(self, digest: str) -> bytes:
        content = self.blobs[digest]
        return bytes.fromhex(digest) + len(content).to_bytes(8, "big") + content


def _problem(error: str, message: str) -> bytes:
    return json.dumps({"error": error, "message": message, "field": None}).encode()


def _unpack(body: bytes) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    position = 0
    while position < len(body):
        start = position + 4 + int.from_bytes(body[position : position + 4], "big")
        header = json.loads(body[position + 4 : start])
        position = start + header["size"]
        files[header["path"]] = body[start:position]
        assert len(files[header["path"]]) == header["size"], "a frame is cut short"
    return files


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, receiver: Receiver, port: int) -> None:
        self.receiver = receiver
        self._connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _Handler)

    def abort(self) -> None:
        self.shutdown()
        self.server_close()
        for connection in list(
            self._connections
        ):  # handlers would continue to answer on open connections
            _shut_down(connection)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._connections.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: killed runners break connections all the time."""


def _shut_down(connection: socket.socket) -> None:
    with suppress(OSError):  # the other end has closed it
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_GET(self) -> None:
        self._reply()

    do_POST = do_PUT = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the receiver records the requests."""

    def _reply(self) -> None:
        body = self.rfile.read(size := int(self.headers.get("Content-Length") or 0))
        if len(body) < size:  # the connection broke: the request is incomplete
            self.close_connection = True
            return
        receiver = cast("_Server", self.server).receiver
        if not self.path.startswith("/api/attempts/"):
            receiver.tracking.append((self.path, self.headers.get("Authorization", "")))
            self._send(200, b"{}", {})
            return
        request = receiver.verify(self.command, self.path, dict(self.headers), body)
        if request is None:
            self._send(401, _problem("Unauthorized", "this request has no valid proof"), {})
            return
        nonce, content = request
        status, answer = receiver.answer(self.command, self.path, content)
        self._send(status, *receiver.prove(nonce, self.path, status, answer))

    def _send(self, status: int, answer: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Length", str(len(answer)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer)
