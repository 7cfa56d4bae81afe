"""A real server for runners to report to: it plays the door of attempts, and forgets nothing."""

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


@dataclass
class Reports:
    """All that was heard of one attempt."""

    events: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    streams: dict[str, bytearray] = field(default_factory=dict[str, bytearray])
    outputs: dict[str, bytes] = field(default_factory=dict[str, bytes])
    tracks: dict[str, bytearray] = field(default_factory=dict[str, bytearray])
    carried: int = 0  # bytes of streams that were sent, those sent again too
    canceled: bool = False  # the order it gets with the next answer
    over: bool = False  # nothing more is wanted of it

    @property
    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.events]

    @property
    def finished(self) -> dict[str, Any]:
        """Return the last word on the attempt."""
        found = [event for event in self.events if event["kind"] == "finished"]
        assert len(found) == 1, f"ended {len(found)} times: {self.kinds}"
        return found[0]

    def stream(self, name: str = "output") -> bytes:
        return bytes(self.streams.get(name, b""))

    def take(self, events: list[dict[str, Any]]) -> int:
        """Take in what is new and follows on; return how many there are."""
        for event in events:
            if event["seq"] == len(self.events) + 1:
                self.events.append(event)
        return len(self.events)

    @property
    def tracked(self) -> list[dict[str, Any]]:
        """Return the lines that the script has logged, process by process."""
        return [json.loads(line) for held in self.tracks.values() for line in held.splitlines()]

    def append(self, name: str, offset: int, content: bytes) -> int:
        """Take in what is new and leaves no gap; return the stream's size."""
        self.carried += len(content)
        return _grow(self.streams.setdefault(name, bytearray()), offset, content)

    def track_in(self, name: str, offset: int, lines: bytes) -> int:
        """Take in lines that are new and leave no gap; return how many bytes there are."""
        assert lines.endswith(b"\n"), "a line is cut"
        return _grow(self.tracks.setdefault(name, bytearray()), offset, lines)


def _grow(held: bytearray, offset: int, content: bytes) -> int:
    if offset <= len(held) < offset + len(content):
        held += content[len(held) - offset :]
    return len(held)


