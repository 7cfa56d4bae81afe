"""Turns what is raised into answers: one sentence, a status, and the field to mend."""

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
_NAMES = {
    400: "Invalid",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "Invalid",
    409: "Conflict",
    413: "Invalid",
}
_WORDS = {  # what pydantic says in words of its own
    "missing": "is needed",
    "extra_forbidden": "there is no such field",
    "model_type": "must be a JSON object",
    "model_attributes_type": "must be a JSON object",
}
_LONGEST = 2000  # characters of a sentence: what was sent may be of any length
_SHOWN = 60
_METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")

# Shown in /openapi.json for every route; none answers anything else.
PROBLEMS: dict[int | str, dict[str, Any]] = {
    code: {"model": Problem, "description": text}
    for code, text in {
        400: "The request cannot be read",
        401: "No token, or a wrong one",
        403: "The token is for something else",
        404: "No such thing",
        409: "Not in that state",
        413: "The body is too large",
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
    first: Mapping[str, Any] = error.errors()[0]
    if first["type"] == "json_invalid":
        why = first.get("ctx", {}).get("error")
        return _answer(422, "Invalid", f"the body is not JSON: {why}", None)
    path = [str(part) for part in first["loc"]]
    if isinstance(error, RequestValidationError):
        path = path[1:]  # the word for "in the body"
    if path[-1:] == ["[key]"]:
        path = path[:-2]  # a key that is wrong is no place to look at
    field = ".".join(path) or None
    return _answer(422, "Invalid", f"{field or 'the body'}: {_sentence(first)}", field)


def _sentence(error: Mapping[str, Any]) -> str:
    """Say what is wrong and, where it is short, what was given."""
    if error["type"] == "value_error":
        return str(error["msg"]).removeprefix("Value error, ")
    if error["type"] in _WORDS:
        return _WORDS[error["type"]]
    said = str(error["msg"]).replace("Input should", "must")
    given = repr(error["input"])
    return f"{said}, not {given}" if len(given) <= _SHOWN else said


def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    status, said = error.status_code, str(error.detail)
    if status == 400:
        said = "the body cannot be read as JSON"  # too deep, not UTF-8, or an endless number
    elif status in (404, 405):
        said = f"this server has no {request.method} {request.url.path}"
    answer = _answer(status, _NAMES.get(status, "RetargetError"), said, None)
    if status == 405:
        answer.headers["Allow"] = ", ".join(_methods(request))
    return answer


def _methods(request: Request) -> list[str]:
    """Return what can be asked of this address; each method has a route of its own."""
    routes: list[BaseRoute] = request.app.routes
    scopes = [{**request.scope, "method": method} for method in _METHODS]
    return [
        scope["method"]
        for scope in scopes
        if any(route.matches(scope)[0] is Match.FULL for route in routes)
    ]


def _left(_: Request, error: Exception) -> JSONResponse:
    """Whoever sent this was killed or cut off in the middle of it: nobody reads the answer."""
    return _answer(400, "Invalid", "the request broke off", None)


def _by_the_machine(request: Request, error: Exception) -> JSONResponse:
    try:
        with storage_errors():
            raise error
    except StorageFull as full:
        return _on_purpose(request, full)
    except OSError:
        return _by_accident(request, error)


def _by_accident(request: Request, error: Exception) -> JSONResponse:
    _log.error("%s %s", request.method, request.url.path, exc_info=error)
    sentence = "the server made a mistake; its log (`retarget server logs`) says more"
    return _answer(500, "RetargetError", sentence, None)


def _answer(status: int, name: str, message: str, field: str | None) -> JSONResponse:
    field = None if field is None else _shortened(field)
    problem = Problem(error=name, message=_shortened(message), field=field)
    # a client of another version says so beside what is wrong
    headers = {"Retarget-Version": __version__}
    return JSONResponse(problem.model_dump(), status_code=status, headers=headers)


def _shortened(text: str) -> str:
    """Return the text as one line that can be shown, a long one without its middle."""
    half = _LONGEST // 2
    short = text if len(text) <= _LONGEST else f"{text[:half]} … {text[-half:]}"
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in short)


_HANDLERS: dict[type[Exception], Callable[[Request, Exception], JSONResponse]] = {
    RetargetError: _on_purpose,
    RequestValidationError: _invalid,
    ValidationError: _invalid,
    HTTPException: _http,
    ClientDisconnect: _left,
    OSError: _by_the_machine,
}
