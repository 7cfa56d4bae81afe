"""The client's end of a WebSocket (RFC 6455), over a connection that a server has upgraded."""

import os
import select
import socket
import ssl
import struct
from base64 import b64encode
from contextlib import suppress
from hashlib import sha1

from retarget.core.errors import ServerUnreachable
from retarget.sdk.http import Connection, Query

_MAX_MESSAGE_BYTES = 1 << 20
_READ_BYTES = 1 << 16
_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
_FINAL, _MASKED = 0x80, 0x80
_SHORT, _LONG = 126, 127  # lengths that announce a length of two or eight bytes
_NO_CODE = 1005


def open_websocket(connection: Connection, path: str, query: Query | None = None) -> "WebSocket":
    """Open a WebSocket. Raise the error of the server if it refuses one."""
    key = b64encode(os.urandom(16)).decode()
    headers = {"Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": key}
    raw, header, url = connection.upgrade(path, query, headers)
    digest = sha1(f"{key}{_GUID}".encode(), usedforsecurity=False).digest()
    if header("Sec-WebSocket-Accept") != b64encode(digest).decode():
        raw.close()
        raise ServerUnreachable(f"{url} did not open a WebSocket; check the proxy in between")
    return WebSocket(raw, url)


class WebSocket:
    """Sends and receives binary messages without blocking; answers pings by itself."""

    def __init__(self, connection: socket.socket, url: str) -> None:
        self._connection = connection
        self._url = url
        self._received = bytearray()
        self._parts = bytearray()  # of a message that is not complete
        self._unsent = bytearray()
        self._is_final = True
        self._is_cut = False
        self.close_code: int | None = None  # set once the server has closed it
        connection.setblocking(False)

    def fileno(self) -> int:
        return self._connection.fileno()

    def has_more(self) -> bool:
        """Return whether more has arrived than the descriptor shows."""
        return isinstance(self._connection, ssl.SSLSocket) and self._connection.pending() > 0

    @property
    def unsent_bytes(self) -> int:
        return len(self._unsent)

    def queue(self, message: bytes) -> None:
        """Add a message to those that `flush` sends."""
        self._unsent += _frame(_BINARY, message)

    def flush(self) -> None:
        """Send what the connection takes now."""
        try:
            while self._unsent:
                del self._unsent[: self._connection.send(self._unsent)]
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass
        except OSError as error:
            raise self._lost() from error

    def receive(self) -> list[bytes]:
        """Return the messages that have arrived. Raise ServerUnreachable if it was cut."""
        messages: list[bytes] = []
        self._read()
        while (frame := self._next_frame()) is not None:
            opcode, content = frame
            if opcode in (_BINARY, _TEXT, _CONTINUATION):
                self._parts += content
                if len(self._parts) > _MAX_MESSAGE_BYTES:
                    raise self._strange()
                if self._is_final:
                    messages.append(bytes(self._parts))
                    self._parts.clear()
            elif opcode == _PING:
                self._unsent += _frame(_PONG, content)
            elif opcode == _CLOSE:
                self.close_code = int.from_bytes(content[:2], "big") or _NO_CODE
                break
        if self._is_cut and not messages and self.close_code is None:
            raise self._lost()
        return messages

    def close(self) -> None:
        """Say goodbye, if the connection takes that now, and close it."""
        self._unsent += _frame(_CLOSE, struct.pack(">H", 1000))
        with suppress(ServerUnreachable):
            self.flush()
        self._connection.close()

    def _read(self) -> None:
        """Read what has arrived, up to a limit."""
        while len(self._received) < _MAX_MESSAGE_BYTES:
            try:
                content = self._connection.recv(_READ_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError:
                content = b""
            if not content:
                self._is_cut = True
                return
            self._received += content

    def _next_frame(self) -> tuple[int, bytes] | None:
        data = self._received
        if len(data) < 2:
            return None
        size, start = data[1] & ~_MASKED, 2
        if size in (_SHORT, _LONG):
            start = 4 if size == _SHORT else 10
            if len(data) < start:
                return None
            size = int.from_bytes(data[2:start], "big")
        if size > _MAX_MESSAGE_BYTES or data[1] & _MASKED:
            raise self._strange()
        if len(data) < start + size:
            return None
        opcode, self._is_final = data[0] & 0x0F, bool(data[0] & _FINAL)
        content = bytes(data[start : start + size])
        del data[: start + size]
        return opcode, content

    def _strange(self) -> ServerUnreachable:
        return ServerUnreachable(f"{self._url} does not answer like a Retarget server")

    def _lost(self) -> ServerUnreachable:
        return ServerUnreachable(f"the connection to the server at {self._url} was lost")


def wait(websocket: WebSocket, readable: list[int], seconds: float) -> set[int]:
    """Return which of these and of the WebSocket can be read, and flush what can be written."""
    poll = select.poll()
    for descriptor in readable:
        poll.register(descriptor, select.POLLIN)
    writing = select.POLLOUT if websocket.unsent_bytes else 0
    poll.register(websocket, select.POLLIN | writing)
    ready = poll.poll(0 if websocket.has_more() else seconds * 1000)
    if writing and any(
        number == websocket.fileno() and events & writing for number, events in ready
    ):
        websocket.flush()
    more = {websocket.fileno()} if websocket.has_more() else set[int]()
    return {number for number, events in ready if events & ~select.POLLOUT} | more


def _frame(opcode: int, content: bytes) -> bytes:
    size, mask = len(content), os.urandom(4)
    if size < _SHORT:
        head = struct.pack(">BB", _FINAL | opcode, _MASKED | size)
    elif size < 1 << 16:
        head = struct.pack(">BBH", _FINAL | opcode, _MASKED | _SHORT, size)
    else:
        head = struct.pack(">BBQ", _FINAL | opcode, _MASKED | _LONG, size)
    key = int.from_bytes((mask * (size // 4 + 1))[:size], "little")
    return head + mask + (int.from_bytes(content, "little") ^ key).to_bytes(size, "little")
