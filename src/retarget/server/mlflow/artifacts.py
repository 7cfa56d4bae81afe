"""MLflow's API: artifacts, proxied by the server."""

import re
import unicodedata
from collections.abc import Callable
from mimetypes import guess_type
from typing import Any
from urllib.parse import quote

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route

from retarget.control.context import Context
from retarget.core.errors import Invalid, RetargetError
from retarget.core.models import REGISTRY, check_version
from retarget.core.tracking import artifact_path
from retarget.server.mlflow import uploads
from retarget.server.mlflow.app import (
    NotSupported,
    RouteTable,
    error_response,
    find_principal,
    json_response,
)
from retarget.server.mlflow.request import MlflowRequest, Principal, missing
from retarget.server.mlflow.tree import (
    CHUNK_BYTES,
    check_writes,
    is_normal,
    join,
    normalize,
    write_chunks,
)
from retarget.server.state import State

_ARTIFACTS_PATH = "/mlflow-artifacts/artifacts"
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")

# The capabilities of this server, which clients read first.
_SERVER_INFO: dict[str, Any] = {
    "store_type": "SqlStore",
    "workspaces_enabled": False,
    "trace_archival_enabled": False,
    # Clients that are configured for multipart uploads can use them. Others send whole files: that
    # works behind any proxy, while the URL of a part depends on the Host header.
    "multipart_uploads_enabled": False,
    "multipart_downloads_enabled": False,
    "presigned_upload_run_id_supported": True,
    "presigned_upload_model_id_supported": True,
    "features_enabled": {"gateway": False},
}

_MAX_BROWSER_UPLOAD_BYTES = 10 << 20

_TEXT_EXTENSIONS = re.compile(
    "txt|log|err|cfg|conf|cnf|cf|ini|properties|prop|hocon|toml|ya?ml|xml|json|js|py3?|csv|tsv|md|"
    "rst|ipynb|MLmodel|mlproject"
)


def list_tree(request: MlflowRequest) -> dict[str, Any]:
    return list_folder(request.context, normalize(request.string("path")))


def list_run(request: MlflowRequest) -> dict[str, Any]:
    """List a folder of a run. Paths are relative to the root of the run."""
    path = normalize(request.string("path"))
    location = request.context.store.runs.get(request.required_string("run_id")).location
    return {"root_uri": location} | list_folder(
        request.context, join(artifact_folder(location), path), path
    )


def presign_download(request: MlflowRequest) -> dict[str, Any]:
    raise NotSupported("Multipart download is not supported for the current artifact repository")


def presign_run_upload(request: MlflowRequest) -> dict[str, Any]:
    raise NotSupported("Presigned upload is not supported for the current artifact repository")


def presign_run_download(request: MlflowRequest) -> dict[str, Any]:
    raise NotSupported("Presigned download is not supported for the current artifact repository")


ROUTES: RouteTable = [
    ("GET", _ARTIFACTS_PATH, list_tree),
    ("GET", "/mlflow/artifacts/list", list_run),
    ("GET", "/mlflow-artifacts/presigned/{path:path}", presign_download),
    ("POST", "/mlflow/artifacts/presigned-upload-url", presign_run_upload),
    ("POST", "/mlflow/artifacts/presigned-download-url", presign_run_download),
    *uploads.ROUTES,
]


def routes(state: State) -> list[BaseRoute]:
    """Return the routes that transfer bytes, and the one that needs no token."""

    async def get(request: Request) -> Response:
        return await run_sync(_get, state, request)

    async def put(request: Request) -> Response:
        return await _store(state.context, await run_sync(_writable_path, state, request), request)

    async def put_small(request: Request) -> Response:
        path = await run_sync(_browser_upload_path, state, request)
        return await _store(state.context, path, request, _check_browser_upload)

    async def delete(request: Request) -> Response:
        await run_sync(_delete, state, request)
        return json_response({})

    async def get_of_model(request: Request) -> Response:
        return await run_sync(_get_of_model, state, request)

    async def show_info(_: Request) -> Response:
        return json_response(_SERVER_INFO)

    file_path = f"{_ARTIFACTS_PATH}/{{path:path}}"
    return [
        Route(file_path, get, methods=["GET"]),
        Route(file_path, put, methods=["PUT"]),
        Route(file_path, delete, methods=["DELETE"]),
        Route("/mlflow/logged-models/{model_id}/artifacts/files", get_of_model, methods=["GET"]),
        Route("/mlflow/upload-artifact", put_small, methods=["POST"]),
        Route("/mlflow/server-info", show_info, methods=["GET"]),
        *uploads.routes(state),
    ]


def download_routes(state: State) -> list[BaseRoute]:
    """Return the download routes for browsers, which MLflow has outside its API."""

    def route(path: str, locate: Callable[[Context, Request], str]) -> Route:
        async def get(request: Request) -> Response:
            try:
                return await run_sync(_download, state, request, locate)
            except RetargetError as error:
                return await error_response(request, error)

        return Route(path, get, methods=["GET"])

    return [
        route("/get-artifact", _location_of_run),
        route("/model-versions/get-artifact", _location_of_version),
    ]


