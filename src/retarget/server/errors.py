"""Turns what is raised into answers: one sentence, a status, and the field to mend."""

import logging
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from retarget.core.errors import Invalid, RetargetError
from retarget.server.views import Problem

_log = logging.getLogger(__name__)
_NAMES = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 405: "Invalid", 409: "Conflict"}

# Shown in /openapi.json for every route; none answers anything else.
PROBLEMS: dict[int | str, dict[str, Any]] = {
    code: {"model": Problem, "description": text}
    for code, text in {
        400: "The request cannot be read",
        401: "No token, or a wrong one",
        403: "The token is for something else",
        404: "No such thing",
        409: "Not in that state",
        422: "The request can never work",
        503: "The target does not answer",
        507: "The server's disk is full",
    }.items()
}


def add_handlers(app: FastAPI) -> None:
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)
    app.add_exception_handler(Exception, _by_accident)


def answer_to(request: Request, error: Exception) -> JSONResponse:
    """Return the answer to a request that has led to this."""
    for kind, handler in _HANDLERS.items():
        if isinstance(error, kind):
            return handler(request, error)
    return _by_accident(request, error)


def _on_purpose(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RetargetError)
    field = error.field if isinstance(error, Invalid) else None
    return _answer(error.status, type(error).__name__, str(error), field)


def _invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError | ValidationError)
    first = error.errors()[0]
    # Where it stands, without the words for "in the body" and for the pieces of a union.
    path = [str(part) for part in first["loc"] if part not in ("body", "query", "path")]
    field = ".".join(path) or None
    message = str(first["msg"]).removeprefix("Value error, ")
    return _answer(422, "Invalid", f"{field}: {message}" if field else message, field)


def _http(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    name = _NAMES.get(error.status_code, "RetargetError")
    return _answer(error.status_code, name, str(error.detail), None)


def _left(_: Request, error: Exception) -> JSONResponse:
    """Whoever sent this was killed or cut off in the middle of it: nobody reads the answer."""
    return _answer(400, "Invalid", "the request broke off", None)


def _by_accident(request: Request, error: Exception) -> JSONResponse:
    _log.error("%s %s", request.method, request.url.path, exc_info=error)
    sentence = "the server made a mistake; its log (`retarget server logs`) says more"
    return _answer(500, "RetargetError", sentence, None)


def _answer(status: int, name: str, message: str, field: str | None) -> JSONResponse:
    problem = Problem(error=name, message=message, field=field)
    return JSONResponse(problem.model_dump(), status_code=status)


_HANDLERS: dict[type[Exception], Callable[[Request, Exception], JSONResponse]] = {
    RetargetError: _on_purpose,
    RequestValidationError: _invalid,
    ValidationError: _invalid,
    HTTPException: _http,
    ClientDisconnect: _left,
}
