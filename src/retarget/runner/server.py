"""The server, as the runner sees it: one kept-alive connection to its own attempt's door."""

from __future__ import annotations

import http.client
import json
import os
import select
import time
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote, urlsplit

from retarget.runner.errors import Over, Refused, Unreachable
from retarget.runner.folder import Folder, address

_TIMEOUT = 30.0
_CHUNK = 1 << 20
_BYTES = "application/octet-stream"
_NO_ANSWER = (OSError, http.client.HTTPException)
_NEVER = (403, 404, 413, 422)
_kept: dict[str, http.client.HTTPConnection] = {}  # by address, for the next launch of this process


class _Joined(http.client.HTTPConnection):
    """Sends the head of a request with its body, where `http.client` sends two packets."""

    joins = False  # the next thing to be sent is a head, and a body follows
    _head = b""

    def send(self, data: Any) -> None:
        if self.joins:
            self.joins, self._head = False, data
            return
        head, self._head = self._head, b""
        super().send(head + data if head else data)


class Server:
    """Not for two threads at once: each makes its own."""

    def __init__(self, folder: Folder, node: int = 0) -> None:
        self._folder = folder
        self._node = node  # which one of several this is
        self._connection: http.client.HTTPConnection | None = None
        self._contact: dict[str, str] = {}

    @property
    def exists(self) -> bool:
        """False for a launch that reports to nobody."""
        return bool(self._read_contact()["url"])

    def report(self, events: list[dict[str, Any]]) -> dict[str, Any]:
        told: dict[str, Any] = {"events": events, "now": time.time()}
        if self._node:
            told["node"] = self._node
        return self._ask("POST", "/events", json.dumps(told).encode(), "confirmed")

    def append(self, stream: str, offset: int, content: bytes) -> int:
        """Send bytes of a stream and return how many the server has of it."""
        path = f"/streams/{quote(stream)}?offset={offset}"
        return int(self._ask("PUT", path, content, "size")["size"])

    def track(self, name: str, offset: int, content: bytes) -> dict[str, Any]:
        """Send lines of a track file. The answer: how far it is taken in, and what is refused."""
        return self._ask("PUT", f"/track/{quote(name)}?offset={offset}", content, "size")

    def collect(self, body: Iterable[bytes], length: int) -> list[str]:
        """Send files, as frames. The answer: sentences about what is not kept."""
        path = f"/outputs?node={self._node}" if self._node else "/outputs"
        return self._ask("POST", path, body, "kept", length=length).get("refused", [])

    def download(self, digest: str, path: str, part: str) -> None:
        response = self._request("GET", f"/blobs/{digest}")
        try:
            with open(part, "wb") as file:
                for chunk in iter(lambda: response.read(_CHUNK), b""):
                    file.write(chunk)
            if response.length:
                raise http.client.IncompleteRead(b"")
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Unreachable(f"the connection broke off: {error}") from error
        os.rename(part, path)

    def download_many(self, digests: list[str]) -> Iterator[tuple[str, bytes]]:
        body = json.dumps({"digests": digests}).encode()
        response = self._request("POST", "/blobs", body)
        try:
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Unreachable(f"the connection broke off: {error}") from error
        view, at = memoryview(content), 0
        while at < len(view):
            digest = bytes(view[at : at + 32]).hex()
            size = int.from_bytes(view[at + 32 : at + 40], "big")
            if len(view) < at + 40 + size:
                raise Unreachable("the connection broke off in the middle of a file")
            yield digest, bytes(view[at + 40 : at + 40 + size])
            at += 40 + size

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def keep(self) -> None:
        """Leave the connection, if there is one, to the next launch that this process works on."""
        if self._connection is not None:
            _kept[self._contact["url"]] = self._connection
            self._connection = None

    def _ask(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes],
        tells: str,
        *,
        length: int | None = None,
    ) -> dict[str, Any]:
        """Return an answer that has a number by this name; any other is not our server's."""
        response = self._request(method, path, body, length=length)
        try:
            answer = json.loads(response.read())
            if type(answer[tells]) is not int:
                raise ValueError(f"it does not tell {tells}")
            return answer
        except (*_NO_ANSWER, ValueError, KeyError, TypeError, RecursionError) as error:
            self.close()
            raise Unreachable(f"the connection broke off: {error}") from error

    def _request(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] = b"",
        *,
        length: int | None = None,
    ) -> http.client.HTTPResponse:
        contact = self._read_contact()
        kind = "application/json" if method == "POST" and length is None else _BYTES
        headers = {"Authorization": f"Bearer {contact['token']}", "Content-Type": kind}
        if length is not None:
            headers["Content-Length"] = str(length)
        try:
            connection = self._connect(contact["url"])
            if isinstance(connection, _Joined) and isinstance(body, bytes):
                connection.joins = 0 < len(body) <= _CHUNK
            connection.request(method, f"{contact['path']}{path}", body=body, headers=headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Unreachable(f"cannot reach the server at {contact['url']}: {error}") from error
        if response.status < 300:
            return response
        return self._refused(response)

    def _refused(self, response: http.client.HTTPResponse) -> http.client.HTTPResponse:
        try:
            answer = response.read()
        except (OSError, http.client.HTTPException):
            answer = b""
        self.close()
        if response.status == 410:
            raise Over(_message(answer))
        # In our own server's words only: another program may have its port for a while.
        if response.status in _NEVER and b'"error"' in answer:
            raise Refused(_message(answer))
        raise Unreachable(f"the server answered {response.status}: {_message(answer)}")

    def _connect(self, url: str) -> http.client.HTTPConnection:
        if self._connection is None:
            self._connection = _take_kept(url)
        if self._connection is None:
            parts = urlsplit(url)
            kind: type[http.client.HTTPConnection] = _Joined
            if parts.scheme == "https":
                kind = http.client.HTTPSConnection
            self._connection = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT)
        return self._connection

    def _read_contact(self) -> dict[str, str]:
        # Read again whenever the connection is made anew: a restarted server may be elsewhere.
        if self._connection is None or not self._contact:
            contact = self._folder.read("launch.json")["contact"]
            self._contact = dict(contact, url=address(contact))
        return self._contact


def _take_kept(url: str) -> http.client.HTTPConnection | None:
    """Return a connection that was kept, unless the server has closed it meanwhile."""
    connection = _kept.pop(url, None)
    if connection is None or connection.sock is None:
        return None
    if select.select([connection.sock], [], [], 0)[0]:
        connection.close()
        return None
    return connection


def _message(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return answer[:200].decode("utf-8", "replace")
