"""MLflow's API: multipart uploads of artifacts.

A client receives a URL for each part. It sends the parts without its token, so each URL carries a
proof that is valid for that part only.
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
from retarget.server.mlflow.app import RouteTable
from retarget.server.mlflow.request import MlflowRequest, missing, read_integer
from retarget.server.mlflow.tree import check_writes, join, normalize, write_chunks
from retarget.server.state import State

_MAX_PARTS = 10_000  # per file, as in S3


def create(request: MlflowRequest) -> dict[str, Any]:
    path = _path(request)
    number = request.integer("num_parts", 1) or 0
    if not 1 <= number <= _MAX_PARTS:
        raise Invalid(
            f"num_parts must be between 1 and {_MAX_PARTS}, got {number}", field="num_parts"
        )
    upload = request.context.files.uploads.create(path, number)
    credentials = [_credential(request, upload, part) for part in range(1, number + 1)]
    return {"upload_id": upload.id, "credentials": credentials}


def complete(request: MlflowRequest) -> dict[str, Any]:
    """Join the parts to one file. Repeating a completed request succeeds without effect."""
    path, digests, context = _path(request), _digests(request), request.context
    with context.files.uploads.lock(request.required_string("upload_id")):
        upload = _upload(request, path)
        if not upload.done:
            size, digest = context.files.uploads.join(upload, digests, context.files.blobs)
            context.store.artifacts.put(path, size, digest)
            context.files.uploads.finish(upload)
    return {}


def abort(request: MlflowRequest) -> dict[str, Any]:
    path = _path(request)
    with request.context.files.uploads.lock(request.required_string("upload_id")):
        request.context.files.uploads.remove(_upload(request, path).id)
    return {}


ROUTES: RouteTable = [
    ("POST", "/mlflow-artifacts/mpu/create/{path:path}", create),
    ("POST", "/mlflow-artifacts/mpu/complete/{path:path}", complete),
    ("POST", "/mlflow-artifacts/mpu/abort/{path:path}", abort),
]


def routes(state: State) -> list[BaseRoute]:
    """Return the route that receives the parts."""
    uploads = state.context.files.uploads

    async def put_part(request: Request) -> Response:
        upload_id, text = request.path_params["upload_id"], request.path_params["number"]
        proof = _proof(state.context.settings.secret, upload_id, text)
        sent_proof = request.query_params.get("proof", "")
        if not hmac.compare_digest(sent_proof.encode("utf-8", "replace"), proof.encode()):
            raise Forbidden("this server did not issue that upload URL")
        number = int(text)
        upload = await run_sync(uploads.find, upload_id)
        with uploads.writing(upload, number) as part:
            await write_chunks(part, request.stream())
            digest = await run_sync(part.keep)
        return Response(headers={"ETag": f'"{digest}"'})

    address = "/mlflow-artifacts/mpu/part/{upload_id}/{number}"
    return [Route(address, put_part, methods=["PUT"])]


def _path(request: MlflowRequest) -> str:
    """Return the path of the file: the folder in the URL, and the name of the client's file."""
    folder, file = normalize(request.path_params["path"]), request.required_string("path")
    name = normalize(file.replace("\\", "/").rpartition("/")[2])
    if not name:
        raise Invalid("Invalid path", field="path")
    check_writes(request.context, request.principal, folder)
    return join(folder, name)


def _credential(request: MlflowRequest, upload: Upload, number: int) -> dict[str, Any]:
    proof = _proof(request.context.settings.secret, upload.id, str(number))
    path = f"/api/2.0/mlflow-artifacts/mpu/part/{upload.id}/{number}?proof={proof}"
    return {"url": request.base_url + path, "part_number": number, "headers": {}}


def _proof(secret: bytes, upload_id: str, number: str) -> str:
    message = f"part:{upload_id}:{number}".encode("utf-8", "replace")
    return hmac.new(secret, message, hashlib.sha256).hexdigest()


def _upload(request: MlflowRequest, path: str) -> Upload:
    upload = request.context.files.uploads.find(request.required_string("upload_id"))
    if upload.path != path:
        raise NotFound(f"upload {upload.id} is not an upload of {path!r}")
    return upload


def _digests(request: MlflowRequest) -> list[str]:
    """Return the digests of the parts, which are their ETags, in the order of their numbers."""
    if not request.rows("parts"):
        raise missing("parts")
    digests: dict[int, str] = {}
    for row in request.rows("parts"):
        number, etag = read_integer(row.get("part_number"), "part_number"), row.get("etag")
        if number in digests or not isinstance(etag, str):
            raise Invalid(f"part {number} is listed twice or has no ETag", field="parts")
        digests[number] = etag.strip('"')
    if sorted(digests) != list(range(1, len(digests) + 1)):
        raise Invalid("the parts must be numbered from 1 without gaps", field="parts")
    return [digests[number] for number in sorted(digests)]
