"""Wakes those who follow a job. A missed signal costs them a second, never the news."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager, suppress

_FALLBACK = 1.0  # another server on the same database cannot signal here


class Signals:
    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._closed = False

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def notify(self, job_id: str) -> None:
        """Say from any thread that something about this job has changed."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: nobody is left to wake
                self._loop.call_soon_threadsafe(self._fire, job_id)

    def close(self) -> None:
        """Wake everybody for good."""
        self._closed = True
        for job_id in list(self._waiting):
            self.notify(job_id)

    @property
    def closed(self) -> bool:
        return self._closed

    @contextmanager
    def listening(self, job_id: str) -> Generator["Listener"]:
        event = asyncio.Event()
        self._waiting.setdefault(job_id, set()).add(event)
        try:
            yield Listener(event)
        finally:
            self._waiting[job_id].discard(event)
            if not self._waiting[job_id]:
                del self._waiting[job_id]

    def _fire(self, job_id: str) -> None:
        for event in self._waiting.get(job_id, ()):
            event.set()


class Listener:
    def __init__(self, event: asyncio.Event) -> None:
        self._event = event

    def rearm(self) -> None:
        """Call before looking: what happens after the look is then noticed."""
        self._event.clear()

    async def wait(self, seconds: float = _FALLBACK) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), seconds)
