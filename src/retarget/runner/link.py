"""The link: requests and channels over the one pipe between a driver and its agent.

Either end may send requests and open channels. The numbers of the driver are odd, those of the
agent are even. A channel carries one connection: who opens it names its destination, and the other
end accepts it or says why not. Every channel has a window, so that one that stalls does not block
the others.
"""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any, Awaitable, Callable, Dict

_HEAD = struct.Struct(">BII")
_LENGTH = struct.Struct(">I")
_REQUEST, _ANSWER, _OPEN, _ACCEPT, _DATA, _CLOSE, _MORE = range(1, 8)
_CHUNK = 1 << 16
_WINDOW_BYTES = 1 << 20  # sent in one channel and not yet acknowledged
# a larger frame does not come from our other end
_MAX_REQUEST_BYTES = 64 << 20  # or an answer
_MAX_CHANNEL_BYTES = 1 << 16
_MAX_REASON_CHARACTERS = 1000
DRIVER, AGENT = 1, 2  # the roles of the ends, and their first numbers
Answer = Callable[[Dict[str, Any], bytes], Awaitable[Any]]
Opened = Callable[["Channel"], Awaitable[None]]


class Broken(Exception):
    """The link has closed, or received something that is not our protocol."""


class Failed(Exception):
    """The other end could not handle a request; the message says why."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class Refused(Exception):
    """A channel was not opened; the message says why."""


class Link:
    """One end of the link. `reader` and `writer` are asyncio's, or behave like them.

    `answer` handles a request of the other end. `opened` serves a channel that the other end opens:
    it accepts it, or raises an error, whose message the other end gets.
    """

    def __init__(self, reader: Any, writer: Any, answer: Answer, opened: Opened, role: int) -> None:
        self._reader = reader
        self._writer = writer
        self._answer = answer
        self._opened = opened
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._channels: dict[int, Channel] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._next = role
        self.last_seen_at = asyncio.get_running_loop().time()

    async def run(self) -> None:
        """Serve until the pipe closes. Then pending requests fail and channels close.

        Broken: the other end sent something that is not the protocol.
        """
        try:
            while True:
                kind, number, size = _HEAD.unpack(await self._reader.readexactly(_HEAD.size))
                max_size = _MAX_REQUEST_BYTES if kind in (_REQUEST, _ANSWER) else _MAX_CHANNEL_BYTES
                if size > max_size:
                    raise Broken(f"a frame of {size} bytes")
                content = await self._reader.readexactly(size) if size else b""
                self.last_seen_at = asyncio.get_running_loop().time()
                self._take(kind, number, content)
        except (asyncio.IncompleteReadError, OSError):
            pass  # the pipe was closed or cut
        finally:
            self._end()

    async def ask(self, request: dict[str, Any], attached: bytes = b"") -> Any:
        """Send a request and return the answer. Failed: it was not done; Broken: unknown."""
        number, future = self._new_number(), asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        text = json.dumps(request).encode()
        try:
            await self.send(_REQUEST, number, _LENGTH.pack(len(text)) + text + attached)
            return await future
        finally:
            self._waiting.pop(number, None)

    async def open(self, destination: dict[str, Any]) -> Channel:
        """Open a channel to a destination, such as {"to": "server"}, that the other end knows.

        It can be used at once; `accepted` waits until the other end has accepted it.
        """
        number = self._new_number()
        channel = self._channels[number] = Channel(self, number, destination)
        await self.send(_OPEN, number, json.dumps(destination).encode())
        return channel

    async def send(self, kind: int, number: int, content: bytes = b"") -> None:
        try:
            self._writer.write(_HEAD.pack(kind, number, len(content)) + content)
            await self._writer.drain()
        except OSError as error:
            raise Broken(str(error)) from None

    def remove(self, channel: Channel) -> bool:
        """Forget a channel; return False if the other end has closed it."""
        return self._channels.pop(channel.number, None) is not None

    def abort(self) -> None:
        """Close the pipe."""
        self._writer.close()

    def _new_number(self) -> int:
        number = self._next
        self._next += 2
        return number

    def _take(self, kind: int, number: int, content: bytes) -> None:
        if kind == _ANSWER:
            self._settle(number, content)
        elif kind in (_REQUEST, _OPEN):
            if number % 2 == self._next % 2:
                raise Broken(f"number {number} belongs to this end")
            if kind == _REQUEST:
                self._start(self._respond(number, *_parse_request(content)))
            else:
                self._start(self._serve(self._new_channel(number, content)))
        elif kind not in (_ACCEPT, _DATA, _MORE, _CLOSE):
            raise Broken(f"a frame of kind {kind}")
        elif number in self._channels:  # otherwise it has just been closed at this end
            self._pass_on(kind, self._channels[number], content)

    def _pass_on(self, kind: int, channel: Channel, content: bytes) -> None:
        if kind == _ACCEPT:
            channel.settle(None)
        elif kind == _DATA:
            channel.take(content)
        elif kind == _MORE:
            channel.allow(content)
        else:
            self.remove(channel)
            channel.closed(content.decode("utf-8", "replace"))

    def _new_channel(self, number: int, content: bytes) -> Channel:
        if number in self._channels:
            raise Broken(f"number {number} is in use")
        destination = _parse_object(content)
        if "to" not in destination:
            raise Broken("a channel with no destination")
        channel = self._channels[number] = Channel(self, number, destination)
        return channel

    async def _serve(self, channel: Channel) -> None:
        reason = ""
        try:
            await self._opened(channel)
        except Exception as error:  # noqa: BLE001 - the edge: the other end gets the reason
            reason = describe_error(error)
        finally:
            await channel.end(reason)

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(_quietly(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _respond(self, number: int, request: dict[str, Any], attached: bytes) -> None:
        try:
            answer = {"result": await self._answer(request, attached)}
        except Exception as error:  # noqa: BLE001 - the edge: the requester gets the error
            answer = {"error": describe_error(error), "kind": type(error).__name__}
        await self.send(_ANSWER, number, json.dumps(answer).encode())

    def _settle(self, number: int, content: bytes) -> None:
        future = self._waiting.get(number)
        if future is None or future.done():
            return
        answer = _parse_object(content)
        if not {"result", "error"} & answer.keys():
            raise Broken("an answer with neither a result nor an error")
        if "error" in answer:
            future.set_exception(Failed(str(answer["error"]), str(answer.get("kind"))))
        else:
            future.set_result(answer["result"])

    def _end(self) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(Broken("the connection was lost"))
        for channel in self._channels.values():
            channel.closed("the connection was lost")
        self._channels.clear()
        self._writer.close()


class Channel:
    """One connection in a link."""

    def __init__(self, link: Link, number: int, destination: dict[str, Any]) -> None:
        self.number = number
        self.destination = destination
        self._link = link
        self._inbox: asyncio.Queue[bytes] = asyncio.Queue()
        self._inbox_bytes = 0
        self._allowed = _WINDOW_BYTES
        self._more = asyncio.Event()
        self._accepted: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    async def accepted(self) -> None:
        """Wait until the other end has accepted the channel. Refused: it has not."""
        reason = await asyncio.shield(self._accepted)
        if reason is not None:
            raise Refused(reason)

    async def accept(self) -> None:
        """Tell the other end that its destination was reached."""
        await self._link.send(_ACCEPT, self.number)

    def settle(self, refusal: str | None) -> None:
        if not self._accepted.done():
            self._accepted.set_result(refusal)

    def take(self, content: bytes) -> None:
        self._inbox_bytes += len(content)
        if self._inbox_bytes > _WINDOW_BYTES + _CHUNK:
            raise Broken("a channel sent more than its window")
        self._inbox.put_nowait(content)

    def allow(self, content: bytes) -> None:
        if len(content) != _LENGTH.size:
            raise Broken(f"a window of {len(content)} byte(s)")
        self._allowed += _LENGTH.unpack(content)[0]
        if self._allowed > _WINDOW_BYTES:
            raise Broken("a window for what was never sent")
        self._more.set()

    def closed(self, reason: str) -> None:
        """Note that the other end has closed the channel."""
        self.settle(reason)
        self._inbox.put_nowait(b"")

    async def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy bytes in both directions until either side ends, then close both."""
        tasks = [
            asyncio.ensure_future(_quietly(self._carry_out(reader))),
            asyncio.ensure_future(_quietly(self._carry_in(writer))),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            writer.close()
        await self.end()

    async def end(self, reason: str = "") -> None:
        """Close the channel, unless it is closed."""
        if self._link.remove(self):
            content = reason[:_MAX_REASON_CHARACTERS].encode("utf-8", "replace")
            await _quietly(self._link.send(_CLOSE, self.number, content))

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
            self._inbox_bytes -= len(content)
            await self._link.send(_MORE, self.number, _LENGTH.pack(len(content)))


def _parse_request(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Return a request, and what is attached to it."""
    if len(content) < _LENGTH.size:
        raise Broken(f"a request of {len(content)} byte(s)")
    start = _LENGTH.size + _LENGTH.unpack_from(content)[0]
    return _parse_object(content[_LENGTH.size : start]), content[start:]


def _parse_object(content: bytes) -> dict[str, Any]:
    try:
        parsed: Any = json.loads(content)
        return dict(parsed.items())
    except (ValueError, AttributeError, RecursionError):
        raise Broken("content that is not a JSON object") from None


async def _quietly(work: Awaitable[None]) -> None:
    """Await something, and ignore that its link or connection has closed."""
    try:
        await work
    except (Broken, OSError):
        pass


def describe_error(error: BaseException) -> str:
    """Return an error message for people."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__
