"""Serves MLflow's REST API as a separate application.

Paths, fields and errors are MLflow's, unlike those of our own API: it is not part of
/openapi.json, and every error has the format of MLflow.
"""

import json
import logging
from asyncio import get_running_loop
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from anyio import CancelScope
from anyio.to_thread import run_sync
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.concurrency import iterate_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from retarget import __version__
from retarget.control.attempts import current_attempt
from retarget.control.job_secrets import mask_secrets
from retarget.core.errors import (
    Conflict,
    DatabaseUnreachable,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    RetargetError,
    StorageFull,
    Unauthorized,
)
from retarget.server.auth import principal_of
from retarget.server.mlflow.request import MlflowRequest, Principal
from retarget.server.request_bodies import read_body
from retarget.server.state import State

_log = logging.getLogger(__name__)

# Runs in a thread. It returns a dictionary to be written as JSON, or the JSON in chunks.
Handler = Callable[[MlflowRequest], dict[str, Any] | Generator[bytes]]
RouteTable = list[tuple[str, str, Handler]]  # method, path below /api/2.0, handler

PREFIXES = ("/api/2.0", "/api/3.0", "/ajax-api/2.0", "/ajax-api/3.0")

_CODES: dict[type[RetargetError], tuple[int, str]] = {
    Invalid: (400, "INVALID_PARAMETER_VALUE"),
    NotFound: (404, "RESOURCE_DOES_NOT_EXIST"),
    Conflict: (400, "RESOURCE_ALREADY_EXISTS"),
    Unauthorized: (401, "UNAUTHENTICATED"),
    Forbidden: (403, "PERMISSION_DENIED"),
    Gone: (403, "PERMISSION_DENIED"),
    StorageFull: (507, "RESOURCE_EXHAUSTED"),
    DatabaseUnreachable: (503, "TEMPORARILY_UNAVAILABLE"),
}

# Hands over work faster than the thread pool of anyio.
_executor = ThreadPoolExecutor(16, thread_name_prefix="mlflow")


class NotSupported(RetargetError):
    """The request uses a part of MLflow's API that this server does not implement."""

    status = 501


_CODES[NotSupported] = (501, "NOT_IMPLEMENTED")


class MlflowDispatcher:
    """Handles requests to MLflow's API, and passes all others on to the rest of the server.

    A script waits for every metric that it logs. So a path without parameters is looked up in a
    dictionary and handled here; paths with parameters go through the usual layers.
    """

    def __init__(self, state: State, tables: list[RouteTable], next_app: FastAPI) -> None:
        rows = [row for table in tables for row in table]
        self._next_app = next_app
        self._endpoints = {
            (method, prefix + path): _as_asgi(_make_endpoint(state, handler))
            for method, path, handler in rows
            for prefix in PREFIXES
            if "{" not in path
        }
        self._routes = [
            Route(path, _make_endpoint(state, handler), methods=[method])
            for method, path, handler in rows
            if "{" in path
        ]

    def mount(self, routes: list[BaseRoute]) -> None:
        """Mount the paths with parameters, and these routes, in the rest of the server."""
        handlers = {
            RetargetError: error_response,
            HTTPException: _on_http_error,
            ClientDisconnect: _on_disconnect,
            Exception: error_response,
        }
        app = Starlette(routes=[*self._routes, *routes], exception_handlers=handlers)
        for prefix in PREFIXES:
            self._next_app.mount(prefix, app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._endpoints.get((scope.get("method", ""), scope.get("path", "")))
        await (endpoint or self._next_app)(scope, receive, send)


def _as_asgi(endpoint: Callable[[Request], Awaitable[Response]]) -> ASGIApp:
    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await endpoint(request)
        except ClientDisconnect as error:
            response = await _on_disconnect(request, error)
        except Exception as error:  # noqa: BLE001  logged and answered
            response = await error_response(request, error)
        await response(scope, receive, send)

    return handle


def find_principal(state: State, request: Request) -> Principal:
    """Return who makes the request, or raise Gone if that attempt has ended."""
    key = principal_of(request).attempt
    if key is None:
        return Principal()
    job, _ = current_attempt(state.context, key)
    return Principal(job_id=job.id, attempt=key, has_secrets=bool(job.spec.secrets))


def json_response(content: dict[str, Any], status: int = 200) -> Response:
    body = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(body.encode("utf-8", "replace"), status, media_type="application/json")


async def error_response(request: Request, error: Exception) -> Response:
    """Return an error in the format that MLflow's clients read."""
    if isinstance(error, HTTPException):
        return await _on_http_error(request, error)
    for kind, (status, code) in _CODES.items():
        if isinstance(error, kind):
            return json_response({"error_code": code, "message": str(error)}, status)
    _log.error("%s %s", request.method, request.url.path, exc_info=error)
    message = "internal error; see the server log (`retarget server logs`)"
    return json_response({"error_code": "INTERNAL_ERROR", "message": message}, 500)


def _make_endpoint(state: State, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    def handle(request: Request, content: bytes) -> Response:
        principal = find_principal(state, request)
        fields = _read_fields(request, content)
        if principal.has_secrets and request.method != "GET":
            fields = mask_secrets(state.context, principal.attempt or "", fields)
        mlflow_request = MlflowRequest(
            context=state.context,
            principal=principal,
            body=fields,
            path_params=dict(request.path_params),
            base_url=str(request.base_url).rstrip("/"),
        )
        return _response(handler(mlflow_request))

    async def endpoint(request: Request) -> Response:
        content = b"" if request.method == "GET" else await read_body(request)
        return await get_running_loop().run_in_executor(_executor, handle, request, content)

    return endpoint


def _response(content: dict[str, Any] | Generator[bytes]) -> Response:
    if isinstance(content, dict):
        return json_response(content)
    return StreamingResponse(_iterate_in_threads(content), media_type="application/json")


async def _iterate_in_threads(content: Generator[bytes]) -> AsyncGenerator[bytes]:
    """Yield chunks that a thread reads. The database is released even if the client disconnects."""
    try:
        async for chunk in iterate_in_threadpool(content):
            yield chunk
    finally:
        with CancelScope(shield=True):
            await run_sync(content.close)


def _read_fields(request: Request, content: bytes) -> dict[str, Any]:
    if request.method == "GET" or not content:
        query = request.query_params
        return {name: _unwrap_single(query.getlist(name)) for name in query}
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/json":
        raise Invalid("Bad Request. Content-Type must be one of ['application/json'].")
    try:
        body = json.loads(content)
        if isinstance(body, str):  # old clients encode the body twice
            body = json.loads(body)
    except (ValueError, RecursionError):
        raise Invalid("the body of the request is not JSON") from None
    if not isinstance(body, dict):
        raise Invalid("the body of the request must be a JSON object")
    return body  # pyright: ignore[reportUnknownVariableType]


def _unwrap_single(values: list[str]) -> str | list[str]:
    return values[0] if len(values) == 1 else values


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code in (404, 405):
        message = f"this server (Retarget {__version__}) has no {request.method} {request.url.path}"
        return json_response({"error_code": "ENDPOINT_NOT_FOUND", "message": message}, 404)
    return json_response({"error_code": "BAD_REQUEST", "message": error.detail}, error.status_code)


async def _on_disconnect(request: Request, error: Exception) -> Response:
    return json_response({"error_code": "BAD_REQUEST", "message": "the request is incomplete"}, 400)
