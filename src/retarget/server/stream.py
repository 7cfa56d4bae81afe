"""Streams logs: the raw bytes of one stream, or the merged lines of all ranks."""

import re
from collections.abc import AsyncIterator, Sequence

from anyio.to_thread import run_sync

from retarget.blobs.streams import Mark
from retarget.control.context import Context
from retarget.core.errors import NotFound
from retarget.core.events import Noun, of_job
from retarget.core.jobs import Attempt, Job, JobSpec
from retarget.server.event_bus import EventBus

_CHUNK_BYTES = 1 << 20
_RANK = re.compile(r"rank-(\d+)")
_OUTPUT = re.compile(r"output|stdout|stderr|rank-\d+")


def is_output(stream: str) -> bool:
    """Return whether the script itself writes this stream, or the runner from such streams."""
    return _OUTPUT.fullmatch(stream) is not None


def standard_streams(spec: JobSpec) -> set[str]:
    """Return the streams that an attempt may have, besides the files in logs/."""
    processes = spec.nodes * spec.processes_per_node
    if processes > 1:
        return {"prepare", *(f"rank-{rank}" for rank in range(processes))}
    return {"prepare", "output", *(("stdout", "stderr") if spec.split_stderr else ())}


def check_stream(
    context: Context, job: Job, attempt: Attempt, stream: str, *, may_appear: bool = False
) -> None:
    """Raise NotFound unless the stream exists or may still be created."""
    context.files.streams.path(attempt.key, stream)
    known = {*context.files.streams.names(attempt.key), *standard_streams(job.spec)}
    is_expected = may_appear and attempt.ended_at is None and stream.startswith("logs/")
    if stream not in known and not is_expected:
        names = ", ".join(sorted(known))
        raise NotFound(f"job {job.name!r} has no stream {stream!r}; it has {names}")


def with_end(marks: Sequence[Mark], size: int, end: float) -> list[Mark]:
    """Return the marks of the first `size` bytes; the last one is that size. Pure."""
    below = [mark for mark in marks if mark[0] < size]
    later = [at for mark, at in marks if mark >= size]
    last = (size, later[0] if later else max(end, below[-1][1] if below else 0.0))
    return [*below, last] if size else []


async def read_stream(
    context: Context, attempt: Attempt, stream: str, offset: int
) -> AsyncIterator[bytes]:
    """Yield the content that exists now."""
    while chunk := await run_sync(
        context.files.streams.read, attempt.key, stream, offset, _CHUNK_BYTES
    ):
        offset += len(chunk)
        yield chunk


async def follow_stream(
    context: Context, bus: EventBus, attempt: Attempt, stream: str, offset: int
) -> AsyncIterator[bytes]:
    """Yield the content as it arrives, until no more can arrive."""
    with bus.subscribe(of_job(attempt.job_id, Noun.LOG, Noun.JOB)) as subscription:
        while not bus.closed:
            complete = await run_sync(is_complete, context, attempt, stream)
            async for chunk in read_stream(context, attempt, stream, offset):
                offset += len(chunk)
                yield chunk
            if complete:
                return
            await subscription.wait()


async def read_ranks(context: Context, attempt: Attempt) -> AsyncIterator[bytes]:
    """Yield the lines of all ranks, rank by rank, each prefixed with its rank."""
    for stream in _rank_streams(context, attempt):
        lines = _RankLines(stream)
        async for chunk in read_stream(context, attempt, stream, 0):
            yield lines.add(chunk)
        yield lines.flush()


async def follow_ranks(context: Context, bus: EventBus, attempt: Attempt) -> AsyncIterator[bytes]:
    """Yield the lines of all ranks as they arrive, until no more can arrive."""
    lines: dict[str, _RankLines] = {}
    with bus.subscribe(of_job(attempt.job_id, Noun.LOG, Noun.JOB)) as subscription:
        while not bus.closed:
            complete = await run_sync(is_complete, context, attempt, "output")
            for stream in await run_sync(_rank_streams, context, attempt):
                rank_lines = lines.setdefault(stream, _RankLines(stream))
                async for chunk in read_stream(context, attempt, stream, rank_lines.offset):
                    yield rank_lines.add(chunk)
            if complete:
                for rank_lines in lines.values():
                    yield rank_lines.flush()
                return
            await subscription.wait()


class _RankLines:
    """Splits the output of one rank into lines, so that no line mixes two ranks."""

    def __init__(self, stream: str) -> None:
        rank = _RANK.fullmatch(stream)
        self._prefix = f"[rank {rank[1] if rank else '?'}] ".encode()
        self._incomplete = b""
        self.offset = 0

    def add(self, chunk: bytes) -> bytes:
        self.offset += len(chunk)
        *complete, self._incomplete = (self._incomplete + chunk).split(b"\n")
        return b"".join(self._prefix + line + b"\n" for line in complete)

    def flush(self) -> bytes:
        last, self._incomplete = self._incomplete, b""
        return self._prefix + last + b"\n" if last else b""


def _rank_streams(context: Context, attempt: Attempt) -> list[str]:
    names = [name for name in context.files.streams.names(attempt.key) if _RANK.fullmatch(name)]
    return sorted(names, key=lambda name: int(name.removeprefix("rank-")))


def is_complete(context: Context, attempt: Attempt, stream: str) -> bool:
    """Return whether nothing can be added any more."""
    try:
        current = context.store.jobs.attempt(attempt.key)
    except NotFound:
        return True
    return current.ended_at is not None or (stream == "prepare" and current.started_at is not None)
