"""Reads bodies that carry many files, as they arrive."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from retarget.blobs.folder import Blobs
from retarget.core.errors import Invalid

_LONGEST_HEADER = 1 << 16
_SMALL = 1 << 20


class Body:
    """A request's body, read in the pieces its frames ask for."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._held = b""

    async def exactly(self, size: int) -> bytes:
        """Return that many bytes, or none at the clean end of the body."""
        while len(self._held) < size:
            chunk = await anext(self._chunks, b"")
            if not chunk:
                if self._held:
                    raise Invalid("the body ends in the middle of a frame")
                return b""
            self._held += chunk
        wanted, self._held = self._held[:size], self._held[size:]
        return wanted

    async def pieces(self, size: int) -> AsyncIterator[bytes]:
        """Yield that many bytes as they come."""
        while size:
            if not self._held:
                self._held = await anext(self._chunks, b"")
                if not self._held:
                    raise Invalid("the body ends in the middle of a frame")
            piece, self._held = self._held[:size], self._held[size:]
            size -= len(piece)
            yield piece


async def take_blobs(blobs: Blobs, body: Body) -> int:
    """Store frames of 32 bytes digest, 8 bytes length, content. Return how many.

    Small ones are stored right here, which takes a fraction of a millisecond each. A thread would
    wait for its turn at every system call while this one takes in what arrives.
    """
    count = 0
    while head := await body.exactly(40):
        digest, size = head[:32].hex(), int.from_bytes(head[32:], "big")
        if size < _SMALL:
            blobs.put_checked(digest, await _whole(body, size))
        else:
            await blobs.take(body.pieces(size), digest=digest)
        count += 1
    return count


async def _whole(body: Body, size: int) -> bytes:
    content = await body.exactly(size) if size else b""
    if len(content) != size:
        raise Invalid("the body ends in the middle of a frame")
    return content


async def take_outputs(
    blobs: Blobs, body: Body, checked: Callable[[str], str]
) -> AsyncIterator[dict[str, Any]]:
    """Store frames of 4 bytes length, JSON header with path and size, content.

    Nothing is stored of a path that `checked` refuses.
    """
    while head := await body.exactly(4):
        length = int.from_bytes(head, "big")
        if length > _LONGEST_HEADER:
            raise Invalid("a frame's header is too long")
        try:
            header = json.loads(await body.exactly(length))
            path, size = str(header["path"]), int(header["size"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise Invalid("a frame's header must be JSON with path and size") from None
        if size < 0:
            raise Invalid("a frame's size must not be negative")
        path = checked(path)
        if size < _SMALL:
            digest = blobs.put(await _whole(body, size))
        else:
            digest = await blobs.take(body.pieces(size))
        yield {"path": path, "size": size, "digest": digest}
