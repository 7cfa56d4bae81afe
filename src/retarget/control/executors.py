"""Threads for the work on targets: each target has its own, so that none waits for another."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from retarget.core.errors import DatabaseUnreachable, LeaseLost, RetargetError

_log = logging.getLogger(__name__)
_MAX_THREADS = 16  # of one lane of one target
_OWN_THREADS = 2  # that each lane may have whatever the others do
_SHARED_THREADS = 128  # beyond those, of all lanes together
_IDLE_SECONDS = 10.0  # a thread without work ends after this


class Lane(StrEnum):
    """The lanes of a target. Launches may take minutes, and must not delay a poll or a cancel."""

    LAUNCH = "launch"
    WATCH = "watch"  # polls, checks, cancels, cleaning up


@dataclass
class _Threads:
    """One lane of one target: it exists while it has a thread."""

    name: str
    has_work: threading.Condition  # on the lock of the executors
    work: deque[tuple[str, Callable[[], object]]] = field(
        default_factory=deque[tuple[str, Callable[[], object]]]
    )
    threads: set[threading.Thread] = field(default_factory=set[threading.Thread])
    idle: int = 0  # how many threads wait for work


class TargetExecutors:
    """Thread-safe: one lock guards everything here, and no work runs while it is held.

    An idle target has no thread. Each lane of a busy target gets its first threads at any rate, so
    a target whose threads all wait for a dead host takes none from another.
    """

    def __init__(
        self, *, max_threads: int = _MAX_THREADS, idle_seconds: float = _IDLE_SECONDS
    ) -> None:
        self._max_threads = max_threads
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._lanes: dict[tuple[str, Lane], _Threads] = {}
        self._keys: set[str] = set()  # of the work that is waiting or running
        self._is_closed = False

    def submit(self, target: str, lane: Lane, key: str, work: Callable[[], object]) -> bool:
        """Run `work` in a thread of its target. Return False if work with this key is under way."""
        with self._lock:
            if key in self._keys or self._is_closed:
                return False
            self._keys.add(key)
            threads = self._lanes.get((target, lane))
            if threads is None:
                condition = threading.Condition(self._lock)
                threads = self._lanes[target, lane] = _Threads(f"{lane}-{target}", condition)
            threads.work.append((key, work))
            if len(threads.work) <= threads.idle:
                threads.has_work.notify()
            elif self._may_start(threads):
                self._start(target, lane, threads)
            return True

    def thread_count(self) -> int:
        with self._lock:
            return sum(len(threads.threads) for threads in self._lanes.values())

    def close(self) -> None:
        """Drop the work that has not begun, and wait for the rest."""
        with self._lock:
            self._is_closed = True
            for threads in self._lanes.values():
                threads.work.clear()
                threads.has_work.notify_all()
            running = [thread for threads in self._lanes.values() for thread in threads.threads]
        for thread in running:
            thread.join()

    def _may_start(self, threads: _Threads) -> bool:
        count = len(threads.threads)
        shared = sum(max(0, len(other.threads) - _OWN_THREADS) for other in self._lanes.values())
        return count < self._max_threads and (count < _OWN_THREADS or shared < _SHARED_THREADS)

    def _start(self, target: str, lane: Lane, threads: _Threads) -> None:
        thread = threading.Thread(
            target=self._work, args=(target, lane, threads), name=threads.name, daemon=True
        )
        threads.threads.add(thread)
        thread.start()

    def _work(self, target: str, lane: Lane, threads: _Threads) -> None:
        while (item := self._next(target, lane, threads)) is not None:
            key, work = item
            _run_and_log(key, work)
            with self._lock:
                self._keys.discard(key)

    def _next(
        self, target: str, lane: Lane, threads: _Threads
    ) -> tuple[str, Callable[[], object]] | None:
        """Wait for work. Return None if this thread must end: it is removed then."""
        with self._lock:
            threads.idle += 1
            threads.has_work.wait_for(
                lambda: threads.work or self._is_closed, timeout=self._idle_seconds
            )
            threads.idle -= 1
            if threads.work:
                return threads.work.popleft()
            threads.threads.discard(threading.current_thread())
            if not threads.threads:
                del self._lanes[target, lane]
            return None


def _run_and_log(key: str, work: Callable[[], object]) -> None:
    try:
        work()
    except (DatabaseUnreachable, LeaseLost):
        pass  # is logged where it was detected; the next round tries again, here or elsewhere
    except RetargetError as error:
        _log.error("%s: %s", key, error)
    except Exception:  # noqa: BLE001 - the edge of a thread
        _log.exception("%s", key)
