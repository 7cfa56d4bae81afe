"""Brings the lines that `retarget.track` has written to the server, each of them once."""

from __future__ import annotations

import os
import re

from retarget.runner.errors import Refused
from retarget.runner.files import open_plain
from retarget.runner.folder import Folder
from retarget.runner.server import Server

_CHUNK = 1 << 18  # bytes in one request: the server takes them in as one transaction
_LONGEST = 4 << 20  # bytes of a line; ours are shorter
_MOST_SAID = 50
_NAME = re.compile(r"[\w.-]{1,100}\Z", re.ASCII)


class Lines:
    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._offsets: dict[str, int] = {}
        self._refused: set[str] = set()  # files that the server will never take
        self._said: set[str] = set()

    def send(self, server: Server, *, last: bool = False) -> None:
        """Send all whole lines there are. `last`: nobody writes any more, so say what is cut."""
        try:
            names = sorted(os.listdir(self._folder.track))
        except FileNotFoundError:
            return
        for name in names:
            if name.endswith(".jsonl") and name not in self._refused:
                self._send(server, name, last)

    def _send(self, server: Server, name: str, last: bool) -> None:
        path = os.path.join(self._folder.track, name)
        try:
            size = _size(path)
            if not _NAME.match(name):
                raise OSError("that is not the name of a file of `track`")
        except OSError as error:
            self._refused.add(name)
            self._say(f"{name!r} is left out: {error.strerror or error}")
            return
        while name not in self._refused and self._offsets.get(name, 0) < size:
            content = _whole_lines(path, self._offsets.get(name, 0))
            if not content:
                break
            self._put(server, name, content)
        if last and self._offsets.get(name, 0) < size:
            self._say("what a process logged last was cut short when it was killed; it is left out")

    def _put(self, server: Server, name: str, content: bytes) -> None:
        try:
            answer = server.track(name, self._offsets.get(name, 0), content)
        except Refused as error:
            self._refused.add(name)
            self._say(f"what {name} has is not taken in: {error}")
            return
        self._offsets[name] = int(answer["size"])
        for reason in answer.get("refused", []):
            self._say(str(reason))

    def _say(self, text: str) -> None:
        if text not in self._said and len(self._said) < _MOST_SAID:
            self._said.add(text)
            self._folder.say(f"retarget: track: {text}")


def _size(path: str) -> int:
    with open_plain(path) as file:  # it can be read
        return os.fstat(file.fileno()).st_size


def _whole_lines(path: str, offset: int) -> bytes:
    with open_plain(path) as file:
        file.seek(offset)
        content = file.read(_CHUNK)
        if b"\n" not in content and len(content) == _CHUNK:
            content += file.read(_LONGEST)
    return content[: content.rfind(b"\n") + 1]
