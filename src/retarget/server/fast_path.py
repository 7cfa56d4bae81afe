"""Handles the most frequent requests without the layers of FastAPI.

For a short job, those layers cost more than submitting it or reporting its events. The routes and
their entries in /openapi.json stay the same; only the call to them is shorter.
"""

import json
from asyncio import get_running_loop
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from retarget.core.errors import Invalid
from retarget.core.jobs import JobSpec
from retarget.server.errors import error_response
from retarget.server.request_bodies import read_body
from retarget.server.routes.attempts import Events, report_events
from retarget.server.routes.jobs import submit_job
from retarget.server.state import State

# Takes the body; returns the status and the response. It is called in a thread.
Handler = Callable[[bytes], tuple[int, BaseModel]]

_ATTEMPTS, _EVENTS = "/api/attempts/", "/events"


class FastPath:
    def __init__(self, state: State, others: ASGIApp) -> None:
        self._state = state
        self._others = others
        self._executor = ThreadPoolExecutor(16, thread_name_prefix="fast-path")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = self._find_handler(scope)
        if handler is None:
            await self._others(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            body, loop = await read_body(request), get_running_loop()
            status, model = await loop.run_in_executor(self._executor, handler, body)
            response = Response(model.model_dump_json(), status, media_type="application/json")
        except Exception as error:  # noqa: BLE001  answered, and logged if unexpected
            response = error_response(request, error)
        await response(scope, receive, send)

    def _find_handler(self, scope: Scope) -> Handler | None:
        if scope.get("method") != "POST":
            return None
        path: str = scope["path"]
        if path == "/api/jobs":
            return self._submit
        if path.startswith(_ATTEMPTS) and path.endswith(_EVENTS):
            key = path[len(_ATTEMPTS) : -len(_EVENTS)]
            return partial(self._report, key) if "/" not in key else None
        return None

    def _submit(self, body: bytes) -> tuple[int, BaseModel]:
        return 201, submit_job(JobSpec.model_validate(_parse(body)), self._state.context)

    def _report(self, key: str, body: bytes) -> tuple[int, BaseModel]:
        return 200, report_events(key, Events.model_validate(_parse(body)), self._state.context)


def _parse(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"the body is not JSON: {error}") from None
