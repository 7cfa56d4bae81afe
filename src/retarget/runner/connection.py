"""Proven connections to the server of an attempt.

Whatever has the server's address may answer, such as a program that took its port while it was
away. So each connection begins with a handshake, and each answer is verified. An answer without a
valid proof means nothing but that the server was not reached.
"""

from __future__ import annotations

import http.client
import io
import select
import socket
import time
from collections.abc import Iterable, Iterator
from typing import Any, cast
from urllib.parse import urlsplit

from retarget.runner.errors import Unreachable
from retarget.runner.folder import Folder, server_url
from retarget.runner.proof import (
    DIGEST_HEADER,
    NONCE_HEADER,
    PROOF_HEADER,
    TRAILER,
    TRAILER_BYTES,
    TrailedBody,
    Trailer,
    digest_of,
    is_same,
    new_nonce,
    prove_answer,
    prove_request,
)

HANDSHAKE_PATH = "/proof"
_TIMEOUT_SECONDS = 30.0  # for an answer, unless its content is streamed
_CHUNK_SECONDS = 300.0  # for a chunk of a streamed content, on a slow network
_CHUNK_BYTES = 1 << 20
_MAX_ANSWER_BYTES = 1 << 26  # of one that is not streamed
_ERRORS = (OSError, http.client.HTTPException)
_READ_ERRORS = (*_ERRORS, ValueError, OverflowError, MemoryError)  # such as for a false length
_idle: dict[str, http.client.HTTPConnection] = {}  # by URL, for the next launch of this process


class _TimedReader(io.RawIOBase):
    """Reads from a socket until a deadline: an answer that comes byte by byte must end as well."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        self.deadline = time.monotonic() + _TIMEOUT_SECONDS

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        remaining = self.deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(remaining)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp.close()
        self.reader = _TimedReader(sock)
        self.fp = io.BufferedReader(self.reader)

    def allow(self, seconds: float) -> None:
        """Set the deadline for what is read next."""
        self.reader.deadline = time.monotonic() + seconds


class _OnePacketConnection(http.client.HTTPConnection):
    """Sends the head of a request together with its body; `http.client` sends two packets."""

    holds_head = False  # the next bytes are a head, and a body follows
    _head = b""

    def send(self, data: Any) -> None:
        if self.holds_head:
            self.holds_head, self._head = False, data
            return
        head, self._head = self._head, b""
        super().send(head + data if head else data)


class Request:
    """What to ask the server of an attempt. With `length`, the body is streamed."""

    def __init__(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] = b"",
        *,
        media_type: str = "application/octet-stream",
        length: int | None = None,
    ) -> None:
        self.method = method
        self.path = path
        self.body = body
        self.media_type = media_type
        self.length = length


class Answer:
    """An answer whose head is proven. Its content is proven once it has been read."""

    def __init__(self, response: _Response, contact: dict[str, str], nonce: str) -> None:
        self._response = response
        self._url = contact["url"]
        self.status = response.status
        self._digest = response.headers.get(DIGEST_HEADER, "")
        proof = response.headers.get(PROOF_HEADER, "")
        expected = prove_answer(contact["runner_key"], nonce, response.status, self._digest)
        if not is_same(proof, expected):
            raise _unproven(self._url, f"it answered {response.status} without a valid proof")
        self._trailer = Trailer(contact["runner_key"], "answer", nonce)

    def read(self) -> bytes:
        if self._digest == TRAILER:
            return b"".join(self.chunks())
        content = b"".join(self._read_chunks(_MAX_ANSWER_BYTES))
        if not is_same(digest_of(content), self._digest):
            raise _unproven(self._url, "its response was altered")
        return content

    def chunks(self) -> Iterator[bytes]:
        """Yield a content that has a trailer. Use it only once this has ended without an error."""
        body = TrailedBody(self._trailer)
        for chunk in self._read_chunks():
            yield body.add(chunk)
        if self._digest != TRAILER or not body.is_proven():
            raise _unproven(self._url, "its response was altered or cut short")

    def _read_chunks(self, limit: int | None = None) -> Iterator[bytes]:
        size = 0
        while True:
            if limit is None:
                self._response.allow(_CHUNK_SECONDS)
            try:
                chunk = self._response.read(_CHUNK_BYTES)
            except _READ_ERRORS as error:
                cause = _describe(error)
                raise Unreachable(f"lost the connection to {self._url}: {cause}") from error
            if not chunk:
                return
            size += len(chunk)
            if limit is not None and size > limit:
                raise _unproven(self._url, "its response is too large")
            yield chunk


class Connection:
    """Opens a connection when it is needed, and keeps it. Not thread-safe."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._http: http.client.HTTPConnection | None = None
        self._contact: dict[str, str] = {}
        self.count = 0  # of the connections so far

    def contact(self) -> dict[str, str]:
        # Read again for every new connection: a restarted server may be elsewhere.
        if not self._is_open() or not self._contact:
            self._contact = read_contact(self._folder)
        return self._contact

    def send(self, request: Request) -> Answer:
        contact = self.contact()
        try:
            if self._http is None or not self._is_open():
                self._http = _take_idle(contact["url"]) or connect(contact)
                self.count += 1
            return _send(self._http, contact, request)
        except BaseException:
            self.close()
            raise

    def _is_open(self) -> bool:
        """False after an answer with `Connection: close`: the next peer must prove itself first."""
        return self._http is not None and self._http.sock is not None

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    def keep(self) -> None:
        """Keep the connection, if there is one, for the next launch of this process."""
        if self._http is not None:
            _idle[self._contact["url"]] = self._http
            self._http = None