async def _store(
    context: Context, path: str, request: Request, check: Callable[[int], None] | None = None
) -> Response:
    with context.files.blobs.writing() as part:
        await write_chunks(part, request.stream())
        if check is not None:
            check(part.size)
        digest = await run_sync(part.keep)
    await run_sync(context.store.artifacts.put, path, part.size, digest)
    return json_response({})


def _check_browser_upload(size: int) -> None:
    if not size:
        raise Invalid("Request must specify data.")
    if size > _MAX_BROWSER_UPLOAD_BYTES:
        raise Invalid("Artifact size is too large. Max size is 10MB.")


def _get(state: State, request: Request) -> Response:
    find_principal(state, request)
    return _send(state.context, _tree_path(request))


def _get_of_model(state: State, request: Request) -> Response:
    find_principal(state, request)
    path = normalize(_required_query(request, "artifact_file_path"))
    model = state.context.store.logged_models.get(request.path_params["model_id"])
    return _send(state.context, join(artifact_folder(model.location), path))


def _download(
    state: State, request: Request, locate: Callable[[Context, Request], str]
) -> Response:
    find_principal(state, request)
    path = normalize(_required_query(request, "path"))
    return _send(state.context, join(artifact_folder(locate(state.context, request)), path))


def _writable_path(state: State, request: Request) -> str:
    principal, path = _authenticated_path(state, request)
    if request.scope["path"].endswith("/"):
        raise Invalid("Artifact path must include a filename (cannot end with '/').", field="path")
    if path.isdecimal() or path == REGISTRY:
        raise Invalid(
            f"{path!r} cannot be written: that name is reserved for a folder", field="path"
        )
    check_writes(state.context, principal, path.rpartition("/")[0])
    return path


def _browser_upload_path(state: State, request: Request) -> str:
    """Return the path of a run's file that a browser uploads from MLflow's pages."""
    principal = find_principal(state, request)
    query = {name: request.query_params.get(name, "") for name in ("run_uuid", "path")}
    for name, value in query.items():
        if not value:
            raise Invalid(f"Request must specify {name}.", field=name)
    run_id, path = query["run_uuid"], normalize(query["path"])
    folder = artifact_folder(state.context.store.runs.get(run_id).location)
    check_writes(state.context, principal, folder)
    return join(folder, path)


def _delete(state: State, request: Request) -> None:
    principal, path = _authenticated_path(state, request)
    check_writes(state.context, principal, path)
    state.context.store.artifacts.remove(path)


def _authenticated_path(state: State, request: Request) -> tuple[Principal, str]:
    principal, path = find_principal(state, request), _tree_path(request)
    if not path:
        raise Invalid("Invalid path", field="path")
    return principal, path


def _tree_path(request: Request) -> str:
    # not the path parameter: that ends before a line break
    return normalize(request.scope["path"].partition(f"{_ARTIFACTS_PATH}/")[2])


def _required_query(request: Request, name: str) -> str:
    value = request.query_params.get(name, "")
    if not value:
        raise missing(name)
    return value


def _location_of_run(context: Context, request: Request) -> str:
    run_id = request.query_params.get("run_id") or _required_query(request, "run_uuid")
    return context.store.runs.get(run_id).location


def _location_of_version(context: Context, request: Request) -> str:
    version = check_version(_required_query(request, "version"))
    return context.store.models.get_version(_required_query(request, "name"), version).location


def artifact_folder(location: str) -> str:
    path = artifact_path(location)
    if path is None:
        raise NotSupported(f"the artifacts are at {location}, which this server cannot access")
    return path


def list_folder(context: Context, folder: str, prefix: str = "") -> dict[str, Any]:
    files: list[dict[str, Any]] = []
    for entry in context.store.artifacts.list(folder):
        if is_normal(entry.name):
            file = {"path": join(prefix, entry.name), "is_dir": entry.is_dir}
            files.append(file if entry.is_dir else file | {"file_size": entry.size})
    return {"files": files} if files else {}


def _send(context: Context, path: str) -> Response:
    """Send a file as an attachment, so that no browser runs what a job wrote."""
    file = context.store.artifacts.find(path)
    name = path.rpartition("/")[2]
    headers = {
        "content-type": _content_type(name),
        "content-disposition": _content_disposition(name),
        "x-content-type-options": "nosniff",
        "etag": f'"{file.digest}"',
    }
    response = FileResponse(context.files.blobs.path(file.digest), headers=headers)
    response.chunk_size = CHUNK_BYTES
    return response


def _content_type(name: str) -> str:
    extension = name.rpartition(".")[2]  # the whole name if it has no dot
    return (
        "text/plain"
        if _TEXT_EXTENSIONS.fullmatch(extension)
        else guess_type(name)[0] or "application/octet-stream"
    )


def _content_disposition(name: str) -> str:
    if name.isascii():
        return f"attachment; filename={_quoted(name)}"
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode() or "download"
    encoded = quote(name, safe="!#$&+-.^_`|~", errors="replace")
    return f"attachment; filename={_quoted(plain)}; filename*=UTF-8''{encoded}"


def _quoted(name: str) -> str:
    if _TOKEN.fullmatch(name):
        return name
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
