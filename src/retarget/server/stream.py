"""Logs as they grow: raw bytes of one stream, or the lines of all ranks together."""

import re
from collections.abc import AsyncIterator

from anyio.to_thread import run_sync

from retarget.control.parts import Parts
from retarget.core.errors import NotFound
from retarget.core.jobs import Attempt
from retarget.server.signals import Signals

_CHUNK = 1 << 20
_RANK = re.compile(r"rank-(\d+)")


async def read_stream(
    parts: Parts, attempt: Attempt, stream: str, offset: int
) -> AsyncIterator[bytes]:
    """Yield what there is now."""
    while chunk := await run_sync(parts.streams.read, attempt.key, stream, offset, _CHUNK):
        offset += len(chunk)
        yield chunk


async def follow_stream(
    parts: Parts, signals: Signals, attempt: Attempt, stream: str, offset: int
) -> AsyncIterator[bytes]:
    """Yield what there is and what comes, until no more can come."""
    with signals.listening(attempt.job_id) as listener:
        while not signals.closed:
            listener.rearm()
            complete = await run_sync(_is_complete, parts, attempt, stream)
            async for chunk in read_stream(parts, attempt, stream, offset):
                offset += len(chunk)
                yield chunk
            if complete:
                return
            await listener.wait()


async def read_ranks(parts: Parts, attempt: Attempt) -> AsyncIterator[bytes]:
    """Yield every rank's lines, rank by rank, each with its rank before it."""
    for stream in _ranks(parts, attempt):
        lines = _Lines(stream)
        async for chunk in read_stream(parts, attempt, stream, 0):
            yield lines.add(chunk)
        yield lines.rest()


async def follow_ranks(parts: Parts, signals: Signals, attempt: Attempt) -> AsyncIterator[bytes]:
    """Yield the lines of all ranks as they come, until no more can come."""
    lines: dict[str, _Lines] = {}
    with signals.listening(attempt.job_id) as listener:
        while not signals.closed:
            listener.rearm()
            complete = await run_sync(_is_complete, parts, attempt, "output")
            for stream in await run_sync(_ranks, parts, attempt):
                known = lines.setdefault(stream, _Lines(stream))
                async for chunk in read_stream(parts, attempt, stream, known.offset):
                    yield known.add(chunk)
            if complete:
                for known in lines.values():
                    yield known.rest()
                return
            await listener.wait()


class _Lines:
    """The whole lines of one rank, so that no two ranks share one."""

    def __init__(self, stream: str) -> None:
        rank = _RANK.fullmatch(stream)
        self._prefix = f"[rank {rank[1] if rank else '?'}] ".encode()
        self._rest = b""
        self.offset = 0

    def add(self, chunk: bytes) -> bytes:
        self.offset += len(chunk)
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        return b"".join(self._prefix + line + b"\n" for line in whole)

    def rest(self) -> bytes:
        last, self._rest = self._rest, b""
        return self._prefix + last + b"\n" if last else b""


def _ranks(parts: Parts, attempt: Attempt) -> list[str]:
    found = [name for name in parts.streams.names(attempt.key) if _RANK.fullmatch(name)]
    return sorted(found, key=lambda name: int(name.removeprefix("rank-")))


def _is_complete(parts: Parts, attempt: Attempt, stream: str) -> bool:
    """Tell whether nothing can be added any more."""
    try:
        now = parts.jobs.attempt(attempt.key)
    except NotFound:
        return True
    return now.ended is not None or (stream == "prepare" and now.started is not None)
