"""Turns exceptions into responses: a status, one sentence, and the field to fix."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Match

from retarget import __version__
from retarget.blobs.folder import storage_errors
from retarget.core.errors import Invalid, RetargetError, StorageFull
from retarget.server.views import Problem

_log = logging.getLogger(__name__)
_ERROR_NAMES = {
    400: "Invalid",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "Invalid",
    408: "Invalid",
    409: "Conflict",
    413: "Invalid",
}
_PYDANTIC_MESSAGES = {  # replaces the messages of pydantic
    "missing": "is required",
    "extra_forbidden": "unknown field",
    "model_type": "must be a JSON object",
    "model_attributes_type": "must be a JSON object",
}
_INTERNAL_ERROR = "internal error; see the server log (`retarget server logs`)"
_MAX_MESSAGE_CHARACTERS = 2000  # a message may quote a request of any length
_MAX_INPUT_CHARACTERS = 60
_METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")

# Documented in /openapi.json for every route. No route returns another status.
PROBLEMS: dict[int | str, dict[str, Any]] = {
    code: {"model": Problem, "description": text}
    for code, text in {
        400: "The request could not be read",
        401: "The token is missing or wrong",
        403: "The token does not grant access",
        404: "Not found",
        408: "The body did not arrive in time",
        409: "Not possible in the current state",
        413: "The body is too large",
        422: "The request is invalid",
        503: "The target or the database is unreachable, or the server is busy",
        507: "The server's disk is full",
    }.items()
}


def add_handlers(app: FastAPI) -> None:
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)
    app.add_exception_handler(Exception, _on_unexpected_error)


def error_response(request: Request, error: Exception) -> JSONResponse:
    """Return the response to a request that raised this error."""
    for kind, handler in _HANDLERS.items():
        if isinstance(error, kind):
            return handler(request, error)
    return _on_unexpected_error(request, error)


def problem_response(error: Exception) -> JSONResponse:
    """Return the response to an error raised on purpose; 500 for any other."""
    if isinstance(error, RetargetError):
        field = error.field if isinstance(error, Invalid) else None
        return _response(error.status, type(error).__name__, str(error), field)
    return _response(500, "RetargetError", _INTERNAL_ERROR, None)


def _on_retarget_error(_: Request, error: Exception) -> JSONResponse:
    return problem_response(error)


def _on_validation_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError | ValidationError)
    first: Mapping[str, Any] = error.errors()[0]
    if first["type"] == "json_invalid":
        cause = first.get("ctx", {}).get("error")
        return _response(422, "Invalid", f"the body is not JSON: {cause}", None)
    path = [str(part) for part in first["loc"]]
    if isinstance(error, RequestValidationError):
        path = path[1:]  # without "body" or "query"
    if path[-1:] == ["[key]"]:
        path = path[:-2]  # an invalid key: name the object instead
    field = ".".join(path) or None
    return _response(422, "Invalid", f"{field or 'the body'}: {_sentence(first)}", field)


def _sentence(error: Mapping[str, Any]) -> str:
    """Return what is wrong, with the rejected value if it is short."""
    if error["type"] == "value_error":
        return str(error["msg"]).removeprefix("Value error, ")
    if error["type"] in _PYDANTIC_MESSAGES:
        return _PYDANTIC_MESSAGES[error["type"]]
    message = str(error["msg"]).replace("Input should", "must")
    raw = error["input"]
    is_integer = isinstance(raw, float) and raw.is_integer()  # a client sends 0 as 0.0
    value = f"{raw:g}" if is_integer else repr(raw)
    return f"{message}, not {value}" if len(value) <= _MAX_INPUT_CHARACTERS else message


def _on_http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    status, message = error.status_code, str(error.detail)
    if status == 400:
        message = "the body is not valid JSON"  # too deep, not UTF-8, or an endless number
    elif status in (404, 405):
        message = f"this server has no {request.method} {request.url.path}"
    response = _response(status, _ERROR_NAMES.get(status, "RetargetError"), message, None)
    if status == 405:
        response.headers["Allow"] = ", ".join(_allowed_methods(request))
    return response


def _allowed_methods(request: Request) -> list[str]:
    """Return the methods of this path. Each method has its own route."""
    routes: list[BaseRoute] = request.app.routes
    scopes = [{**request.scope, "method": method} for method in _METHODS]
    return [
        scope["method"]
        for scope in scopes
        if any(route.matches(scope)[0] is Match.FULL for route in routes)
    ]


def _on_disconnect(_: Request, error: Exception) -> JSONResponse:
    """Answer a request that was cut off. Its sender is gone, so nobody reads this."""
    return _response(400, "Invalid", "the request is incomplete", None)


def _on_os_error(request: Request, error: Exception) -> JSONResponse:
    try:
        with storage_errors():
            raise error
    except StorageFull as full:
        return _on_retarget_error(request, full)
    except OSError:
        return _on_unexpected_error(request, error)


def _on_unexpected_error(request: Request, error: Exception) -> JSONResponse:
    _log.error("%s %s", request.method, request.url.path, exc_info=error)
    return _response(500, "RetargetError", _INTERNAL_ERROR, None)


def _response(status: int, name: str, message: str, field: str | None) -> JSONResponse:
    field = None if field is None else _to_short_line(field)
    problem = Problem(error=name, message=_to_short_line(message), field=field)
    # lets a client of another version mention the difference
    headers = {"Retarget-Version": __version__}
    return JSONResponse(problem.model_dump(), status_code=status, headers=headers)


def _to_short_line(text: str) -> str:
    """Return the text as one printable line. The middle of a long text is cut."""
    half = _MAX_MESSAGE_CHARACTERS // 2
    short = text if len(text) <= _MAX_MESSAGE_CHARACTERS else f"{text[:half]} … {text[-half:]}"
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in short)


_HANDLERS: dict[type[Exception], Callable[[Request, Exception], JSONResponse]] = {
    RetargetError: _on_retarget_error,
    RequestValidationError: _on_validation_error,
    ValidationError: _on_validation_error,
    HTTPException: _on_http_error,
    ClientDisconnect: _on_disconnect,
    OSError: _on_os_error,
}