def read_contact(folder: Folder) -> dict[str, str]:
    """Return how the server is reached now."""
    contact = folder.read("launch.json")["contact"]
    return dict(contact, url=server_url(contact))


def connect(contact: dict[str, str]) -> http.client.HTTPConnection:
    """Open a connection. Only the handshake is sent before the other end has proven itself."""
    address = urlsplit(contact["url"])
    kind: type[http.client.HTTPConnection] = _OnePacketConnection
    if address.scheme == "https":
        kind = http.client.HTTPSConnection
    connection = kind(address.hostname or "", address.port, timeout=_TIMEOUT_SECONDS)
    connection.response_class = _Response
    try:
        _send(connection, contact, Request("GET", HANDSHAKE_PATH)).read()
    except BaseException:
        connection.close()
        raise
    if connection.sock is None:
        raise Unreachable(
            f"the server at {contact['url']}, or a proxy before it, closes each connection after "
            "one response; let it keep connections open"
        )
    connection.auto_open = 0  # to open it again would skip the handshake
    return connection


def _send(
    connection: http.client.HTTPConnection, contact: dict[str, str], request: Request
) -> Answer:
    nonce, body = new_nonce(), request.body
    if isinstance(body, bytes):
        digest, length = digest_of(body), len(body)
    else:
        digest, length = TRAILER, (request.length or 0) + TRAILER_BYTES
        body = _with_trailer(body, Trailer(contact["runner_key"], "request", nonce))
    target = contact["path"] + request.path
    headers = {
        NONCE_HEADER: nonce,
        DIGEST_HEADER: digest,
        PROOF_HEADER: prove_request(contact["runner_key"], nonce, request.method, target, digest),
        "Content-Type": request.media_type,
        "Content-Length": str(length),
    }
    if isinstance(connection, _OnePacketConnection) and isinstance(body, bytes):
        connection.holds_head = 0 < len(body) <= _CHUNK_BYTES
    if connection.sock is not None:
        connection.sock.settimeout(_TIMEOUT_SECONDS)
    try:
        connection.request(request.method, target, body=body, headers=headers)
        response = cast("_Response", connection.getresponse())
    except _ERRORS as error:
        url = contact["url"]
        raise Unreachable(f"cannot reach the server at {url}: {_describe(error)}") from error
    return Answer(response, contact, nonce)


def _with_trailer(chunks: Iterable[bytes], trailer: Trailer) -> Iterator[bytes]:
    for chunk in chunks:
        yield trailer.add(chunk)
    yield trailer.value()


def _take_idle(url: str) -> http.client.HTTPConnection | None:
    """Return a connection that was kept, unless the server has closed it."""
    connection = _idle.pop(url, None)
    if connection is None or connection.sock is None:
        return None
    if select.select([connection.sock], [], [], 0)[0]:
        connection.close()
        return None
    return connection


def _unproven(url: str, cause: str) -> Unreachable:
    return Unreachable(f"the program at {url} is not this job's server: {cause}")


def _describe(error: BaseException) -> str:
    """Describe an error without what the other end has sent: anything may have sent it."""
    return str(error) if isinstance(error, OSError) else type(error).__name__