class Receiver:
    """A server on loopback that can be stopped, started again, and told to refuse things."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(16)
        self.port = 0
        self.blobs: dict[str, bytes] = {}
        self.refuses: set[str] = set()  # of events, streams, outputs, blobs: what gets a 503
        self.pause = 0.0  # seconds that taking in a part of a stream lasts
        self.requests: list[str] = []  # "PUT streams/output", in the order they came
        self._attempts: dict[str, Reports] = {}
        self._changed = threading.Condition()
        self._server: _Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, *, elsewhere: bool = False) -> None:
        """Listen again, at the port it had unless it is to be another one."""
        if self._server is None:
            self._server = _Server(self, self.port)
            while elsewhere and self._server.server_port == self.port:
                self._server.server_close()
                self._server = _Server(self, 0)
            self.port = self._server.server_port
            threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Go away in mid-sentence, as a server that is killed does."""
        if self._server is not None:
            self._server.leave()
            self._server = None

    def heard(self, key: str) -> Reports:
        with self._changed:
            return self._attempts.setdefault(key, Reports())

    def wait(self, key: str, until: Callable[[Reports], object], *, patience: float) -> Reports:
        """Wait until something was heard of an attempt, and return all that was."""
        reports, deadline = self.heard(key), time.monotonic() + patience
        with self._changed:
            met = self._changed.wait_for(lambda: until(reports), deadline - time.monotonic())
        assert met, f"not heard in {patience} s; only {reports.kinds}, {list(reports.streams)}"
        return reports

    def keep(self, content: bytes) -> str:
        """Have a blob to give out."""
        digest = digest_bytes(content)
        self.blobs[digest] = content
        return digest

    def snapshot(
        self,
        files: dict[str, bytes],
        *,
        executable: tuple[str, ...] = (),
        links: dict[str, str] | None = None,
    ) -> str:
        """Have a code folder to give out, and return the digest of its manifest."""
        entries = [
            Entry(path, len(content), self.keep(content), executable=path in executable)
            for path, content in files.items()
        ]
        entries += [Entry(path, link=link) for path, link in (links or {}).items()]
        return self.keep(Manifest(tuple(entries)).encode())

    def answer(self, method: str, address: str, token: str, body: bytes) -> tuple[int, bytes]:
        """Answer a request, as the server's routes under /api/attempts do."""
        parts = urlsplit(address)
        _, _, _, key, what = parts.path.split("/", 4)
        noun, _, rest = what.partition("/")
        if noun == "streams":
            time.sleep(self.pause)
        with self._changed:
            self.requests.append(f"{method} {what}")
            reports = self._attempts.setdefault(key, Reports())
            self._changed.notify_all()
            if token != f"Bearer {self.token}":
                return 401, _problem("Unauthorized", "that token does not open this attempt")
            if reports.over:
                return 410, _problem("Gone", "that attempt is over")
            if noun in self.refuses:
                return 503, _problem("TargetUnreachable", "not now")
            offset = int(parse_qs(parts.query).get("offset", ["0"])[0])
            return self._take(reports, f"{method} {noun}", (unquote(rest), offset), body)

    def _take(
        self, reports: Reports, request: str, about: tuple[str, int], body: bytes
    ) -> tuple[int, bytes]:
        name, offset = about
        match request:
            case "POST events":
                confirmed = reports.take(json.loads(body)["events"])
                order = "cancel" if reports.canceled else None
                return 200, json.dumps({"confirmed": confirmed, "order": order}).encode()
            case "PUT streams" if len(name) > 200:
                return 422, _problem("Invalid", "that is not the name of a stream")
            case "PUT streams":
                return 200, json.dumps({"size": reports.append(name, offset, body)}).encode()
            case "PUT track":
                size = reports.track_in(name, offset, body)
                return 200, json.dumps({"size": size, "refused": []}).encode()
            case "POST outputs":
                outputs = _unpack(body)
                reports.outputs.update(outputs)
                return 200, json.dumps({"kept": len(outputs), "refused": []}).encode()
            case "GET blobs" if name in self.blobs:
                return 200, self.blobs[name]
            case "POST blobs" if self.blobs.keys() >= set(json.loads(body)["digests"]):
                return 200, b"".join(self._frame(each) for each in json.loads(body)["digests"])
            case _:
                return 404, _problem("NotFound", f"no {request}")

    def _frame(self, digest: str) -> bytes:
        content = self.blobs[digest]
        return bytes.fromhex(digest) + len(content).to_bytes(8, "big") + content


def _problem(error: str, message: str) -> bytes:
    return json.dumps({"error": error, "message": message, "field": None}).encode()


def _unpack(body: bytes) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    at = 0
    while at < len(body):
        start = at + 4 + int.from_bytes(body[at : at + 4], "big")
        header = json.loads(body[at + 4 : start])
        at = start + header["size"]
        found[header["path"]] = body[start:at]
        assert len(found[header["path"]]) == header["size"], "a frame is cut short"
    return found


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, receiver: Receiver, port: int) -> None:
        self.receiver = receiver
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _Handler)

    def leave(self) -> None:
        self.shutdown()
        self.server_close()
        for connection in list(self._open):  # kept alive, they would go on being answered
            _break_off(connection)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._open.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: runners are killed in mid-sentence here all the time."""


def _break_off(connection: socket.socket) -> None:
    with suppress(OSError):  # the other end was faster
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_GET(self) -> None:
        self._reply()

    do_POST = do_PUT = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the terminal clean: the receiver remembers the requests itself."""

    def _reply(self) -> None:
        body = self.rfile.read(size := int(self.headers.get("Content-Length") or 0))
        if len(body) < size:  # broken off: what came is not the request
            self.close_connection = True
            return
        receiver = cast("_Server", self.server).receiver
        token = self.headers.get("Authorization", "")
        status, answer = receiver.answer(self.command, self.path, token, body)
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
