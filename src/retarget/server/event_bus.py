"""The event bus of a server: all that changes is published here, and waits and streams listen.

Any thread publishes; the event loop is woken once per batch. While nothing happens, subscriptions
cost nothing but their memory.
"""

import asyncio
import secrets
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from retarget.core.events import (
    Change,
    Coalescer,
    Event,
    EventId,
    History,
    Noun,
    Selection,
    newest_of_each,
)

_KEPT_EVENTS = 8192  # for clients that come back
_MAX_QUEUED_EVENTS = 1024  # of a subscription; one that is further behind gets a reset
_COALESCING_SECONDS = 0.25


class Batch(NamedTuple):
    """What a subscription has received. After a reset, everything must be read again."""

    events: Sequence[Event]
    is_reset: bool
    position: EventId  # every selected event up to this one was received
    logs: frozenset[str] = frozenset()  # the jobs of which the logs may have grown or ended


class EventBus:
    def __init__(self, *, kept: int = _KEPT_EVENTS, queued: int = _MAX_QUEUED_EVENTS) -> None:
        self._history = History(secrets.token_hex(4), kept)
        self._max_queued = queued
        self._coalescer = Coalescer(_COALESCING_SECONDS)
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._incoming: list[Change] = []
        # those for all jobs, and those for some by the ids of these
        self._general: dict[Subscription, None] = {}
        self._by_job: dict[str, dict[Subscription, None]] = {}
        self._forward: Callable[[Sequence[Change]], None] | None = None
        self._closed = False
        self.work_available = threading.Event()  # the loop of control waits for it

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Deliver in this event loop. What was published before is dropped: nobody listened."""
        self._loop = loop

    def forward_to(self, forward: Callable[[Sequence[Change]], None]) -> None:
        """Pass on what this server publishes, but not what it receives, to other servers."""
        self._forward = forward

    def publish(self, changes: Sequence[Change]) -> None:
        """Publish changes by this server, from any thread."""
        if self._forward is not None:
            self._forward(changes)
        self.receive(changes)

    def wake(self) -> None:
        """Wake the loop of control, from any thread."""
        self.work_available.set()

    def receive(self, changes: Sequence[Change]) -> None:
        """Publish changes by another server, from any thread."""
        if self._loop is None:
            return
        with self._lock:
            is_first = not self._incoming
            self._incoming += changes
        if is_first:
            self._call(self._deliver)

    def reset(self) -> None:
        """Make every subscriber read again, because events were missed. Callable in any thread."""
        self._call(self._reset)

    def close(self) -> None:
        """End all subscriptions, from any thread."""
        self._closed = True
        self._call(self._wake_all)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def position(self) -> EventId:
        """The id of the last event."""
        return self._history.position

    @contextmanager
    def subscribe(self, selection: Selection) -> Generator["Subscription"]:
        """Receive the selected changes from now on. Subscribe before reading the state.

        Only code in the event loop may subscribe.
        """
        subscription = Subscription(self, selection, self._max_queued)
        self._add(subscription)
        try:
            yield subscription
        finally:
            self._remove(subscription)

    def since(self, position: EventId, selection: Selection) -> list[Event] | None:
        """Return the selected events after an id, or None if it is unknown or too old."""
        return self._history.since(position, selection)

    def _add(self, subscription: "Subscription") -> None:
        if subscription.selection.jobs is None:
            self._general[subscription] = None
        for job in _jobs_of(subscription.selection):
            self._by_job.setdefault(job, {})[subscription] = None

    def _remove(self, subscription: "Subscription") -> None:
        self._general.pop(subscription, None)
        for job in _jobs_of(subscription.selection):
            of_job = self._by_job.get(job, {})
            of_job.pop(subscription, None)
            if not of_job:
                self._by_job.pop(job, None)

    def _call(self, function: Callable[[], None]) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: there are no subscribers
                self._loop.call_soon_threadsafe(function)

    def _deliver(self) -> None:
        with self._lock:
            changes, self._incoming = self._incoming, []
        now = time.monotonic()
        for change in newest_of_each(changes):
            if self._coalescer.offer(change, now):
                self._emit(change)
        self._set_timer()

    def _release(self) -> None:
        self._timer = None
        for change in self._coalescer.due(time.monotonic()):
            self._emit(change)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is None and self._coalescer.next_at is not None:
            delay = max(0.0, self._coalescer.next_at - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay, self._release)

    def _emit(self, change: Change) -> None:
        is_public = change.noun is not Noun.LOG
        event = self._history.add(change) if is_public else Event(self.position.number, change)
        of_job = self._by_job.get(change.job, {}) if change.job else {}
        for subscription in {**self._general, **of_job}:
            subscription.offer(event)

    def _reset(self) -> None:
        self._history.clear()
        for subscription in self._subscriptions():
            subscription.lose()

    def _wake_all(self) -> None:
        for subscription in self._subscriptions():
            subscription.wake()

    def _subscriptions(self) -> set["Subscription"]:
        return set(self._general).union(*self._by_job.values())


class Subscription:
    """Receives changes in a queue of limited length. Who is too slow gets a reset instead."""

    def __init__(self, bus: EventBus, selection: Selection, max_queued: int) -> None:
        self.selection = selection
        self._bus = bus
        self._max_queued = max_queued
        self._events: list[Event] = []
        self._logs: set[str] = set()
        self._is_lost = False
        self._arrived = asyncio.Event()

    def resume(self, position: EventId | None) -> None:
        """Begin after this event; with a reset if it is None, unknown or too old."""
        missed = None if position is None else self._bus.since(position, self.selection)
        if missed is None:
            self.lose()
        elif missed:
            self._events = missed
            self._arrived.set()

    async def wait(self, seconds: float | None = None) -> Batch:
        """Return what has arrived since the last call, or wait for something.

        The batch is empty if nothing has arrived for `seconds`, or if the bus was closed.
        """
        if not self._bus.closed:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._arrived.wait()
        batch = Batch(self._events, self._is_lost, self._bus.position, frozenset(self._logs))
        self._events, self._logs, self._is_lost = [], set(), False
        self._arrived.clear()
        return batch

    def offer(self, event: Event) -> None:
        """Add an event if it is selected."""
        if self.selection.is_about_log(event.change):
            self._logs.add(event.change.job or "")
            self._arrived.set()
        if event.change in self.selection:
            self._add(event)

    def _add(self, event: Event) -> None:
        if len(self._events) >= self._max_queued:
            self.lose()
        elif not self._is_lost:
            self._events.append(event)
            self._arrived.set()

    def lose(self) -> None:
        """Note that events were missed."""
        self._events, self._is_lost = [], True
        self._logs.update(self.selection.logs)
        self._arrived.set()

    def wake(self) -> None:
        self._arrived.set()


def _jobs_of(selection: Selection) -> frozenset[str]:
    return selection.logs.union(selection.jobs or ())
