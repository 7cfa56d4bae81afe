"""What goes over one pipe between a driver and the agent on its machine: requests, and doors.

Either end asks and answers; connections to a port on one machine are carried to the other. Each of
them may have so much under way and no more, so that one that stalls holds up no other.
"""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any, Awaitable, Callable, Dict

_HEAD = struct.Struct(">BII")
_LENGTH = struct.Struct(">I")
_REQUEST, _ANSWER, _OPEN, _DATA, _CLOSE, _MORE = range(1, 7)
_CHUNK = 1 << 16
_WINDOW = 1 << 20  # bytes of one connection that may be under way
_LARGEST = 64 << 20  # of a frame: more is not ours
Answer = Callable[[Dict[str, Any], bytes], Awaitable[Any]]
Opened = Callable[["Channel"], Awaitable[None]]


class Broken(Exception):
    """The link is no more, or what came over it is not of ours."""


class Failed(Exception):
    """The other end could not do what it was asked; the text says why."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class Link:
    """One end. `reader` and `writer` are asyncio's, or behave like them."""

    def __init__(self, reader: Any, writer: Any, answer: Answer, opened: Opened) -> None:
        self._reader = reader
        self._writer = writer
        self._answer = answer
        self._opened = opened
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._channels: dict[int, Channel] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._last = 0
        self.heard = asyncio.get_running_loop().time()

    async def run(self) -> None:
        """Serve until the pipe ends. Whatever waits for something is told."""
        try:
            while True:
                kind, number, size = _HEAD.unpack(await self._reader.readexactly(_HEAD.size))
                if size > _LARGEST:
                    raise Broken(f"a frame of {size} bytes")
                content = await self._reader.readexactly(size) if size else b""
                self.heard = asyncio.get_running_loop().time()
                self._take(kind, number, content)
        except (asyncio.IncompleteReadError, OSError):
            pass  # it has ended, or was cut
        finally:
            self._end()

    async def ask(self, request: dict[str, Any], attached: bytes = b"") -> Any:
        """Have the other end do something. Failed: it could not; Broken: nobody knows."""
        self._last += 1
        number, future = self._last, asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        text = json.dumps(request).encode()
        try:
            await self.send(_REQUEST, number, _LENGTH.pack(len(text)) + text + attached)
            return await future
        finally:
            self._waiting.pop(number, None)

    async def open(self) -> Channel:
        """Open a connection to where the other end's connections go."""
        self._last += 1
        channel = self._channels[self._last] = Channel(self, self._last)
        await self.send(_OPEN, self._last)
        return channel

    async def send(self, kind: int, number: int, content: bytes = b"") -> None:
        try:
            self._writer.write(_HEAD.pack(kind, number, len(content)) + content)
            await self._writer.drain()
        except OSError as error:
            raise Broken(str(error)) from None

    def close(self, channel: Channel) -> None:
        self._channels.pop(channel.number, None)

    def _take(self, kind: int, number: int, content: bytes) -> None:
        if kind == _REQUEST:
            self._start(self._respond(number, content))
        elif kind == _ANSWER:
            self._settle(number, content)
        elif kind == _OPEN:
            channel = self._channels[number] = Channel(self, number)
            self._start(self._opened(channel))
        elif number in self._channels:
            if kind == _DATA:
                self._channels[number].take(content)
            elif kind == _MORE:
                self._channels[number].allow(_LENGTH.unpack(content)[0])
            elif kind == _CLOSE:
                self._channels.pop(number).take(b"")

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(_quietly(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _respond(self, number: int, content: bytes) -> None:
        (size,) = _LENGTH.unpack_from(content)
        start = _LENGTH.size + size
        try:
            request = json.loads(content[_LENGTH.size : start])
            told = {"result": await self._answer(request, content[start:])}
        except Exception as error:  # noqa: BLE001 - the edge: whoever asked is told
            told = {"error": in_words(error), "kind": type(error).__name__}
        await self.send(_ANSWER, number, json.dumps(told).encode())

    def _settle(self, number: int, content: bytes) -> None:
        future = self._waiting.get(number)
        if future is None or future.done():
            return
        told = json.loads(content)
        if "error" in told:
            future.set_exception(Failed(told["error"], told["kind"]))
        else:
            future.set_result(told["result"])

    def _end(self) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(Broken("the connection was lost"))
        for channel in self._channels.values():
            channel.take(b"")
        self._channels.clear()
        self._writer.close()


class Channel:
    """One connection that is carried over a link."""

    def __init__(self, link: Link, number: int) -> None:
        self.number = number
        self._link = link
        self._inbox: asyncio.Queue[bytes] = asyncio.Queue()
        self._allowed = _WINDOW
        self._more = asyncio.Event()

    def take(self, content: bytes) -> None:
        self._inbox.put_nowait(content)

    def allow(self, count: int) -> None:
        self._allowed += count
        self._more.set()

    async def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry bytes both ways until either side ends, and end both."""
        tasks = [
            asyncio.ensure_future(_quietly(self._carry_out(reader))),
            asyncio.ensure_future(_quietly(self._carry_in(writer))),
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        writer.close()
        await self.end()

    async def end(self) -> None:
        self._link.close(self)
        await _quietly(self._link.send(_CLOSE, self.number))

    async def _carry_out(self, reader: asyncio.StreamReader) -> None:
        while True:
            content = await reader.read(_CHUNK)
            if not content:
                return
            while self._allowed <= 0:
                self._more.clear()
                await self._more.wait()
            self._allowed -= len(content)
            await self._link.send(_DATA, self.number, content)

    async def _carry_in(self, writer: asyncio.StreamWriter) -> None:
        while True:
            content = await self._inbox.get()
            if not content:
                return
            writer.write(content)
            await writer.drain()
            await self._link.send(_MORE, self.number, _LENGTH.pack(len(content)))


async def _quietly(work: Awaitable[None]) -> None:
    """See work through that ends with its link or its connection."""
    try:
        await work
    except (Broken, OSError):
        pass


def in_words(error: BaseException) -> str:
    """Say what went wrong, as a person would."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__
