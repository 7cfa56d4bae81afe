"""MLflow's REST API over our own store, as an application of its own.

Its addresses, errors and shapes are MLflow's, so it stands apart from our own API: nothing here
is in /openapi.json, and every error has MLflow's form.
"""

import hmac
import json
import logging
from asyncio import get_running_loop
from base64 import b64decode
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
from retarget.control.report import present
from retarget.core.errors import (
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    RetargetError,
    StorageFull,
    Unauthorized,
)
from retarget.core.tokens import is_attempt_token, key_of, opens
from retarget.server.bodies import read_whole
from retarget.server.mlflow.ask import Ask, Caller, Choices
from retarget.server.state import State

_log = logging.getLogger(__name__)

# What answers: it is run in a thread, and returns what becomes JSON, or the JSON in pieces.
Answer = Callable[[Ask], dict[str, Any] | Generator[bytes]]
Table = list[tuple[str, str, Answer]]  # method, address below /api/2.0, what answers

PLACES = ("/api/2.0", "/api/3.0", "/ajax-api/2.0", "/ajax-api/3.0")

_CODES: dict[type[RetargetError], tuple[int, str]] = {
    Invalid: (400, "INVALID_PARAMETER_VALUE"),
    NotFound: (404, "RESOURCE_DOES_NOT_EXIST"),
    Conflict: (400, "RESOURCE_ALREADY_EXISTS"),
    Unauthorized: (401, "UNAUTHENTICATED"),
    Forbidden: (403, "PERMISSION_DENIED"),
    Gone: (403, "PERMISSION_DENIED"),
    StorageFull: (507, "RESOURCE_EXHAUSTED"),
}


# They take over faster than those of anyio, which can do more.
_threads = ThreadPoolExecutor(16, thread_name_prefix="mlflow")


class NotOffered(RetargetError):
    """A part of MLflow's API that this server does not have."""

    status = 501


_CODES[NotOffered] = (501, "NOT_IMPLEMENTED")


class MlflowFirst:
    """Answers at MLflow's addresses, and leaves all others to the rest of the server.

    A script waits for every metric it logs. So an address without a variable part is found at once
    and answered right here; those with one go through the usual layers.
    """

    def __init__(self, state: State, tables: list[Table], others: FastAPI) -> None:
        choices = Choices()
        rows = [row for table in tables for row in table]
        self._others = others
        self._endpoints = {
            (method, place + address): _answering(_route(state, choices, answer))
            for method, address, answer in rows
            for place in PLACES
            if "{" not in address
        }
        self._routes = [
            Route(address, _route(state, choices, answer), methods=[method])
            for method, address, answer in rows
            if "{" in address
        ]

    def mount(self, more: list[BaseRoute]) -> None:
        """Have the rest of the server know the addresses with a variable part, and these."""
        handlers = {
            RetargetError: on_error,
            HTTPException: _http,
            ClientDisconnect: _left,
            Exception: on_error,
        }
        app = Starlette(routes=[*self._routes, *more], exception_handlers=handlers)
        for place in PLACES:
            self._others.mount(place, app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._endpoints.get((scope.get("method", ""), scope.get("path", "")))
        await (found or self._others)(scope, receive, send)


def _answering(endpoint: Callable[[Request], Awaitable[Response]]) -> ASGIApp:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await endpoint(request)
        except ClientDisconnect as error:
            response = await _left(request, error)
        except Exception as error:  # noqa: BLE001  it is logged, and answered
            response = await on_error(request, error)
        await response(scope, receive, send)

    return answer


def caller_of(state: State, request: Request) -> Caller:
    """Tell who asks, by the token, or raise Unauthorized."""
    token = _token(request)
    if is_attempt_token(token):
        key = key_of(token)
        if not opens(state.parts.secret, token, key):
            raise Unauthorized("that token is not one of this server's")
        job, _ = present(state.parts, key)
        return Caller(job_id=job.id, attempt=key)
    if not hmac.compare_digest(token.encode(), state.token.encode()):
        raise Unauthorized("that token is not this server's; set MLFLOW_TRACKING_TOKEN")
    return Caller()


def answer_json(content: dict[str, Any], status: int = 200) -> Response:
    body = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(body.encode("utf-8", "replace"), status, media_type="application/json")


async def on_error(request: Request, error: Exception) -> Response:
    """Answer with an error as MLflow's clients read it."""
    if isinstance(error, HTTPException):
        return await _http(request, error)
    for kind, (status, code) in _CODES.items():
        if isinstance(error, kind):
            return answer_json({"error_code": code, "message": str(error)}, status)
    _log.error("%s %s", request.method, request.url.path, exc_info=error)
    sentence = "the server made a mistake; its log (`retarget server logs`) says more"
    return answer_json({"error_code": "INTERNAL_ERROR", "message": sentence}, 500)


def _route(
    state: State, choices: Choices, answer: Answer
) -> Callable[[Request], Awaitable[Response]]:
    def answered(request: Request, sent: bytes) -> Response:
        caller = caller_of(state, request)
        body = _read(request, sent)
        base = str(request.base_url).rstrip("/")
        ask = Ask(state.parts, caller, body, dict(request.path_params), base, choices)
        return _response(answer(ask))

    async def endpoint(request: Request) -> Response:
        content = b"" if request.method == "GET" else await read_whole(request)
        return await get_running_loop().run_in_executor(_threads, answered, request, content)

    return endpoint


def _response(content: dict[str, Any] | Generator[bytes]) -> Response:
    if isinstance(content, dict):
        return answer_json(content)
    return StreamingResponse(_pieces(content), media_type="application/json")


async def _pieces(content: Generator[bytes]) -> AsyncGenerator[bytes]:
    """Yield what is read in threads; the database is let go even if the client leaves."""
    try:
        async for piece in iterate_in_threadpool(content):
            yield piece
    finally:
        with CancelScope(shield=True):
            await run_sync(content.close)


def _read(request: Request, content: bytes) -> dict[str, Any]:
    if request.method == "GET" or not content:
        query = request.query_params
        return {name: _alone(query.getlist(name)) for name in query}
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/json":
        raise Invalid("Bad Request. Content-Type must be one of ['application/json'].")
    try:
        body = json.loads(content)
        if isinstance(body, str):  # old clients encode it twice
            body = json.loads(body)
    except (ValueError, RecursionError):
        raise Invalid("the body of the request is not JSON") from None
    if not isinstance(body, dict):
        raise Invalid("the body of the request must be a JSON object")
    return body  # pyright: ignore[reportUnknownVariableType]


def _alone(values: list[str]) -> str | list[str]:
    return values[0] if len(values) == 1 else values


def _token(request: Request) -> str:
    """Return the token: a bearer's, or the password of a user, as in http://x:TOKEN@host."""
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    if kind.lower() == "basic":
        try:
            return b64decode(value).decode().partition(":")[2]
        except ValueError:
            pass
    raise Unauthorized("a token is needed: set MLFLOW_TRACKING_TOKEN")


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code in (404, 405):
        said = f"this server (Retarget {__version__}) has no {request.method} {request.url.path}"
        return answer_json({"error_code": "ENDPOINT_NOT_FOUND", "message": said}, 404)
    return answer_json({"error_code": "BAD_REQUEST", "message": error.detail}, error.status_code)


async def _left(request: Request, error: Exception) -> Response:
    return answer_json({"error_code": "BAD_REQUEST", "message": "the request broke off"}, 400)
