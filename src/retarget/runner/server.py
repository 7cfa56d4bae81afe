"""The runner's client of the server: its attempt's endpoints, over one proven connection."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

from retarget.runner.connection import Answer, Connection, Request
from retarget.runner.errors import AttemptOver, NoSpace, Refused, Unreachable
from retarget.runner.folder import Folder
from retarget.runner.sealing import unseal

_BINARY, _JSON = "application/octet-stream", "application/json"
_WHOLE_STATUS = 200
_OVER_STATUS = 410
_PERMANENT_STATUSES = (403, 404, 413, 422)
_FULL_STATUS = 507


class Server:
    """Not thread-safe: every thread needs its own."""

    def __init__(self, folder: Folder, node: int = 0) -> None:
        self._connection = Connection(folder)
        self._node = node  # the index of this node

    @property
    def exists(self) -> bool:
        """False for a launch that reports to nobody."""
        return bool(self._connection.contact()["url"])

    @property
    def connections(self) -> int:
        """Count the connections so far. What was refused on one is tried again on the next."""
        return self._connection.count

    def report(self, events: list[dict[str, Any]]) -> dict[str, Any]:
        body: dict[str, Any] = {"events": events, "now": time.time()}
        if self._node:
            body["node"] = self._node
        return self._request_json("POST", "/events", json.dumps(body).encode(), "events_acked")

    def append(
        self, stream: str, offset: int, content: bytes, marks: list[tuple[int, float]] | None = None
    ) -> int:
        """Send bytes of a stream, and its sizes over time; return how much the server has."""
        path = f"/streams/{quote(stream)}?offset={offset}"
        if marks:
            times = ",".join(f"{size}@{at:.3f}" for size, at in marks)
            path += f"&times={times}&now={time.time():.3f}"
        return int(self._request_json("PUT", path, content, "size")["size"])

    def track(self, name: str, offset: int, content: bytes) -> dict[str, Any]:
        """Send lines of a track file. Return how many bytes are accepted, and what is refused."""
        path = f"/track/{quote(name)}?offset={offset}"
        return self._request_json("PUT", path, content, "size")

    def send_files(self, body: Iterable[bytes], length: int) -> list[str]:
        """Send files, as frames. Return a sentence for each file that the server refuses."""
        path = f"/outputs?node={self._node}" if self._node else "/outputs"
        return self._request_json("POST", path, body, "kept", length=length).get("refused", [])

    def secrets(self) -> dict[str, str]:
        """Return the values of the launch's secrets."""
        answer = self._request_json("POST", "/secrets", b"{}", "count")
        try:
            key = self._connection.contact()["runner_key"]
            values: dict[str, str] = json.loads(unseal(key, answer["sealed"]))
        except (ValueError, KeyError, TypeError) as error:
            raise Unreachable(f"the server's response has no secrets: {error}") from error
        return values

    def download(self, digest: str, path: str, part: str) -> None:
        answer = self._request("GET", f"/blobs/{digest}")
        if answer.status != _WHOLE_STATUS:
            self.close()
            raise Unreachable(f"the server answered {answer.status} instead of the whole file")
        try:
            with open(part, "wb") as file:
                for chunk in answer.chunks():
                    file.write(chunk)
        except (Unreachable, OSError):
            self.close()
            raise
        os.rename(part, path)

    def download_many(self, digests: list[str]) -> Iterator[tuple[str, bytes]]:
        body = json.dumps({"digests": digests}).encode()
        answer = self._request("POST", "/blobs", body, media_type=_JSON)
        content = self._read(answer)
        view, offset = memoryview(content), 0
        while offset < len(view):
            digest = bytes(view[offset : offset + 32]).hex()
            size = int.from_bytes(view[offset + 32 : offset + 40], "big")
            if len(view) < offset + 40 + size:
                raise Unreachable("the connection was lost in the middle of a file")
            yield digest, bytes(view[offset + 40 : offset + 40 + size])
            offset += 40 + size

    def close(self) -> None:
        self._connection.close()

    def keep(self) -> None:
        """Keep the connection, if there is one, for the next launch of this process."""
        self._connection.keep()

    def _request_json(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes],
        key: str,
        *,
        length: int | None = None,
    ) -> dict[str, Any]:
        """Return an answer that has an integer under `key`."""
        media_type = _JSON if method == "POST" and length is None else _BINARY
        content = self._read(self._request(method, path, body, media_type, length=length))
        try:
            answer = json.loads(content)
            if type(answer[key]) is not int:
                raise ValueError(f"the response has no integer {key!r}")
            return answer
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            self.close()
            raise Unreachable(f"the server's response cannot be read: {error}") from error

    def _request(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] = b"",
        media_type: str = _BINARY,
        *,
        length: int | None = None,
    ) -> Answer:
        answer = self._connection.send(
            Request(method, path, body, media_type=media_type, length=length)
        )
        if answer.status >= 300:
            self._raise_for(answer)
        return answer

    def _raise_for(self, answer: Answer) -> None:
        """Raise what a proven answer means. Only the server itself can end or refuse anything."""
        message = _message(self._read(answer))
        if answer.status == _OVER_STATUS:
            raise AttemptOver(message)
        if answer.status in _PERMANENT_STATUSES:
            raise Refused(message)
        self.close()
        failure = NoSpace if answer.status == _FULL_STATUS else Unreachable
        raise failure(f"the server answered {answer.status}: {message}")

    def _read(self, answer: Answer) -> bytes:
        try:
            return answer.read()
        except Unreachable:
            self.close()
            raise


def _message(content: bytes) -> str:
    try:
        return str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return content[:200].decode("utf-8", "replace")
