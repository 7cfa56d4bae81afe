"""Reads request bodies: each up to a size limit, and all together within one memory budget."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope

MAX_BODY_BYTES = 64 << 20
BODY = "retarget.body"  # where a scope has its IncomingBody

_STREAM_BYTES = 1 << 20  # what a route holds that reads its body as a stream
_SMALL_BYTES = 1 << 16  # what uvicorn receives ahead of the application
_LARGE_LANE_BYTES = 96 << 20
_SMALL_LANE_BYTES = 32 << 20
_STALL_SECONDS = 30.0  # how long a body may make no progress
_WAIT_SECONDS = 60.0  # how long a request waits for its share of the budget


class BodyLane:
    """A number of bytes that requests share. Those that wait get their share in order."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int) -> None:
        """Reserve memory, or raise TimeoutError if too little is free for a minute."""
        if size <= self._free and not self._waiting:
            self._free -= size
            return
        admission = asyncio.get_running_loop().create_future()
        self._waiting.append((size, admission))
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                await admission
        except BaseException:
            if admission.done() and not admission.cancelled():
                self._free += size
            admission.cancel()
            self._serve()
            raise

    def give_back(self, size: int) -> None:
        self._free += size
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            size, admission = self._waiting[0]
            if not admission.done() and size > self._free:
                return
            self._waiting.popleft()
            if not admission.done():
                self._free -= size
                admission.set_result(None)


class BodyBudget:
    """The memory for all bodies, in lanes: no job keeps a user waiting, no large body a small one.

    It has 256 MiB in all.
    """

    def __init__(self) -> None:
        self._lanes = {
            (is_user, is_small): BodyLane(_SMALL_LANE_BYTES if is_small else _LARGE_LANE_BYTES)
            for is_user in (True, False)
            for is_small in (True, False)
        }

    def lane(self, size: int, *, is_user: bool) -> BodyLane:
        return self._lanes[is_user, size <= _SMALL_BYTES]


class IncomingBody:
    """The body of one request. It has a share of the budget until the request is answered."""

    __slots__ = ("_budget", "_is_complete", "_is_user", "_lane", "_length", "_receive", "size")

    def __init__(self, budget: BodyBudget, scope: Scope, receive: Receive, *, is_user: bool):
        self._budget = budget
        self._receive = receive
        self._is_user = is_user
        self._length = _content_length(scope)
        self._is_complete = self._length == 0
        self._lane: BodyLane | None = None
        self.size = 0  # of its share

    async def reserve(self, max_bytes: int) -> None:
        """Wait for a share for the whole body, or for `max_bytes` of it. Call this once."""
        size = max_bytes if self._length is None else min(self._length, max_bytes)
        lane = self._budget.lane(size, is_user=self._is_user)
        try:
            await lane.take(size)
        except TimeoutError:
            raise HTTPException(
                503, "the server is receiving too much data at once; try again later"
            ) from None
        self._lane, self.size = lane, size

    async def receive(self) -> Message:
        """Return the next part of the body, or raise if none arrives."""
        if self._is_complete:
            return await self._receive()
        if self._lane is None:
            await self.reserve(_STREAM_BYTES)
        try:
            async with asyncio.timeout(_STALL_SECONDS):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(
                408, f"no byte of the body has arrived for {_STALL_SECONDS:.0f} s; send it again"
            ) from None
        self._is_complete = not message.get("more_body", False)
        return message

    def release(self) -> None:
        """Give the share back."""
        if self._lane is not None:
            self._lane.give_back(self.size)
            self._lane = None


def _content_length(scope: Scope) -> int | None:
    """Return the length of the body; None if it is not announced."""
    length: int | None = 0
    for name, value in scope["headers"]:
        if name == b"content-length":
            length = int(value)
        elif name == b"transfer-encoding":
            return None
    return length


async def read_body(request: Request) -> bytes:
    """Return the body, or raise if it is too large. Bytes beyond the limit are not kept."""
    incoming: IncomingBody = request.scope[BODY]
    await incoming.reserve(MAX_BODY_BYTES)
    body, size = bytearray(), 0
    try:
        async for chunk in request.stream():  # to the end: clients read the response only then
            size += len(chunk)
            if size <= MAX_BODY_BYTES:
                body += chunk
        if size > MAX_BODY_BYTES:
            # an HTTPException: FastAPI would replace the message of another exception
            raise HTTPException(
                413, f"the body has {size:,} bytes; send at most {MAX_BODY_BYTES:,}"
            )
        return bytes(body)
    finally:
        body.clear()  # the traceback of an error refers to it until the next garbage collection


class BoundedRoute(APIRoute):
    """A route that limits the size of its body, unless it reads the body as a stream."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle_bounded(request: Request) -> Response:
            return await handler(_BoundedRequest(request.scope, request.receive))

        return handle_bounded


class _BoundedRequest(Request):
    _content: bytes | None = None

    async def body(self) -> bytes:
        if self._content is None:
            self._content = await read_body(self)
        return self._content
