"""Receives the events of a server, even if the connection breaks or the server restarts."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from retarget.core.errors import Invalid, ServerUnreachable
from retarget.core.events import RESET
from retarget.sdk.http import Connection, Response

_MAX_SILENCE_SECONDS = 60.0  # the server sends a heartbeat every 15 s
_RECONNECT_SECONDS = 300.0  # how long an unreachable server may take to come back
_RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Event:
    """Something that has changed on the server: what, but not how.

    The noun is `job`, `metric`, `output`, `target`, `node` or `reset`. A `reset` has no id: events
    were missed, so read everything again.
    """

    noun: str
    id: str | None = None
    version: int | None = None
    job: str | None = None


def receive_events(
    connection: Connection, nouns: Sequence[str] | None, jobs: Sequence[str] | None
) -> Iterator[Event]:
    """Yield events for ever. Raise ServerUnreachable if the server stays away for 5 minutes."""
    for name, chosen in (("nouns", nouns), ("jobs", jobs)):
        if chosen is not None and (not chosen or isinstance(chosen, str)):
            raise Invalid(f"{name}: must be a list with at least one of them", field=name)
    return _receive(connection, {"nouns": ",".join(nouns) if nouns else None, "job": jobs})


def _receive(connection: Connection, query: dict[str, Any]) -> Iterator[Event]:
    last_answer_at = time.monotonic()
    while True:
        try:
            with connection.stream(
                "/api/events", query, max_silence=_MAX_SILENCE_SECONDS
            ) as response:
                for position, event in _parse(response):
                    query["after"], last_answer_at = position, time.monotonic()
                    if event is not None:
                        yield event
        except TimeoutError:
            continue  # a connection that is dead without an end
        except ServerUnreachable:
            if time.monotonic() - last_answer_at > _RECONNECT_SECONDS:
                raise
            if connection.revive():
                continue
        time.sleep(_RETRY_SECONDS)


def _parse(response: Response) -> Iterator[tuple[str, Event | None]]:
    """Yield the id of each message, and its event if it has one."""
    incomplete = b""
    for piece in response:
        *messages, incomplete = (incomplete + piece).split(b"\n\n")
        for message in messages:
            fields = dict(_fields(message.decode("utf-8", "replace")))
            if "id" in fields:
                yield fields["id"], _event(fields)


def _fields(message: str) -> Iterator[tuple[str, str]]:
    for line in message.splitlines():
        name, _, value = line.partition(":")
        yield name, value.removeprefix(" ")


def _event(fields: dict[str, str]) -> Event | None:
    if "data" not in fields:
        return None
    try:
        data = json.loads(fields["data"])
        return Event(data["noun"], data.get("id"), data.get("version"), data.get("job"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Event(RESET)  # of a newer server: what it means is not known
