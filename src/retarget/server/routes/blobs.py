"""/api/blobs: bytes named by their digest."""

from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field
from starlette.convertors import PathConvertor, register_url_convertor

from retarget.core.jobs import Digest
from retarget.server.auth import PartsDep
from retarget.server.bodies import BoundedRoute
from retarget.server.frames import Body, take_blobs

router = APIRouter(route_class=BoundedRoute, prefix="/api/blobs", tags=["blobs"])


class _AnyPath(PathConvertor):
    """A path whose names may hold anything a file's name may, line breaks too."""

    regex = "(?s:.*)"


register_url_convertor("any", _AnyPath())

BYTES = {
    "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
}
BINARY_BODY = {"requestBody": BYTES}  # one of no bytes is none to HTTP


class Digests(BaseModel):
    digests: Annotated[list[str], Field(max_length=50_000)]


class Missing(BaseModel):
    missing: list[str]


class Asked(BaseModel):
    snapshot: Digest


class Whole(BaseModel):
    whole: bool


class Stored(BaseModel):
    stored: int


@router.post("/missing")
def missing_blobs(asked: Digests, parts: PartsDep) -> Missing:
    """Tell which of these the server does not have."""
    return Missing(missing=parts.blobs.missing(asked.digests, now=parts.now()))


@router.post("/whole")
def is_whole(asked: Asked, parts: PartsDep) -> Whole:
    """Tell whether a snapshot is here with all its files: then nothing of it need be sent."""
    return Whole(whole=parts.snapshots.is_whole(asked.snapshot, now=parts.now()))


@router.post("", openapi_extra=BINARY_BODY)
async def put_blobs(request: Request, parts: PartsDep) -> Stored:
    """Store many: frames of 32 bytes digest, 8 bytes length (big-endian) and the content."""
    return Stored(stored=await take_blobs(parts.blobs, Body(request.stream())))


@router.put("/{digest}", openapi_extra=BINARY_BODY)
async def put_blob(digest: str, request: Request, parts: PartsDep) -> Stored:
    """Store one. Content that does not have this digest is refused."""
    await parts.blobs.take(request.stream(), digest=digest)
    return Stored(stored=1)


@router.get("/{digest}", response_class=FileResponse, responses={200: BYTES})
def get_blob(digest: str, parts: PartsDep) -> FileResponse:
    return FileResponse(parts.blobs.path(digest), media_type="application/octet-stream")
