"""/api/jobs/{job}/exec: a WebSocket that runs a command beside the script of a job."""

import asyncio
import json
from contextlib import suppress
from typing import Annotated, Any

from anyio.to_thread import run_sync
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from retarget.control.executions import ScriptProcess, open_exec
from retarget.core.errors import Forbidden, Invalid
from retarget.runner.exec_frames import (
    EXIT,
    FROM_CLIENT,
    MAX_CONTENT_BYTES,
    START,
    Frames,
    pack,
)
from retarget.server.auth import Principal, principal_of
from retarget.server.state import State
from retarget.server.websockets import deny

_READ_BYTES = 1 << 16
_VIOLATION, _BROKEN = 1008, 1011  # codes that close a WebSocket
_EXIT_REFUSED = 125
_GONE = (OSError, RuntimeError, WebSocketDisconnect)  # raised if the runner or the client has gone

_Word = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
_Size = Annotated[int, Field(ge=0, le=10_000)]


class Terminal(BaseModel):
    """The terminal of the client."""

    model_config = ConfigDict(extra="forbid")

    rows: _Size
    columns: _Size
    term: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._+-]{1,100}$")]


class Start(BaseModel):
    """What to run: without a command a shell, without a terminal with pipes."""

    model_config = ConfigDict(extra="forbid")

    command: Annotated[list[_Word], Field(max_length=10_000)] = []
    terminal: Terminal | None = None


class Query(BaseModel):
    model_config = ConfigDict(extra="forbid")

    rank: int | None = None
    node: int | None = None


class _Refused(Exception):
    """The client violated the protocol; the message says how."""


def route(state: State) -> WebSocketRoute:
    async def serve(websocket: WebSocket) -> None:
        try:
            if principal_of(websocket) != Principal():
                raise Forbidden("the token of a job cannot be used here")
            query, job = _parse_query(websocket), websocket.path_params["job"]
            connection, process = await run_sync(
                lambda: open_exec(state.context, job, rank=query.rank, node=query.node)
            )
        except Exception as error:  # noqa: BLE001  answered, and logged if unexpected
            await deny(websocket.scope, websocket.receive, websocket.send, error)
            return
        await websocket.accept()
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        try:
            await _forward(websocket, reader, writer, process)
        finally:
            writer.close()

    return WebSocketRoute("/api/jobs/{job}/exec", serve)


def _parse_query(websocket: WebSocket) -> Query:
    try:
        return Query.model_validate(dict(websocket.query_params))
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0])
        raise Invalid(f"{field}: {first['msg']}", field=field) from None


async def _forward(
    websocket: WebSocket,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    process: ScriptProcess,
) -> None:
    """Forward frames in both directions until the command ends or the client disconnects."""
    receiving = asyncio.ensure_future(_forward_input(websocket, writer, process))
    sending = asyncio.ensure_future(_forward_output(websocket, reader))
    try:
        await asyncio.wait([receiving, sending], return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            await websocket.close(1000 if sending.result() else _BROKEN)
        elif refusal := receiving.result():
            await websocket.send_bytes(bytes([EXIT]) + _exit(_EXIT_REFUSED, refusal))
            await websocket.close(_VIOLATION)
    except _GONE:
        with suppress(*_GONE):
            await websocket.close(_BROKEN)
    finally:
        for task in (receiving, sending):
            task.cancel()
        await asyncio.gather(receiving, sending, return_exceptions=True)


async def _forward_input(
    websocket: WebSocket, writer: asyncio.StreamWriter, process: ScriptProcess
) -> str:
    """Forward messages of the client until it disconnects, or return why one is refused."""
    is_started = False
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            return ""
        try:
            kind, content = _parse_message(message)
            if (kind == START) == is_started:
                raise _Refused("a command is started once, by the first message")
            if kind == START:
                content = _parse_start(content, process)
        except _Refused as error:
            return str(error)
        is_started = True
        writer.write(pack(kind, content))
        await writer.drain()


async def _forward_output(websocket: WebSocket, reader: asyncio.StreamReader) -> bool:
    """Forward frames of the runner; return whether the command has ended."""
    frames, has_ended = Frames(), False
    while content := await reader.read(_READ_BYTES):
        for kind, part in frames.add(content):
            await websocket.send_bytes(bytes([kind]) + part)
            has_ended = kind == EXIT
    return has_ended


def _parse_message(message: Any) -> tuple[int, bytes]:
    content: bytes = message.get("bytes") or b""
    if not content or content[0] not in FROM_CLIENT:
        raise _Refused("each message must begin with the kind of its frame")
    if len(content) > MAX_CONTENT_BYTES + 1:
        raise _Refused(f"a message has {len(content):,} bytes; send at most {MAX_CONTENT_BYTES:,}")
    return content[0], content[1:]


def _parse_start(content: bytes, process: ScriptProcess) -> bytes:
    """Return the client's request for the runner: checked, and with the rank of the process."""
    try:
        start = Start.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the request"
        raise _Refused(f"{field}: {first['msg']}") from None
    checked = json.dumps(start.model_dump() | {"rank": process.local_rank}).encode()
    if len(checked) > MAX_CONTENT_BYTES:
        raise _Refused(f"the command has {len(checked):,} bytes; use at most {MAX_CONTENT_BYTES:,}")
    return checked


def _exit(code: int, reason: str) -> bytes:
    return json.dumps({"code": code, "reason": reason}).encode()
