"""Reads request bodies that carry many files, as they arrive."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from anyio.to_thread import run_sync

from retarget.blobs.folder import Batch, Blobs
from retarget.core.errors import Invalid

_MAX_HEADER_BYTES = 1 << 16
_SMALL_BYTES = 1 << 20


class FrameReader:
    """A request body, read frame by frame."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._buffer = b""

    async def read_exactly(self, size: int) -> bytes:
        """Return exactly `size` bytes, or no bytes at the end of the body."""
        while len(self._buffer) < size:
            chunk = await anext(self._chunks, b"")
            if not chunk:
                if self._buffer:
                    raise Invalid("the body ends in the middle of a frame")
                return b""
            self._buffer += chunk
        content, self._buffer = self._buffer[:size], self._buffer[size:]
        return content

    async def read_chunks(self, size: int) -> AsyncIterator[bytes]:
        """Yield `size` bytes as they arrive."""
        while size:
            if not self._buffer:
                self._buffer = await anext(self._chunks, b"")
                if not self._buffer:
                    raise Invalid("the body ends in the middle of a frame")
            chunk, self._buffer = self._buffer[:size], self._buffer[size:]
            size -= len(chunk)
            yield chunk


async def take_blobs(blobs: Blobs, body: FrameReader) -> int:
    """Store frames of a 32-byte digest, an 8-byte length and the content. Return their number.

    Small blobs are written in this thread, in a fraction of a millisecond each. Another thread
    would wait for the GIL at every system call while this one receives data.
    """
    count, batch = 0, blobs.batch()
    try:
        while head := await body.read_exactly(40):
            digest, size = head[:32].hex(), int.from_bytes(head[32:], "big")
            if size < _SMALL_BYTES:
                batch.add(await _read_content(body, size), digest=digest)
            else:
                await blobs.receive(body.read_chunks(size), digest=digest)
            count += 1
        await run_sync(batch.commit)
    finally:
        batch.discard()
    return count


async def _read_content(body: FrameReader, size: int) -> bytes:
    content = await body.read_exactly(size) if size else b""
    if len(content) != size:
        raise Invalid("the body ends in the middle of a frame")
    return content


async def take_outputs(
    blobs: Blobs, batch: Batch, body: FrameReader, check_path: Callable[[str], str]
) -> AsyncIterator[dict[str, Any]]:
    """Store frames of a 4-byte length, a JSON header with path and size, and the content.

    `check_path` returns the path to use. If it raises, nothing of that frame is stored. Small
    files are stored once the caller commits the batch.
    """
    while head := await body.read_exactly(4):
        length = int.from_bytes(head, "big")
        if length > _MAX_HEADER_BYTES:
            raise Invalid("a frame's header is too long")
        try:
            header = json.loads(await body.read_exactly(length))
            path, size = str(header["path"]), int(header["size"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise Invalid("a frame's header must be JSON with path and size") from None
        if size < 0:
            raise Invalid("a frame's size must not be negative")
        path = check_path(path)
        if size < _SMALL_BYTES:
            digest = batch.add(await _read_content(body, size))
        else:
            digest = await blobs.receive(body.read_chunks(size))
        yield {"path": path, "size": size, "digest": digest}
