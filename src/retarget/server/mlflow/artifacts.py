"""MLflow's API: artifacts, through the server."""

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

from retarget.control.parts import Parts
from retarget.core.errors import Invalid, RetargetError
from retarget.core.models import REGISTRY, check_version
from retarget.core.tracking import artifact_path
from retarget.server.mlflow import uploads
from retarget.server.mlflow.app import NotOffered, Table, answer_json, caller_of, on_error
from retarget.server.mlflow.ask import Ask, Caller, missing
from retarget.server.mlflow.tree import CHUNK, check_writes, clean, fill, is_clean, join
from retarget.server.state import State

_TREE = "/mlflow-artifacts/artifacts"
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")

# What a client is told of the server before it asks for more.
_INFO: dict[str, Any] = {
    "store_type": "SqlStore",
    "workspaces_enabled": False,
    "trace_archival_enabled": False,
    # Parts are taken in from clients told to send them. Others send a file as a whole: that works
    # behind any proxy, while the address of a part is only as good as the Host we were told.
    "multipart_uploads_enabled": False,
    "multipart_downloads_enabled": False,
    "presigned_upload_run_id_supported": True,
    "presigned_upload_model_id_supported": True,
    "features_enabled": {"gateway": False},
}

_SMALL = 10 << 20  # bytes of a file that a browser may send

_TEXT = re.compile(
    "txt|log|err|cfg|conf|cnf|cf|ini|properties|prop|hocon|toml|ya?ml|xml|json|js|py3?|csv|tsv|md|"
    "rst|ipynb|MLmodel|mlproject"
)


def list_tree(ask: Ask) -> dict[str, Any]:
    return listed(ask.parts, clean(ask.text("path")))


def list_run(ask: Ask) -> dict[str, Any]:
    """List what a run's folder holds; the paths begin there."""
    path = clean(ask.text("path"))
    location = ask.parts.runs.get(ask.need("run_id")).location
    return {"root_uri": location} | listed(ask.parts, join(ours(location), path), path)


def presign_download(ask: Ask) -> dict[str, Any]:
    raise NotOffered("Multipart download is not supported for the current artifact repository")


def presign_run_upload(ask: Ask) -> dict[str, Any]:
    raise NotOffered("Presigned upload is not supported for the current artifact repository")


def presign_run_download(ask: Ask) -> dict[str, Any]:
    raise NotOffered("Presigned download is not supported for the current artifact repository")


TABLE: Table = [
    ("GET", _TREE, list_tree),
    ("GET", "/mlflow/artifacts/list", list_run),
    ("GET", "/mlflow-artifacts/presigned/{path:path}", presign_download),
    ("POST", "/mlflow/artifacts/presigned-upload-url", presign_run_upload),
    ("POST", "/mlflow/artifacts/presigned-download-url", presign_run_download),
    *uploads.TABLE,
]


def routes(state: State) -> list[BaseRoute]:
    """Return the routes that carry bytes, and the one that needs no token."""

    async def get(request: Request) -> Response:
        return await run_sync(_get, state, request)

    async def put(request: Request) -> Response:
        return await _take(state.parts, await run_sync(_writable, state, request), request)

    async def put_small(request: Request) -> Response:
        path = await run_sync(_writable_small, state, request)
        return await _take(state.parts, path, request, _check_small)

    async def delete(request: Request) -> Response:
        await run_sync(_delete, state, request)
        return answer_json({})

    async def get_of_model(request: Request) -> Response:
        return await run_sync(_get_of_model, state, request)

    async def show_info(_: Request) -> Response:
        return answer_json(_INFO)

    one = f"{_TREE}/{{path:path}}"
    return [
        Route(one, get, methods=["GET"]),
        Route(one, put, methods=["PUT"]),
        Route(one, delete, methods=["DELETE"]),
        Route("/mlflow/logged-models/{model_id}/artifacts/files", get_of_model, methods=["GET"]),
        Route("/mlflow/upload-artifact", put_small, methods=["POST"]),
        Route("/mlflow/server-info", show_info, methods=["GET"]),
        *uploads.routes(state),
    ]


def loose_routes(state: State) -> list[BaseRoute]:
    """Return the routes that MLflow has outside of its API: downloads, for browsers."""

    def route(address: str, find: Callable[[Parts, Request], str]) -> Route:
        async def get(request: Request) -> Response:
            try:
                return await run_sync(_get_loose, state, request, find)
            except RetargetError as error:
                return await on_error(request, error)

        return Route(address, get, methods=["GET"])

    return [
        route("/get-artifact", _location_of_run),
        route("/model-versions/get-artifact", _location_of_version),
    ]


