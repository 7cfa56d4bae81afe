import logging
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from retarget.control.executors import Lane, TargetExecutors
from retarget.core.errors import DatabaseUnreachable, TargetUnreachable

_PATIENCE_SECONDS = 20.0


@pytest.fixture
def blocked() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def executors(blocked: threading.Event) -> Iterator[TargetExecutors]:
    executors = TargetExecutors(max_threads=4, idle_seconds=0.05)
    yield executors
    blocked.set()
    executors.close()


def test_a_target_has_a_bounded_number_of_threads(
    executors: TargetExecutors, blocked: threading.Event
) -> None:
    done: list[int] = []

    def work(number: int) -> None:
        blocked.wait()
        done.append(number)

    for number in range(20):
        executors.submit("t", Lane.LAUNCH, str(number), lambda number=number: work(number))
    assert executors.thread_count() == 4
    blocked.set()
    _wait(lambda: len(done) == 20)


def test_a_target_gets_a_thread_however_many_others_are_busy(
    executors: TargetExecutors, blocked: threading.Event
) -> None:
    for target in range(80):  # more threads than all targets together may have beyond their own
        for number in range(10):
            executors.submit(f"dead-{target}", Lane.LAUNCH, f"{target} {number}", blocked.wait)
    assert executors.thread_count() == 80 * 2 + 128
    done = threading.Event()
    executors.submit("healthy", Lane.LAUNCH, "healthy", done.set)
    assert done.wait(_PATIENCE_SECONDS)


def test_an_idle_target_has_no_thread(executors: TargetExecutors) -> None:
    for number in range(10):
        executors.submit(f"t{number % 3}", Lane.WATCH, str(number), lambda: None)
    _wait(lambda: executors.thread_count() == 0)
    done = threading.Event()
    executors.submit("t0", Lane.WATCH, "again", done.set)
    assert done.wait(_PATIENCE_SECONDS)


def test_an_idle_thread_takes_the_next_work(blocked: threading.Event) -> None:
    executors = TargetExecutors(idle_seconds=600.0)
    names: list[str] = []
    done = threading.Semaphore(0)

    def work() -> None:
        names.append(f"{threading.get_ident()}")
        done.release()

    for number in range(5):
        executors.submit("t", Lane.WATCH, str(number), work)
        assert done.acquire(timeout=_PATIENCE_SECONDS)
        time.sleep(0.05)  # until the thread is idle
    executors.close()  # wakes it
    assert len(set(names)) == 1
    assert executors.thread_count() == 0


def test_the_same_work_is_not_done_twice_at_once(
    executors: TargetExecutors, blocked: threading.Event
) -> None:
    assert executors.submit("t", Lane.WATCH, "poll t", blocked.wait)
    assert not executors.submit("t", Lane.WATCH, "poll t", blocked.wait)
    blocked.set()
    _wait(lambda: executors.submit("t", Lane.WATCH, "poll t", blocked.wait))


def test_a_failure_is_logged_and_ends_no_thread(
    executors: TargetExecutors, caplog: pytest.LogCaptureFixture
) -> None:
    errors = [TargetUnreachable("no route"), ValueError("a bug"), DatabaseUnreachable("gone")]

    def fail(error: Exception) -> None:
        raise error

    with caplog.at_level(logging.ERROR):
        for number, error in enumerate(errors):
            executors.submit("t", Lane.WATCH, f"work {number}", lambda error=error: fail(error))
        _wait(lambda: executors.thread_count() == 0)
    assert "work 0: no route" in caplog.text
    assert "ValueError: a bug" in caplog.text
    assert "gone" not in caplog.text  # the store has logged it


def test_closing_waits_for_what_has_begun_and_drops_the_rest(blocked: threading.Event) -> None:
    executors = TargetExecutors(max_threads=1)
    started, done = threading.Event(), list[str]()

    def work() -> None:
        started.set()
        blocked.wait()
        done.append("first")

    executors.submit("t", Lane.LAUNCH, "first", work)
    executors.submit("t", Lane.LAUNCH, "second", lambda: done.append("second"))
    assert started.wait(_PATIENCE_SECONDS)
    threading.Timer(0.1, blocked.set).start()
    executors.close()
    assert done == ["first"]
    assert not executors.submit("t", Lane.LAUNCH, "third", lambda: done.append("third"))


def _wait(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.005)
