"""The event loop of all links to hosts: one thread, which drivers call from any other one."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any

from retarget.core.errors import TargetUnreachable
from retarget.core.links import Links

_CLOSE_SECONDS = 5.0  # how long canceled tasks may take to end
_CLOSE_ROUNDS = 10  # of the loop, in which closed transports let go of their sockets


class EventLoop:
    """Its thread starts with the first work."""

    def __init__(self, links: Links) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run this in the loop's thread and return its result."""
        return self.run_all([work])[0]

    def run_all(
        self, requests: Sequence[Coroutine[Any, Any, Any]], *, raise_unreachable: bool = True
    ) -> list[Any]:
        """Run these concurrently in the loop's thread and return their results.

        The first error is raised. With `raise_unreachable=False`, a TargetUnreachable is returned
        in its place among the results instead.
        """
        answers = self._gather(requests)
        for answer in answers:
            if isinstance(answer, asyncio.CancelledError):
                raise _stopping()
            if isinstance(answer, BaseException) and (
                raise_unreachable or not isinstance(answer, TargetUnreachable)
            ):
                raise answer
        return answers

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call this in the loop's thread; not at all if nothing has run there, or no longer."""
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(function)

    def close(self) -> None:
        """Cancel everything that runs, and end the thread."""
        with self._lock:
            loop, thread, self._loop, self._is_closed = self._loop, self._thread, None, True
        if loop is None or thread is None:
            return
        canceling = asyncio.run_coroutine_threadsafe(_cancel_all(), loop)
        with suppress(TimeoutError):
            canceling.result(timeout=2 * _CLOSE_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_CLOSE_SECONDS)
        if not thread.is_alive():
            loop.close()

    def _gather(self, requests: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
        async def gather() -> list[Any]:
            return await asyncio.gather(*requests, return_exceptions=True)

        with self._lock:
            if self._is_closed:
                for request in requests:
                    request.close()
                raise _stopping()
            future = asyncio.run_coroutine_threadsafe(gather(), self._started())
        try:
            return future.result()
        except CancelledError:
            raise _stopping() from None

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=self._loop.run_forever, name="links", daemon=True
            )
            self._thread.start()
        return self._loop


def _stopping() -> TargetUnreachable:
    return TargetUnreachable("the server is stopping")


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
    for _ in range(_CLOSE_ROUNDS):
        await asyncio.sleep(0)
