"""Sends the lines that `retarget.track` has written to the server, each exactly once."""

from __future__ import annotations

import os
import re

from retarget.runner.errors import Refused
from retarget.runner.files import open_plain
from retarget.runner.folder import Folder
from retarget.runner.secrets import Secrets
from retarget.runner.server import Server

_CHUNK_BYTES = 1 << 18  # in one request, which the server handles as one transaction
_MAX_LINE_BYTES = 4 << 20  # those of `track` are shorter
_MAX_MESSAGES = 50
_NAME = re.compile(r"[\w.-]{1,100}\Z", re.ASCII)


class Lines:
    def __init__(self, folder: Folder, secrets: Secrets | None = None) -> None:
        self._folder = folder
        self._secrets = secrets
        self._offsets: dict[str, int] = {}
        self._skipped: set[str] = set()  # files that are not sent
        self._refused: dict[str, int] = {}  # by file: the connection that refused it last
        self._messages: set[str] = set()

    def send(self, server: Server, *, last: bool = False) -> None:
        """Send all complete lines. `last`: nobody writes any more, so report a line cut short."""
        try:
            names = sorted(os.listdir(self._folder.track))
        except FileNotFoundError:
            return
        for name in names:
            if name.endswith(".jsonl") and name not in self._skipped:
                self._send(server, name, last)

    def _send(self, server: Server, name: str, last: bool) -> None:
        path = os.path.join(self._folder.track, name)
        try:
            size = _size(path)
            if not _NAME.match(name):
                raise OSError("not a file name of `track`")
        except OSError as error:
            self._skipped.add(name)
            self._log_once(f"{name!r} is skipped: {error.strerror or error}")
            return
        while not self._is_refused(server, name) and self._offsets.get(name, 0) < size:
            content = _whole_lines(path, self._offsets.get(name, 0))
            if not content:
                break
            self._put(server, name, content, size)
        if last and self._offsets.get(name, 0) < size and not self._is_refused(server, name):
            self._log_once("a process was killed while it logged; its incomplete line is skipped")

    def _is_refused(self, server: Server, name: str) -> bool:
        """Return whether the server refused a file on this connection. The next one may not."""
        return self._refused.get(name) == server.connections

    def _put(self, server: Server, name: str, content: bytes, size: int) -> None:
        masker = None if self._secrets is None else self._secrets.masker(server)
        if masker is not None:
            content = masker.lines(content)
        try:
            offset = self._offsets.get(name, 0)
            answer = server.track(name, offset, content)
        except Refused as error:
            self._refused[name] = server.connections
            self._log_once(f"the server refused {name}: {error}")
            return
        self._offsets[name] = min(int(answer["size"]), max(size, offset + len(content)))
        for reason in answer.get("refused", []):
            self._log_once(str(reason))

    def _log_once(self, message: str) -> None:
        if message not in self._messages and len(self._messages) < _MAX_MESSAGES:
            self._messages.add(message)
            self._folder.log(f"retarget: track: {message}")


def _size(path: str) -> int:
    with open_plain(path) as file:  # so it is readable
        return os.fstat(file.fileno()).st_size


def _whole_lines(path: str, offset: int) -> bytes:
    with open_plain(path) as file:
        file.seek(offset)
        content = file.read(_CHUNK_BYTES)
        if b"\n" not in content and len(content) == _CHUNK_BYTES:
            content += file.read(_MAX_LINE_BYTES)
    return content[: content.rfind(b"\n") + 1]
