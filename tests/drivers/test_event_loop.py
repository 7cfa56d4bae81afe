"""The thread of all links to hosts: results, errors, and an end that leaves nobody waiting."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from retarget.core.errors import TargetUnreachable
from retarget.core.links import Links
from retarget.drivers._event_loop import EventLoop


async def _answer(value: object) -> object:
    if isinstance(value, Exception):
        raise value
    return value


def test_results_come_in_the_order_of_the_requests(links: Links) -> None:
    loop = links.get(EventLoop)
    assert loop.run_all([_answer(1), _answer(2)]) == [1, 2]
    assert loop.run_all([]) == []


def test_an_error_is_raised_or_returned_if_a_target_is_unreachable(links: Links) -> None:
    loop, error = links.get(EventLoop), TargetUnreachable("off")
    with pytest.raises(TargetUnreachable, match="off"):
        loop.run(_answer(error))
    assert loop.run_all([_answer(1), _answer(error)], raise_unreachable=False) == [1, error]
    with pytest.raises(ValueError, match="bad"):
        loop.run_all([_answer(ValueError("bad"))], raise_unreachable=False)


def test_whoever_waits_is_woken_at_the_end() -> None:
    links, is_waiting, has_ended = Links(), threading.Event(), threading.Event()

    async def wait() -> None:
        is_waiting.set()
        try:
            await asyncio.sleep(1000)
        finally:
            has_ended.set()

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(links.get(EventLoop).run, wait())
        assert is_waiting.wait(100)
        links.close()
        with pytest.raises(TargetUnreachable, match="the server is stopping"):
            waiting.result(100)
    assert has_ended.is_set()
    assert _threads() == []


def test_nothing_runs_after_the_end() -> None:
    links = Links()
    loop = links.get(EventLoop)
    assert _threads() == []  # before there is work
    links.close()
    with pytest.raises(TargetUnreachable, match="the server is stopping"):
        loop.run(_answer(1))
    loop.call_soon(pytest.fail)


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "links"]
