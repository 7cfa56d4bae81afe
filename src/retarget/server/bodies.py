"""Bodies that are read as a whole, and how large they may be."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

LARGEST = 64 << 20


async def read_whole(request: Request) -> bytes:
    """Return the body, or raise if it is too large; what is too much is never held."""
    held, size = bytearray(), 0
    async for chunk in request.stream():  # to its end: before, nobody looks for an answer
        size += len(chunk)
        if size <= LARGEST:
            held += chunk
    if size > LARGEST:
        # not one of ours: FastAPI would put a sentence of its own for it
        raise HTTPException(413, f"the body has {size:,} bytes; send at most {LARGEST:,} at once")
    return bytes(held)


class BoundedRoute(APIRoute):
    """A route whose body has a limit, unless the route takes it in as a stream."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            return await answer(_Bounded(request.scope, request.receive))

        return bounded


class _Bounded(Request):
    _whole: bytes | None = None

    async def body(self) -> bytes:
        if self._whole is None:
            self._whole = await read_whole(self)
        return self._whole
