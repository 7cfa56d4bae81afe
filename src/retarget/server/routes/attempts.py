"""/api/attempts: what runners report. Each request is proven by the runner: see server/proofs."""

import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import FileResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from retarget.blobs.streams import Mark
from retarget.control.attempts import current_attempt
from retarget.control.context import Context
from retarget.control.job_secrets import take_secrets
from retarget.control.report import clock_shift, take_events, to_server_clock
from retarget.control.track import ARTIFACTS_TOP, keep_files, process_lines
from retarget.core.errors import Forbidden, Invalid, NotFound
from retarget.core.events import log_changed
from retarget.core.jobs import Job, Output
from retarget.core.kept import WORKDIR
from retarget.core.snapshots import decode
from retarget.core.tokens import runner_key
from retarget.runner.sealing import seal
from retarget.server.auth import ContextDep, RunnerKey
from retarget.server.frames import FrameReader, take_outputs
from retarget.server.request_bodies import BoundedRoute
from retarget.server.routes.blobs import BINARY_BODY, BYTES, Digests
from retarget.server.stream import is_output
from retarget.server.views import Problem

ATTEMPT_OVER = {410: {"model": Problem, "description": "The attempt is over"}}
router = APIRouter(
    route_class=BoundedRoute,
    prefix="/api/attempts/{key}",
    tags=["runners"],
    responses={**ATTEMPT_OVER},
)

_FILES_PER_TRANSACTION = 500
_MARK = r"[0-9]{1,18}@[0-9]{1,10}(\.[0-9]{1,6})?"
_MARKS = rf"^({_MARK}(,{_MARK})*)?$"
_TOP_FOLDERS = ("outputs", "logs", WORKDIR, ARTIFACTS_TOP)


class RunnerEvent(BaseModel):
    """Something that happened to an attempt. The kind decides which other fields exist."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    seq: Annotated[int, Field(ge=1)]
    at: float
    kind: str
    outcome: str = "lost"
    reason: str = ""
    exit_code: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    removed_outputs: list[str] = []


class Events(BaseModel):
    events: list[RunnerEvent]
    node: Annotated[int, Field(ge=0, lt=2**31, strict=True)] = 0
    # when the report was sent, by the clock of the runner
    now: Annotated[float, Field(ge=0, lt=1e11, strict=True)] | None = None


class ReportAnswer(BaseModel):
    events_acked: int
    cancel: bool


class PartQuery(BaseModel):
    """Where bytes belong in a stream, and its sizes over time."""

    offset: Annotated[int, Query(ge=0)]
    times: Annotated[str, Query(pattern=_MARKS)] = ""
    now: Annotated[float, Query(ge=0, lt=1e11)] | None = None


class Size(BaseModel):
    size: int


class SealedSecrets(BaseModel):
    """The values by name, as JSON that is encrypted under a key derived from the runner's key."""

    count: int
    sealed: str


class TrackAnswer(BaseModel):
    size: int
    refused: list[str]


class OutputsAnswer(BaseModel):
    kept: int
    refused: list[str]


@router.get("/proof", status_code=204)
def show_proof(key: RunnerKey) -> None:
    """Answer with nothing but a proof: with this, a runner begins each connection."""


@router.post("/events")
def report_events(key: RunnerKey, body: Events, context: ContextDep) -> ReportAnswer:
    """Record events of a runner, in order. Events that were acknowledged before are skipped."""
    reported = [event.model_dump() for event in body.events]
    events = to_server_clock(reported, sent=body.now, now=context.clock())
    events_acked, cancel = take_events(context, key, events, body.node)
    return ReportAnswer(events_acked=events_acked, cancel=cancel)


@router.put("/streams/{stream:any}", openapi_extra=BINARY_BODY)
async def append_stream(
    key: RunnerKey,
    stream: str,
    request: Request,
    context: ContextDep,
    query: Annotated[PartQuery, Query()],
) -> Size:
    """Append bytes to a stream at an offset. Return its size: the sender continues there.

    `times` has its sizes over time, and `now` is when they were sent, both by the clock of
    the runner: `120@1763456400.250,240@1763456401.000`.
    """
    content = await request.body()
    shift = clock_shift(sent=query.now, now=context.clock())
    marks = [(size, at + shift) for size, at in _parse_marks(query.times)]
    part = query.offset, content, marks
    return Size(size=await run_sync(_append, context, key, stream, part))


@router.put("/track/{name}", openapi_extra=BINARY_BODY)
async def take_track(
    key: RunnerKey,
    name: str,
    request: Request,
    context: ContextDep,
    offset: Annotated[int, Query(ge=0)],
) -> TrackAnswer:
    """Store lines that a script logged. The answer is the stored size, and what was refused."""
    content = await request.body()
    size, refused = await run_sync(process_lines, context, key, name, offset, content)
    return TrackAnswer(size=size, refused=refused)


