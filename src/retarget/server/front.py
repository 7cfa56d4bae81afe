"""The front of the server: what is asked most is answered right here.

A job that does nothing is little more than a submission and a report, and the usual layers cost
more than either. The routes themselves stay where all others are, and so does what they say of
themselves in /openapi.json: only the way to them is shorter.
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
from retarget.server.auth import open_attempt, open_server, token_in
from retarget.server.bodies import read_whole
from retarget.server.errors import answer_to
from retarget.server.routes.attempts import Events, report_events
from retarget.server.routes.jobs import submit_job
from retarget.server.state import State

# In a thread: what is asked, by whom, and the body. It returns the status and the answer.
Work = Callable[[str, bytes], tuple[int, BaseModel]]

_ATTEMPTS, _EVENTS = "/api/attempts/", "/events"


class Front:
    def __init__(self, state: State, others: ASGIApp) -> None:
        self._state = state
        self._others = others
        self._threads = ThreadPoolExecutor(16, thread_name_prefix="front")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = self._work_for(scope)
        if work is None:
            await self._others(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            body, token = await read_whole(request), token_in(request.headers.get("authorization"))
            loop = get_running_loop()
            status, answer = await loop.run_in_executor(self._threads, work, token, body)
            response = Response(answer.model_dump_json(), status, media_type="application/json")
        except Exception as error:  # noqa: BLE001  it is answered, and logged if it is our mistake
            response = answer_to(request, error)
        await response(scope, receive, send)

    def _work_for(self, scope: Scope) -> Work | None:
        if scope.get("method") != "POST":
            return None
        path: str = scope["path"]
        if path == "/api/jobs":
            return self._submit
        if path.startswith(_ATTEMPTS) and path.endswith(_EVENTS):
            key = path[len(_ATTEMPTS) : -len(_EVENTS)]
            return partial(self._report, key) if "/" not in key else None
        return None

    def _submit(self, token: str, body: bytes) -> tuple[int, BaseModel]:
        open_server(self._state, token)
        return 201, submit_job(JobSpec.model_validate(_read(body)), self._state.parts)

    def _report(self, key: str, token: str, body: bytes) -> tuple[int, BaseModel]:
        open_attempt(self._state.parts, token, key)
        return 200, report_events(key, Events.model_validate(_read(body)), self._state.parts)


def _read(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"the body is not JSON: {error}") from None