async def _take(
    parts: Parts, path: str, request: Request, check: Callable[[int], None] | None = None
) -> Response:
    with parts.blobs.writing() as part:
        await fill(part, request.stream())
        if check is not None:
            check(part.size)
        digest = await run_sync(part.keep)
    await run_sync(parts.artifacts.put, path, part.size, digest)
    return answer_json({})


def _check_small(size: int) -> None:
    if not size:
        raise Invalid("Request must specify data.")
    if size > _SMALL:
        raise Invalid("Artifact size is too large. Max size is 10MB.")


def _get(state: State, request: Request) -> Response:
    caller_of(state, request)
    return _send(state.parts, _asked(request))


def _get_of_model(state: State, request: Request) -> Response:
    caller_of(state, request)
    path = clean(_query(request, "artifact_file_path"))
    model = state.parts.logged_models.get(request.path_params["model_id"])
    return _send(state.parts, join(ours(model.location), path))


def _get_loose(state: State, request: Request, find: Callable[[Parts, Request], str]) -> Response:
    caller_of(state, request)
    path = clean(_query(request, "path"))
    return _send(state.parts, join(ours(find(state.parts, request)), path))


def _writable(state: State, request: Request) -> str:
    caller, path = _opened(state, request)
    if request.scope["path"].endswith("/"):
        raise Invalid("Artifact path must include a filename (cannot end with '/').", field="path")
    if path.isdecimal() or path == REGISTRY:
        raise Invalid(f"{path!r} cannot be written: it is a folder of others", field="path")
    check_writes(state.parts, caller, path.rpartition("/")[0])
    return path


def _writable_small(state: State, request: Request) -> str:
    """Return the path of a file of a run, which a browser sends as MLflow's pages do."""
    caller = caller_of(state, request)
    given = [request.query_params.get(name, "") for name in ("run_uuid", "path")]
    for name, value in zip(("run_uuid", "path"), given, strict=True):
        if not value:
            raise Invalid(f"Request must specify {name}.", field=name)
    run_id, path = given[0], clean(given[1])
    folder = ours(state.parts.runs.get(run_id).location)
    check_writes(state.parts, caller, folder)
    return join(folder, path)


def _delete(state: State, request: Request) -> None:
    caller, path = _opened(state, request)
    check_writes(state.parts, caller, path)
    state.parts.artifacts.remove(path)


def _opened(state: State, request: Request) -> tuple[Caller, str]:
    caller, path = caller_of(state, request), _asked(request)
    if not path:
        raise Invalid("Invalid path", field="path")
    return caller, path


def _asked(request: Request) -> str:
    # the route's own idea of it ends before a line break
    return clean(request.scope["path"].partition(f"{_TREE}/")[2])


def _query(request: Request, name: str) -> str:
    value = request.query_params.get(name, "")
    if not value:
        raise missing(name)
    return value


def _location_of_run(parts: Parts, request: Request) -> str:
    run_id = request.query_params.get("run_id") or _query(request, "run_uuid")
    return parts.runs.get(run_id).location


def _location_of_version(parts: Parts, request: Request) -> str:
    version = check_version(_query(request, "version"))
    return parts.models.get_version(_query(request, "name"), version).location


def ours(location: str) -> str:
    path = artifact_path(location)
    if path is None:
        raise NotOffered(f"the artifacts are at {location}, which this server does not serve")
    return path


def listed(parts: Parts, folder: str, shown: str = "") -> dict[str, Any]:
    files: list[dict[str, Any]] = []
    for entry in parts.artifacts.list(folder):
        if is_clean(entry.name):
            file = {"path": join(shown, entry.name), "is_dir": entry.is_dir}
            files.append(file if entry.is_dir else file | {"file_size": entry.size})
    return {"files": files} if files else {}


def _send(parts: Parts, path: str) -> Response:
    """Send a file, always as an attachment: no browser may run what a job has written."""
    file = parts.artifacts.find(path)
    name = path.rpartition("/")[2]
    headers = {
        "content-type": _type(name),
        "content-disposition": _attachment(name),
        "x-content-type-options": "nosniff",
        "etag": f'"{file.digest}"',
    }
    response = FileResponse(parts.blobs.path(file.digest), headers=headers)
    response.chunk_size = CHUNK
    return response


def _type(name: str) -> str:
    ending = name.rpartition(".")[2]  # all of a name without a dot
    return (
        "text/plain"
        if _TEXT.fullmatch(ending)
        else guess_type(name)[0] or "application/octet-stream"
    )


def _attachment(name: str) -> str:
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
