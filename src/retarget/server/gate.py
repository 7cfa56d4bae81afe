"""Lets requests in: checks the token of each one by its head alone, before its body is read."""

import gc

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retarget.core.errors import Forbidden, Unauthorized
from retarget.server.auth import (
    PRINCIPAL,
    Principal,
    authenticate_mlflow,
    authenticate_runner,
    authenticate_user,
)
from retarget.server.connections import PROVEN
from retarget.server.errors import error_response
from retarget.server.mlflow.app import PREFIXES
from retarget.server.mlflow.app import error_response as mlflow_error_response
from retarget.server.request_bodies import BODY, BodyBudget, IncomingBody
from retarget.server.state import State
from retarget.server.websockets import deny

_ATTEMPTS = "/api/attempts/"
_MLFLOW = tuple(f"{prefix}/" for prefix in PREFIXES)
_MLFLOW_DOWNLOADS = ("/get-artifact", "/model-versions/get-artifact")
# Below a prefix of MLflow. A part of an upload has its proof in its URL.
_MLFLOW_OPEN = tuple(f"{prefix}/mlflow/server-info" for prefix in PREFIXES)
_MLFLOW_PARTS = tuple(f"{prefix}/mlflow-artifacts/mpu/part/" for prefix in PREFIXES)
_COLLECTED_BYTES = 32 << 20  # of failed bodies that may wait for a garbage collection


class Gate:
    """In front of the application: every request needs a token, except at the open paths."""

    def __init__(self, state: State, app: ASGIApp) -> None:
        self._state = state
        self._app = app
        self._budget = BodyBudget()
        self._failed_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            principal = self._authenticate(scope)
        except (Unauthorized, Forbidden) as error:
            await _refuse(scope, receive, send, error)
            return
        scope[PRINCIPAL] = principal
        if scope["type"] == "websocket":
            await self._app(scope, receive, send)
            return
        if principal is not None and PROVEN in scope:
            scope.pop(PROVEN)()
        await self._pass_on(scope, receive, send)

    def _authenticate(self, scope: Scope) -> Principal | None:
        """Return who makes the request, or None at an open path. Raise without a valid token."""
        path: str = scope["path"]
        if path.startswith(_ATTEMPTS):
            key = path[len(_ATTEMPTS) :].partition("/")[0]
            return authenticate_runner(scope, key)
        if path.startswith(_MLFLOW) or path in _MLFLOW_DOWNLOADS:
            if path in _MLFLOW_OPEN or path.startswith(_MLFLOW_PARTS):
                return None
            return authenticate_mlflow(self._state, _authorization(scope))
        if path == "/api" or path.startswith("/api/"):
            return authenticate_user(self._state, _authorization(scope))
        return None

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        principal: Principal | None = scope[PRINCIPAL]
        is_user = principal is not None and principal.attempt is None
        scope[BODY] = body = IncomingBody(self._budget, scope, receive, is_user=is_user)
        status, is_answered = 500, False

        async def send_and_note(message: Message) -> None:
            nonlocal status, is_answered
            status = message.get("status", status)
            is_answered = message["type"].endswith(".body") and not message.get("more_body")
            await send(message)

        try:
            await self._app(scope, body.receive, send_and_note)
        except Exception:
            if not is_answered:  # else it is logged already
                raise
        finally:
            body.release()
            if status >= 400:
                self._collect(body.size)

    def _collect(self, size: int) -> None:
        """Free bodies of failed requests: their errors refer to them, and to each other."""
        self._failed_bytes += size
        if self._failed_bytes >= _COLLECTED_BYTES:
            self._failed_bytes = 0
            gc.collect()


def _authorization(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"authorization":
            return value.decode("latin-1")
    return ""


async def _refuse(scope: Scope, receive: Receive, send: Send, error: Exception) -> None:
    if scope["type"] == "websocket":
        await deny(scope, receive, send, error)
        return
    request, path = Request(scope, receive), scope["path"]
    if path.startswith(_MLFLOW) or path in _MLFLOW_DOWNLOADS:
        response = await mlflow_error_response(request, error)
    else:
        response = error_response(request, error)
    await response(scope, receive, send)
