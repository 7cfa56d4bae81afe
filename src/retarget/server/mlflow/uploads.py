"""MLflow's API: artifacts that come in parts.

A client is given an address for each part. It sends the parts there without its token, so each
address carries a proof, good for that part alone.
"""

import hashlib
import hmac
from typing import Any

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from retarget.blobs.uploads import Upload
from retarget.core.errors import Forbidden, Invalid, NotFound
from retarget.server.mlflow.app import Table
from retarget.server.mlflow.ask import Ask, missing, whole
from retarget.server.mlflow.tree import check_writes, clean, fill, join
from retarget.server.state import State

_MOST = 10_000  # parts of a file, as S3 has it


def create(ask: Ask) -> dict[str, Any]:
    path = _path(ask)
    number = ask.whole("num_parts", 1) or 0
    if not 1 <= number <= _MOST:
        raise Invalid(f"num_parts must be between 1 and {_MOST}, got {number}", field="num_parts")
    upload = ask.parts.uploads.create(path, number)
    shown = [_credential(ask, upload, each) for each in range(1, number + 1)]
    return {"upload_id": upload.id, "credentials": shown}


def complete(ask: Ask) -> dict[str, Any]:
    """Make the parts one file. Asked again, because the answer was lost, it is done already."""
    path, digests, parts = _path(ask), _digests(ask), ask.parts
    with parts.uploads.turn(ask.need("upload_id")):
        upload = _upload(ask, path)
        if not upload.done:
            size, digest = parts.uploads.join(upload, digests, parts.blobs)
            parts.artifacts.put(path, size, digest)
            parts.uploads.finish(upload)
    return {}


def abort(ask: Ask) -> dict[str, Any]:
    path = _path(ask)
    with ask.parts.uploads.turn(ask.need("upload_id")):
        ask.parts.uploads.remove(_upload(ask, path).id)
    return {}


TABLE: Table = [
    ("POST", "/mlflow-artifacts/mpu/create/{path:path}", create),
    ("POST", "/mlflow-artifacts/mpu/complete/{path:path}", complete),
    ("POST", "/mlflow-artifacts/mpu/abort/{path:path}", abort),
]


def routes(state: State) -> list[BaseRoute]:
    """Return the route that takes the parts in."""
    uploads = state.parts.uploads

    async def put_part(request: Request) -> Response:
        upload_id, text = request.path_params["upload_id"], request.path_params["number"]
        proof = _proof(state.parts.secret, upload_id, text)
        given = request.query_params.get("proof", "")
        if not hmac.compare_digest(given.encode("utf-8", "replace"), proof.encode()):
            raise Forbidden("that is not an address this server gave out for a part")
        number = int(text)
        upload = await run_sync(uploads.find, upload_id)
        with uploads.writing(upload, number) as part:
            await fill(part, request.stream())
            digest = await run_sync(part.keep)
        return Response(headers={"ETag": f'"{digest}"'})

    address = "/mlflow-artifacts/mpu/part/{upload_id}/{number}"
    return [Route(address, put_part, methods=["PUT"])]


def _path(ask: Ask) -> str:
    """Return the path the file will have: the client names a folder, and its own file."""
    folder, file = clean(ask.path["path"]), ask.need("path")
    name = clean(file.replace("\\", "/").rpartition("/")[2])
    if not name:
        raise Invalid("Invalid path", field="path")
    check_writes(ask.parts, ask.caller, folder)
    return join(folder, name)


def _credential(ask: Ask, upload: Upload, number: int) -> dict[str, Any]:
    proof = _proof(ask.parts.secret, upload.id, str(number))
    place = f"/api/2.0/mlflow-artifacts/mpu/part/{upload.id}/{number}?proof={proof}"
    return {"url": ask.base + place, "part_number": number, "headers": {}}


def _proof(secret: bytes, upload_id: str, number: str) -> str:
    what = f"part:{upload_id}:{number}".encode("utf-8", "replace")
    return hmac.new(secret, what, hashlib.sha256).hexdigest()


def _upload(ask: Ask, path: str) -> Upload:
    upload = ask.parts.uploads.find(ask.need("upload_id"))
    if upload.path != path:
        raise NotFound(f"upload {upload.id} is not of {path!r}")
    return upload


def _digests(ask: Ask) -> list[str]:
    """Return the digests of the parts, in the order of their numbers: their ETags."""
    if not ask.rows("parts"):
        raise missing("parts")
    found: dict[int, str] = {}
    for row in ask.rows("parts"):
        number, etag = whole(row.get("part_number"), "part_number"), row.get("etag")
        if number in found or not isinstance(etag, str):
            raise Invalid(f"part {number} is named twice, or without its ETag", field="parts")
        found[number] = etag.strip('"')
    if sorted(found) != list(range(1, len(found) + 1)):
        raise Invalid("the parts must be numbered from 1, and none may be missing", field="parts")
    return [found[number] for number in sorted(found)]
