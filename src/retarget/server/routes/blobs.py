"""/api/blobs: bytes named by their digest."""

from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field
from starlette.convertors import PathConvertor, register_url_convertor

from retarget.core.errors import Invalid
from retarget.core.jobs import Digest
from retarget.server.auth import ContextDep
from retarget.server.frames import FrameReader, take_blobs
from retarget.server.request_bodies import BoundedRoute

router = APIRouter(route_class=BoundedRoute, prefix="/api/blobs", tags=["blobs"])


class _AnyPath(PathConvertor):
    """A path with any character that a file name may contain, even line breaks."""

    regex = "(?s:.*)"


register_url_convertor("any", _AnyPath())

BYTES = {
    "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
}
BINARY_BODY = {"requestBody": BYTES}  # not `required`: in HTTP, an empty body is no body


class Digests(BaseModel):
    digests: Annotated[list[str], Field(max_length=50_000)]


class MissingQuery(Digests):
    # of each of the digests: a blob of another size is verified, and missing if it is damaged
    sizes: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=50_000)] | None = None


class Missing(BaseModel):
    missing: list[str]


class SnapshotQuery(BaseModel):
    snapshot: Digest


class Completeness(BaseModel):
    complete: bool


class Stored(BaseModel):
    stored: int


@router.post("/missing")
def missing_blobs(query: MissingQuery, context: ContextDep) -> Missing:
    """Return the digests of the blobs that the server does not have."""
    if query.sizes is not None and len(query.sizes) != len(query.digests):
        raise Invalid("sizes: must have one number per digest", field="sizes")
    sizes = None if query.sizes is None else dict(zip(query.digests, query.sizes, strict=True))
    return Missing(
        missing=context.files.blobs.missing(query.digests, now=context.clock(), sizes=sizes)
    )


@router.post("/complete")
def is_complete(query: SnapshotQuery, context: ContextDep) -> Completeness:
    """Return whether the server has a snapshot with all its files, so that none must be sent."""
    return Completeness(
        complete=context.files.snapshots.is_complete(query.snapshot, now=context.clock())
    )


@router.post("", openapi_extra=BINARY_BODY)
async def put_blobs(request: Request, context: ContextDep) -> Stored:
    """Store many blobs: frames of a 32-byte digest, an 8-byte big-endian length and the content."""
    return Stored(stored=await take_blobs(context.files.blobs, FrameReader(request.stream())))


@router.put("/{digest}", openapi_extra=BINARY_BODY)
async def put_blob(digest: str, request: Request, context: ContextDep) -> Stored:
    """Store one blob. Content with another digest is refused."""
    await context.files.blobs.receive(request.stream(), digest=digest)
    return Stored(stored=1)


@router.get("/{digest}", response_class=FileResponse, responses={200: BYTES})
def get_blob(digest: str, context: ContextDep) -> FileResponse:
    """Download a blob."""
    return FileResponse(context.files.blobs.path(digest), media_type="application/octet-stream")
