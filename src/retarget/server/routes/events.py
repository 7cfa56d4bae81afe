"""/api/events: what changes, as server-sent events."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from retarget.core.errors import Invalid
from retarget.core.events import PUBLIC_NOUNS, RESET, EventId, Noun, Selection
from retarget.server.auth import StateDep
from retarget.server.event_bus import Batch, EventBus
from retarget.server.log_frames import LogReader, log_positions
from retarget.server.request_bodies import BoundedRoute

router = APIRouter(route_class=BoundedRoute, prefix="/api/events", tags=["events"])

_HEARTBEAT_SECONDS = 15.0
_MAX_STREAMS = 1000
_RETRY = b"retry: 1000\n\n"  # milliseconds after which a browser connects again
# the second one is for nginx, which would hold events back
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_RESPONSE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events, until the client disconnects or the server stops",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


class EventView(BaseModel):
    """The data of an event: what has changed, never its content."""

    noun: str
    id: str | None = None
    version: int | None = None
    job: str | None = None


class EventQuery(BaseModel):
    """Which events to send, and after which one to begin."""

    nouns: Annotated[str, Query(max_length=200, description="Separated by commas")] = ",".join(
        PUBLIC_NOUNS
    )
    job: Annotated[list[str], Query(max_length=1000, description="The ids of jobs")] = []
    log: Annotated[
        list[str],
        Query(max_length=100, description="JOB, JOB:ATTEMPT:OFFSET or JOB:ATTEMPT:OFFSET:STREAM"),
    ] = []
    after: Annotated[
        str | None, Query(max_length=100, description="Instead of the header Last-Event-ID")
    ] = None


@router.get("", response_class=StreamingResponse, responses=_RESPONSE)
async def stream_events(
    state: StateDep,
    query: Annotated[EventQuery, Query()],
    last_event_id: Annotated[str | None, Header(max_length=100)] = None,
) -> StreamingResponse:
    """Send an event whenever something changes: `job`, `metric`, `output`, `target` or `node`.

    A `reset` means that events were missed, and everything must be read again. A stream begins
    with one, unless it continues after the event of `Last-Event-ID`.

    `log` adds frames of the logs of these jobs, which have no ids: a client that connects again
    asks for the offset that it has reached.
    """
    logs = LogReader(state.context, await run_sync(log_positions, state.context, query.log))
    selection = replace(_selection(query), logs=logs.jobs)
    after = last_event_id or query.after
    if state.event_streams >= _MAX_STREAMS:
        raise HTTPException(503, f"the server already sends {_MAX_STREAMS} streams of events")
    chunks = _stream(state, selection, EventId.parse(after) if after else None, logs)
    return StreamingResponse(chunks, media_type="text/event-stream", headers=_HEADERS)


def _selection(query: EventQuery) -> Selection:
    names = {name.strip() for name in query.nouns.split(",")}
    unknown = names - set(PUBLIC_NOUNS)
    if unknown:
        known = ", ".join(PUBLIC_NOUNS)
        raise Invalid(f"nouns: unknown noun {min(unknown)!r}; known: {known}", field="nouns")
    jobs = frozenset(query.job) if query.job else None
    return Selection(frozenset(map(Noun, names)), jobs)


async def _stream(
    state: StateDep, selection: Selection, after: EventId | None, logs: LogReader
) -> AsyncIterator[bytes]:
    state.event_streams += 1
    try:
        async for chunk in encoded_events(state.bus, selection, after, logs):
            yield chunk
    finally:
        state.event_streams -= 1


async def encoded_events(
    bus: EventBus, selection: Selection, after: EventId | None, logs: LogReader | None = None
) -> AsyncIterator[bytes]:
    """Yield server-sent events until the bus is closed, and a heartbeat while there are none."""
    with bus.subscribe(selection) as subscription:
        subscription.resume(after)
        yield _RETRY
        while not bus.closed:
            has_unread = logs is not None and logs.has_unread
            batch = await subscription.wait(0 if has_unread else _HEARTBEAT_SECONDS)
            frames = await _frames(logs, batch) if logs is not None else b""
            yield _encode(batch) + frames or _heartbeat(batch.position)


async def _frames(logs: LogReader, batch: Batch) -> bytes:
    logs.arrived(batch.logs)
    if not logs.has_unread:
        return b""
    frames = await run_sync(logs.read)
    data = (frame.model_dump_json(exclude_none=True) for frame in frames)
    return "".join(f"event: log\ndata: {text}\n\n" for text in data).encode()


def _encode(batch: Batch) -> bytes:
    position, messages = batch.position, list[str]()
    if batch.is_reset:
        messages.append(_message(position, EventView(noun=RESET)))
    for number, change in batch.events:
        at, view = EventId(position.epoch, number), EventView(**change._asdict())
        messages.append(_message(at, view))
    return "".join(messages).encode()


def _heartbeat(position: EventId) -> bytes:
    # without data: browsers only remember the id, which must not become too old
    return f": heartbeat\nid: {position}\n\n".encode()


def _message(position: EventId, view: EventView) -> str:
    data = view.model_dump_json(exclude_none=True)
    return f"id: {position}\nevent: {view.noun}\ndata: {data}\n\n"
