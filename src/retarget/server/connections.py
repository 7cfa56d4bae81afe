"""Bounds what connections may take that have not shown a token: time, bytes and descriptors."""

import asyncio
import errno
import logging
import math
import resource
import time
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_log = logging.getLogger("retarget")

PROVEN = "retarget.proven"  # where a scope has what to call once its token was accepted

_HEAD_SECONDS = 20.0  # for the head of a request, and for a body that nobody reads
_MAX_HEAD_BYTES = 1 << 16
_SWEEP_SECONDS = 1.0
_MAX_DESCRIPTORS = 1 << 16  # more would slow down programs that close every possible one
_MAX_UNPROVEN = 2048
_OTHER_DESCRIPTORS = 256  # for files, databases and drivers
_QUIET_SECONDS = 60.0  # between two lines about the same trouble

_TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"connection: close\r\ncontent-length: 0\r\n\r\n"
)


def raise_descriptor_limit() -> int:
    """Allow this process as many open files as it may have, and return how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= limit:
        return _MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


def log_briefly_without_descriptors(loop: asyncio.AbstractEventLoop) -> None:
    """Write one line a minute while this process has too many open files, not a traceback each."""
    logged_at = -math.inf

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal logged_at
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
        elif time.monotonic() - logged_at > _QUIET_SECONDS:
            logged_at = time.monotonic()
            _log.error(
                "cannot accept a connection: %s; raise the limit `ulimit -n`", error.strerror
            )

    loop.set_exception_handler(handle)


class Connections:
    """The open connections, and which of them have not shown a token.

    When there are too many, the peer with the most connections without a token loses its oldest. So
    somebody who has a token gets in, however many connections others hold open.
    """

    def __init__(self, descriptors: int) -> None:
        self._max_unproven = min(_MAX_UNPROVEN, descriptors // 2)
        self._max_open = max(descriptors - _OTHER_DESCRIPTORS, descriptors // 2 + 1)
        self._open: set[GuardedProtocol] = set()
        self._unproven: dict[str, dict[GuardedProtocol, None]] = {}  # by peer, oldest first
        self._count = 0  # of the unproven ones
        self._sweeping: asyncio.TimerHandle | None = None

    def add(self, connection: "GuardedProtocol") -> None:
        self._open.add(connection)
        self._unproven.setdefault(connection.peer, {})[connection] = None
        self._count += 1
        if self._count > self._max_unproven or len(self._open) > self._max_open:
            self._close_oldest()
        if self._sweeping is None:
            self._sweeping = connection.loop.call_later(_SWEEP_SECONDS, self._sweep)

    def prove(self, connection: "GuardedProtocol") -> None:
        """Count a connection no more: it has shown a token."""
        connections = self._unproven.get(connection.peer, {})
        if connection in connections:
            del connections[connection]
            self._count -= 1
            if not connections:
                del self._unproven[connection.peer]

    def remove(self, connection: "GuardedProtocol") -> None:
        self.prove(connection)
        self._open.discard(connection)

    def _close_oldest(self) -> None:
        connections = max(self._unproven.values(), key=len)
        oldest = next(iter(connections))
        self.remove(oldest)
        oldest.transport.abort()

    def _sweep(self) -> None:
        """Close the connections that are late."""
        self._sweeping = None
        now = time.monotonic()
        for connection in list(self._open):
            connection.close_if_late(now)
        if self._open:
            loop = asyncio.get_running_loop()
            self._sweeping = loop.call_later(_SWEEP_SECONDS, self._sweep)


class GuardedProtocol(HttpToolsProtocol):
    """Reads requests, and closes a connection that never completes one.

    An idle connection is closed after uvicorn's `timeout_keep_alive`. From the first byte of a
    request on, its head has 20 seconds. A body that is not read because the request was already
    answered is discarded for as long, so that its sender can read the answer.
    """

    def __init__(self, connections: Connections, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._all = connections
        self._deadline: float | None = None
        self._unparsed_bytes = 0  # since the last head or part of a body was complete
        self._is_proven = False  # whether a request showed a token
        self.peer = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self.peer = self.client[0] if self.client else ""
        self._deadline = time.monotonic() + _HEAD_SECONDS
        self._all.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.remove(self)
        self._unset_keepalive_if_required()
        if self.cycle:  # neither may refer to this object: cycles are rarely collected
            _values(self.cycle.scope).pop(PROVEN, None)
            self.cycle.transport = self.transport
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._unparsed_bytes += len(data)
        super().data_received(data)
        if self._unparsed_bytes > _MAX_HEAD_BYTES:
            self._close_with(_TOO_LARGE)
        elif self._deadline is None and self._is_idle():  # a part of the next head
            self._deadline = time.monotonic() + _HEAD_SECONDS

    def on_headers_complete(self) -> None:
        self._unparsed_bytes, self._deadline = 0, None
        if self._becomes_websocket():
            super().on_headers_complete()
            return
        if not self._is_proven:
            _values(self.scope)[PROVEN] = self._prove
        super().on_headers_complete()
        if not self.cycle.keep_alive:
            self.cycle.transport = cast("asyncio.Transport", _LingeringTransport(self))

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed_bytes = 0
        super().on_message_complete()
        if self._becomes_websocket():
            return
        if self.cycle.response_complete:  # the end of a body that was not read
            self.cycle.more_body = False
            self._deadline = time.monotonic() + _HEAD_SECONDS
            if not self.cycle.keep_alive:
                self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:
            self.cycle.body = bytearray()
            if self.cycle.more_body:
                self._deadline = time.monotonic() + _HEAD_SECONDS

    def close_after_body(self) -> None:
        """Close the connection once its sender has sent the whole body, and can read the answer."""
        if not self.cycle.more_body:
            self.transport.close()

    def close_if_late(self, now: float) -> None:
        if self._deadline is not None and now > self._deadline:
            self._close_with(_TOO_LATE)

    def handle_websocket_upgrade(self) -> None:
        """Pass the connection on. The gate checks the token at once, and closes it without one."""
        if not self._is_idle():  # an earlier request has no answer yet
            self.transport.close()
            return
        self._all.remove(self)
        super().handle_websocket_upgrade()

    def _becomes_websocket(self) -> bool:
        return bool(self.parser and self.parser.should_upgrade() and self._should_upgrade())

    def _prove(self) -> None:
        self._is_proven = True
        self._all.prove(self)

    def _is_idle(self) -> bool:
        return not self.cycle or (self.cycle.response_complete and not self.cycle.more_body)

    def _close_with(self, answer: bytes) -> None:
        """Close the connection, with this answer to a request that has no other."""
        if not self.transport.is_closing():
            if self._is_idle():
                self.transport.write(answer)
            self.transport.close()


def _values(scope: object) -> dict[str, Any]:
    return cast("dict[str, Any]", scope)  # uvicorn types it with the keys of ASGI only


class _LingeringTransport:
    """The transport of a request after which its connection is to be closed."""

    def __init__(self, connection: GuardedProtocol) -> None:
        transport = connection.transport
        self.write, self.is_closing = transport.write, transport.is_closing
        self.close = connection.close_after_body