@router.post("/outputs", openapi_extra=BINARY_BODY)
async def keep_outputs(
    key: RunnerKey,
    request: Request,
    context: ContextDep,
    node: Annotated[int, Query(ge=0, lt=2**31)] = 0,
) -> OutputsAnswer:
    """Store outputs and artifacts: frames of a 4-byte length, JSON {path, size} and the content."""
    job, attempt = await run_sync(current_attempt, context, key)
    batch = context.files.blobs.batch()

    def keep(files: list[Output]) -> list[str]:
        batch.commit()  # before anything refers to them
        return keep_files(context, job, attempt, files, node)

    refused: list[str] = []
    try:
        frames = take_outputs(
            context.files.blobs, batch, FrameReader(request.stream()), _check_path
        )
        # only once the body has ended is it proven: nothing is recorded before
        files = [Output.model_validate(file) async for file in frames]
        for start in range(0, len(files), _FILES_PER_TRANSACTION):
            part = files[start : start + _FILES_PER_TRANSACTION]
            refused += await run_sync(keep, part)
    finally:
        batch.discard()
    return OutputsAnswer(kept=len(files) - len(refused), refused=refused)


@router.get("/blobs/{digest}", response_class=FileResponse, responses={200: BYTES})
def fetch_blob(key: RunnerKey, digest: str, context: ContextDep) -> FileResponse:
    """Download one blob of this job's code, or of its image build context."""
    job, _ = current_attempt(context, key)
    [path] = _code_paths(context, job, [digest])
    return FileResponse(path, media_type="application/octet-stream")


@router.post("/blobs", response_class=StreamingResponse, responses={200: BYTES})
def fetch_blobs(key: RunnerKey, query: Digests, context: ContextDep) -> StreamingResponse:
    """Download many blobs of this job's code, as frames."""
    job, _ = current_attempt(context, key)
    paths = _code_paths(context, job, query.digests)  # raises before anything is sent
    return StreamingResponse(_frames(paths), media_type="application/octet-stream")


@router.post("/secrets")
def fetch_secrets(key: RunnerKey, context: ContextDep, response: Response) -> SealedSecrets:
    """Return the values of this attempt's secrets. Later calls return the same values."""
    response.headers["Cache-Control"] = "no-store"
    values = take_secrets(context, key)
    sealed = seal(runner_key(context.settings.secret, key), json.dumps(values).encode())
    return SealedSecrets(count=len(values), sealed=sealed)


def _parse_marks(times: str) -> list[Mark]:
    pairs = [mark.split("@") for mark in times.split(",") if mark]
    return [(int(size), float(at)) for size, at in pairs]


def _append(context: Context, key: str, stream: str, part: tuple[int, bytes, list[Mark]]) -> int:
    job, attempt = current_attempt(context, key)
    size = context.files.streams.append(key, stream, *part)
    if attempt.first_output_at is None and is_output(stream):
        context.store.jobs.change_attempt(key, {"first_output_at": context.clock()})
    context.bus.publish([log_changed(job.id)])
    return size


def _check_path(path: str) -> str:
    names = PurePosixPath(path).parts
    if len(names) < 2 or names[0] not in _TOP_FOLDERS or ".." in names or "\0" in path:
        raise Invalid(f"path: {path[:200]!r} is not below {', '.join(_TOP_FOLDERS)}", field="path")
    return str(PurePosixPath(path))


def _code_paths(context: Context, job: Job, digests: list[str]) -> list[Path]:
    """Return the paths of blobs of the job's code. Damaged ones are moved away, and not found."""
    try:
        sizes = _code_sizes(context, job, set(digests))
        if not sizes.keys() >= set(digests):
            raise Forbidden("that blob is not part of this job's code")
        return [context.files.blobs.checked_path(digest, sizes[digest]) for digest in digests]
    except NotFound:
        context.files.snapshots.clear_marks()  # so that the next submit checks every file
        raise NotFound(
            "a file of the code was lost or damaged on the server's disk; "
            "submit the job again to send it again"
        ) from None


def _code_sizes(context: Context, job: Job, digests: set[str]) -> dict[str, int | None]:
    """Return the sizes of the blobs of a job's code, at least of `digests`. None: not known."""
    manifests = {job.spec.snapshot, job.spec.environment.context} - {None}
    sizes: dict[str, int | None] = dict.fromkeys(map(str, manifests))
    for manifest in list(sizes) if not digests <= sizes.keys() else ():
        sizes |= _sizes_in(context.files.blobs.path(manifest))
    return sizes


@lru_cache(maxsize=4)  # blobs are requested in batches, and decoding a manifest is slow
def _sizes_in(manifest: Path) -> dict[str, int]:
    return decode(manifest.read_bytes()).sizes()


def _frames(paths: list[Path]) -> Iterator[bytes]:
    for path in paths:
        content = path.read_bytes()
        yield bytes.fromhex(path.name) + len(content).to_bytes(8, "big") + content
