"""/api/attempts: the runners' door. Each opens with that attempt's own token only."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from anyio.to_thread import run_sync
from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from retarget.control.parts import Parts
from retarget.control.report import by_our_clock, present, take_events
from retarget.control.track import ARTIFACTS_TOP, keep_files, take_lines
from retarget.core.errors import Forbidden, Invalid
from retarget.core.jobs import Job, Output
from retarget.core.snapshots import decode
from retarget.server.auth import PartsDep, RunnerKey
from retarget.server.bodies import BoundedRoute
from retarget.server.frames import Body, take_outputs
from retarget.server.routes.blobs import BINARY_BODY, BYTES, Digests
from retarget.server.views import Problem

OVER = {410: {"model": Problem, "description": "The attempt is over"}}
router = APIRouter(
    route_class=BoundedRoute, prefix="/api/attempts/{key}", tags=["runners"], responses={**OVER}
)

_TOGETHER = 500  # files that are written down in one transaction
_TOPS = ("outputs", "logs", ARTIFACTS_TOP)


class RunnerEvent(BaseModel):
    """Something that happened; which other fields there are depends on its kind."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    seq: Annotated[int, Field(ge=1)]
    at: float
    kind: str
    outcome: str = "lost"
    reason: str = ""
    exit_code: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    gone: list[str] = []


class Events(BaseModel):
    events: list[RunnerEvent]
    node: Annotated[int, Field(ge=0, lt=2**31, strict=True)] = 0
    # when it was sent, by the clock of the runner
    now: Annotated[float, Field(ge=0, lt=1e11, strict=True)] | None = None


class Taken(BaseModel):
    confirmed: int
    order: Literal["cancel"] | None


class Size(BaseModel):
    size: int


class TakenLines(BaseModel):
    size: int
    refused: list[str]


class Kept(BaseModel):
    kept: int
    refused: list[str]


@router.post("/events")
def report_events(key: RunnerKey, body: Events, parts: PartsDep) -> Taken:
    """Take in what happened, in order; what was confirmed before is passed over."""
    told = [event.model_dump() for event in body.events]
    events = by_our_clock(told, sent=body.now, now=parts.now())
    confirmed, stop = take_events(parts, key, events, body.node)
    return Taken(confirmed=confirmed, order="cancel" if stop else None)


@router.put("/streams/{stream:any}", openapi_extra=BINARY_BODY)
async def append_stream(
    key: RunnerKey,
    stream: str,
    request: Request,
    parts: PartsDep,
    offset: Annotated[int, Query(ge=0)],
) -> Size:
    """Take in bytes at an offset, and tell how many there are: the sender goes on from there."""
    content = await request.body()
    return Size(size=await run_sync(_append, parts, key, stream, offset, content))


@router.put("/track/{name}", openapi_extra=BINARY_BODY)
async def take_track(
    key: RunnerKey,
    name: str,
    request: Request,
    parts: PartsDep,
    offset: Annotated[int, Query(ge=0)],
) -> TakenLines:
    """Take in lines that a script has logged, and tell how far, and what cannot be kept."""
    content = await request.body()
    size, refused = await run_sync(take_lines, parts, key, name, offset, content)
    return TakenLines(size=size, refused=refused)


@router.post("/outputs", openapi_extra=BINARY_BODY)
async def keep_outputs(
    key: RunnerKey,
    request: Request,
    parts: PartsDep,
    node: Annotated[int, Query(ge=0, lt=2**31)] = 0,
) -> Kept:
    """Take in files, artifacts too: frames of 4 bytes length, JSON {path, size}, content."""
    job, attempt = await run_sync(present, parts, key)
    kept, refused, held = 0, list[str](), list[Output]()
    async for file in take_outputs(parts.blobs, Body(request.stream()), _checked):
        held.append(Output.model_validate(file))
        kept += 1
        if len(held) == _TOGETHER:
            refused += await run_sync(keep_files, parts, job, attempt, held, node)
            held = []
    refused += await run_sync(keep_files, parts, job, attempt, held, node)
    return Kept(kept=kept - len(refused), refused=refused)


@router.get("/blobs/{digest}", response_class=FileResponse, responses={200: BYTES})
def fetch_blob(key: RunnerKey, digest: str, parts: PartsDep) -> FileResponse:
    """Give out a part of this job's own code, or of what its image is built from."""
    job, _ = present(parts, key)
    _check_own(parts, job, {digest})
    return FileResponse(parts.blobs.path(digest), media_type="application/octet-stream")


@router.post("/blobs", response_class=StreamingResponse, responses={200: BYTES})
def fetch_blobs(key: RunnerKey, asked: Digests, parts: PartsDep) -> StreamingResponse:
    """Give out many parts of this job's own code, as frames."""
    job, _ = present(parts, key)
    _check_own(parts, job, set(asked.digests))
    paths = [parts.blobs.path(digest) for digest in asked.digests]  # all there, or none is sent
    return StreamingResponse(_frames(paths), media_type="application/octet-stream")


def _append(parts: Parts, key: str, stream: str, offset: int, content: bytes) -> int:
    job, attempt = present(parts, key)
    size = parts.streams.append(key, stream, offset, content)
    if attempt.output is None and (stream == "output" or stream.startswith("rank-")):
        parts.jobs.change_attempt(key, {"output": parts.now()})
    parts.notify(job.id)
    return size


def _checked(path: str) -> str:
    parts = PurePosixPath(path).parts
    if len(parts) < 2 or parts[0] not in _TOPS or ".." in parts or "\0" in path:
        raise Invalid(f"path: {path[:200]!r} is not below {', '.join(_TOPS)}", field="path")
    return str(PurePosixPath(path))


def _check_own(parts: Parts, job: Job, digests: set[str]) -> None:
    roots = {job.spec.snapshot, job.spec.environment.context} - {None}
    own = set(roots)
    for root in roots if not digests <= own else ():
        own |= _digests_in(parts.blobs.path(str(root)))
    if not digests <= own:
        raise Forbidden("that blob is not a part of this job's code")


@lru_cache(maxsize=4)  # a folder is asked for part by part, and reading its list takes a while
def _digests_in(manifest: Path) -> frozenset[str]:
    return frozenset(decode(manifest.read_bytes()).digests())


def _frames(paths: list[Path]) -> Iterator[bytes]:
    for path in paths:
        content = path.read_bytes()
        yield bytes.fromhex(path.name) + len(content).to_bytes(8, "big") + content
