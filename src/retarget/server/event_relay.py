"""Relays events between the servers of one PostgreSQL database, by LISTEN and NOTIFY."""

import json
import logging
import os
import secrets
import select
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import islice
from typing import Any, NamedTuple

from sqlalchemy import Engine

from retarget.core.events import Change, Noun
from retarget.server.event_bus import EventBus
from retarget.store.notifications import MAX_BYTES, Error, Notifications

_log = logging.getLogger("retarget")

_INTERVAL_SECONDS = 0.05  # between two notifications
_ECHO_SECONDS = 5.0  # after which a notification that did not come back to its sender is lost
_PROBE_SECONDS = 30.0  # between two notifications of a quiet server, to see that they come back
_POLL_SECONDS = 1.0  # between two looks at the database while none come back
_MAX_OUTGOING = 1000  # changes; more become a reset
_RETRY_SECONDS = 1.0  # between two attempts to connect
_FOR_CONTROL = frozenset({Noun.JOB, Noun.TARGET, Noun.NODE})  # the control loop acts on these


class Message(NamedTuple):
    """What one server tells the others: its changes, or that they must read again."""

    server: str
    changes: Sequence[Change] = ()
    is_reset: bool = False


def encode(message: Message) -> str:
    """Return a message as the payload of one notification. Too many changes become a reset."""
    fields: dict[str, Any] = {"server": message.server, "reset": message.is_reset}
    text = json.dumps(fields | {"changes": message.changes}, separators=(",", ":"))
    if len(text.encode()) > MAX_BYTES:
        return encode(Message(message.server, is_reset=True))
    return text


def decode(payload: str) -> Message:
    """Return the message of a payload. What cannot be read, as of a newer server, is a reset."""
    try:
        fields = json.loads(payload)
        changes = [
            Change(Noun(noun), str(name), version, job)
            for noun, name, version, job in fields["changes"]
        ]
        return Message(str(fields["server"]), changes, bool(fields["reset"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return Message("", is_reset=True)


class EventRelay:
    """Sends what a bus publishes to other servers, and publishes there what they send.

    Changes from other servers also `wake` the control loop. A server that starts, or connects
    again, does not know what was missed: it and all others get a reset.
    """

    def __init__(self, engine: Engine, bus: EventBus, wake: Callable[[], None]) -> None:
        self._engine = engine
        self._bus = bus
        self._wake_control = wake
        self._server = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._outgoing: dict[tuple[Noun, str], Change] = {}
        self._is_overflowing = False
        self._stopping = threading.Event()
        self._pipe = os.pipe()  # has a byte while the thread is to look
        self._connection: _Connection | None = None
        self._thread = threading.Thread(target=self._run, name="event-relay", daemon=True)

    @property
    def is_polling(self) -> bool:
        """Whether notifications do not arrive, so that the database is polled instead."""
        return self._connection is not None and self._connection.is_polling

    def start(self) -> None:
        self._bus.forward_to(self.send)
        self._thread.start()

    def stop(self) -> None:
        """Send the rest, and stop."""
        self._stopping.set()
        self._wake_thread()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def send(self, changes: Sequence[Change]) -> None:
        """Send these changes soon. Called from any thread, and returns at once."""
        with self._lock:
            is_first = not self._outgoing
            self._outgoing |= {(change.noun, change.id): change for change in changes}
            if len(self._outgoing) > _MAX_OUTGOING:
                self._outgoing = dict(islice(self._outgoing.items(), 1))
                self._is_overflowing = True
        if is_first:
            self._wake_thread()

    def _wake_thread(self) -> None:
        os.write(self._pipe[1], b".")

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with closing(Notifications(self._engine)) as notifications:
                    self._serve(notifications)
            except Error:  # the store logs it, and every request finds it out
                self._stopping.wait(_RETRY_SECONDS)
            except Exception:  # noqa: BLE001  the edge of a thread
                _log.exception("the relay of events failed")
                self._stopping.wait(_RETRY_SECONDS)
            finally:
                self._connection = None

    def _serve(self, notifications: Notifications) -> None:
        """Relay until the relay is stopped, or raise once the database is unreachable."""
        connection = self._connection = _Connection(notifications, time.monotonic())
        connection.send(encode(Message(self._server, is_reset=True)), time.monotonic())
        self._reset()
        while not self._stopping.is_set():
            now = time.monotonic()
            if connection.next_at(has_changes=bool(self._outgoing)) <= now:
                self._send(connection, now)
            for payload in notifications.receive():  # some may have come with the last answer
                self._take(connection, decode(payload))
            if connection.is_changed(now):
                self._reset()
            self._wait(connection)
        self._send(connection, time.monotonic())

    def _wait(self, connection: "_Connection") -> None:
        """Wait for a notification, for changes to send, or until something is due."""
        due = connection.next_at(has_changes=bool(self._outgoing))
        timeout = max(0.0, min(due, connection.look_at) - time.monotonic())
        ready, _, _ = select.select([connection.notifications, self._pipe[0]], [], [], timeout)
        if self._pipe[0] in ready:
            os.read(self._pipe[0], 1 << 16)

    def _take(self, connection: "_Connection", message: Message) -> None:
        if message.server == self._server:
            if connection.record_echo():
                self._reset()
            return
        if message.is_reset:
            self._reset()
            return
        self._bus.receive(message.changes)
        if any(change.noun in _FOR_CONTROL for change in message.changes):
            self._wake_control()

    def _reset(self) -> None:
        self._bus.reset()
        self._wake_control()

    def _send(self, connection: "_Connection", now: float) -> None:
        with self._lock:
            changes, self._outgoing = list(self._outgoing.values()), {}
            is_reset, self._is_overflowing = self._is_overflowing, False
        connection.send(encode(Message(self._server, changes, is_reset)), now)


class _Connection:
    """When a connection has to send, and whether what it sends comes back."""

    def __init__(self, notifications: Notifications, now: float) -> None:
        self.notifications = notifications
        self.is_polling = False
        self._sent_at = now
        self._echo_by: float | None = None  # when the oldest one without an echo is lost
        self._polled_at = now
        self._last_commit = ""

    @property
    def look_at(self) -> float:
        """When to look at the database, or for a lost echo."""
        if self.is_polling:
            return self._polled_at + _POLL_SECONDS
        return self._sent_at + _PROBE_SECONDS if self._echo_by is None else self._echo_by

    def next_at(self, *, has_changes: bool) -> float:
        """When to send next: soon, or if there are no changes to see that this still works."""
        return self._sent_at + (_INTERVAL_SECONDS if has_changes else _PROBE_SECONDS)

    def send(self, payload: str, now: float) -> None:
        self._sent_at = now
        if self._echo_by is None:
            self._echo_by = now + _ECHO_SECONDS
        self.notifications.send(payload)

    def record_echo(self) -> bool:
        """Note that a notification came back; return whether none did so before."""
        was_polling, self.is_polling, self._echo_by = self.is_polling, False, None
        if was_polling:
            _log.warning("notifications of the database arrive again")
        return was_polling

    def is_changed(self, now: float) -> bool:
        """Return whether there was a commit, if notifications of other servers do not arrive."""
        if not self.is_polling and self._echo_by is not None and now >= self._echo_by:
            self.is_polling = True
            _log.warning(
                "notifications of the database do not arrive, perhaps because of a pooler; "
                "changes by other servers are seen a second late"
            )
        if not self.is_polling or now < self._polled_at + _POLL_SECONDS:
            return False
        self._polled_at = now
        before, self._last_commit = self._last_commit, self.notifications.last_commit()
        return self._last_commit != before
