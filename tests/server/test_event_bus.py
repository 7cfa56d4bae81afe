"""The event bus: who gets what, from which thread, and what happens to those who are slow."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack

import pytest

from retarget.core.events import Change, Event, EventId, Noun, Selection, job_changed, of_job
from retarget.server.event_bus import Batch, EventBus
from retarget.server.routes import events as event_routes
from retarget.server.routes.events import encoded_events

ALL = Selection()
_LONG = 100.0  # seconds after which a test fails


def on_bus(test: Callable[[EventBus], Awaitable[None]], bus: EventBus | None = None) -> None:
    async def run() -> None:
        chosen = bus or EventBus()
        chosen.attach(asyncio.get_running_loop())
        await asyncio.wait_for(test(chosen), _LONG)

    asyncio.run(run())


def ids(batch: Batch) -> list[str]:
    return [event.change.id for event in batch.events]


def jobs(*names: str) -> list[Change]:
    return [job_changed(name, 1) for name in names]


async def settle() -> None:
    """Let the bus deliver what was published."""
    for _ in range(3):
        await asyncio.sleep(0)


def test_a_subscription_gets_what_it_selects_in_order_with_growing_numbers() -> None:
    async def test(bus: EventBus) -> None:
        with (
            bus.subscribe(ALL) as everything,
            bus.subscribe(of_job("b", Noun.JOB)) as one,
        ):
            bus.publish(jobs("a", "b"))
            bus.publish([Change(Noun.TARGET, "local"), Change(Noun.LOG, "b", job="b")])
            batch = await everything.wait()
            assert ids(batch) == ["a", "b", "local"]
            assert [event.number for event in batch.events] == [1, 2, 3]
            assert batch.position == bus.position == EventId(bus.position.epoch, 3)
            assert ids(await one.wait()) == ["b"]

    on_bus(test)


def test_what_was_published_while_the_state_was_read_ends_the_next_wait_at_once() -> None:
    async def test(bus: EventBus) -> None:
        with bus.subscribe(ALL) as subscription:
            bus.publish(jobs("a"))
            await settle()
            assert ids(await subscription.wait()) == ["a"]
            empty = await subscription.wait(0.01)
            assert (empty.events, empty.is_reset) == ([], False)

    on_bus(test)


def test_log_bytes_wake_followers_but_take_no_number() -> None:
    async def test(bus: EventBus) -> None:
        with bus.subscribe(of_job("a", Noun.LOG)) as follower:
            bus.publish([Change(Noun.LOG, "a", job="a")])
            assert ids(await follower.wait()) == ["a"]
            assert bus.position.number == 0

    on_bus(test)


def test_every_event_of_many_threads_arrives_once_and_numbers_have_no_gap() -> None:
    async def test(bus: EventBus) -> None:
        def publish(thread: int) -> None:
            for number in range(500):
                bus.publish(jobs(f"{thread}-{number}"))

        threads = [threading.Thread(target=publish, args=(n,)) for n in range(8)]
        received: list[Event] = []
        with bus.subscribe(ALL) as subscription:
            for thread in threads:
                thread.start()
            while len(received) < 4000:
                received += (await subscription.wait()).events
            assert (await subscription.wait(0.05)).events == []
        names = [event.change.id for event in received]
        assert len(set(names)) == 4000
        assert [event.number for event in received] == list(range(1, 4001))
        for thread in range(8):  # and in the order of its thread
            own = [name for name in names if name.startswith(f"{thread}-")]
            assert own == [f"{thread}-{number}" for number in range(500)]

    on_bus(test, EventBus(queued=5000))


def test_one_wake_of_the_event_loop_delivers_a_whole_burst() -> None:
    async def test(bus: EventBus) -> None:
        loop, wakes = asyncio.get_running_loop(), list[object]()
        original = loop.call_soon_threadsafe

        def counted(*arguments: object) -> object:
            wakes.append(arguments)
            return original(*arguments)  # pyright: ignore[reportArgumentType, reportCallIssue]

        loop.call_soon_threadsafe = counted  # pyright: ignore[reportAttributeAccessIssue]
        with bus.subscribe(ALL) as subscription:
            for number in range(100):
                bus.publish(jobs(str(number)))
            assert len((await subscription.wait()).events) == 100
        assert len(wakes) == 1

    on_bus(test)


def test_a_subscriber_that_is_too_slow_gets_one_reset_and_then_what_comes_after_it() -> None:
    async def test(bus: EventBus) -> None:
        with bus.subscribe(ALL) as slow:
            for number in range(20):
                bus.publish(jobs(str(number)))
                await settle()
            reset = await slow.wait()
            assert (reset.events, reset.is_reset) == ([], True)
            assert reset.position.number == 20
            bus.publish(jobs("next"))
            after = await slow.wait()
            assert (ids(after), after.is_reset) == (["next"], False)

    on_bus(test, EventBus(queued=10))


def test_a_client_comes_back_to_what_it_missed_or_to_a_reset() -> None:
    async def test(bus: EventBus) -> None:
        bus.publish(jobs("a", "b", "c", "d"))
        await settle()
        epoch = bus.position.epoch
        expected: list[tuple[EventId | None, list[str], bool]] = [
            (EventId(epoch, 4), [], False),
            (EventId(epoch, 2), ["c", "d"], False),
            (EventId(epoch, 1), ["b", "c", "d"], False),
            (EventId(epoch, 0), [], True),  # too old
            (EventId(epoch, 5), [], True),  # of the future
            (EventId("other", 4), [], True),
            (None, [], True),
        ]
        for position, missed, is_reset in expected:
            with bus.subscribe(ALL) as subscription:
                subscription.resume(position)
                batch = await subscription.wait(0.01)
                assert (ids(batch), batch.is_reset) == (missed, is_reset), position

    on_bus(test, EventBus(kept=3))


def test_after_a_reset_of_the_bus_all_read_again_and_earlier_ids_are_too_old() -> None:
    async def test(bus: EventBus) -> None:
        bus.publish(jobs("a"))
        await settle()
        before = bus.position
        with bus.subscribe(ALL) as general, bus.subscribe(of_job("b", Noun.JOB)) as one:
            bus.reset()
            assert (await general.wait()).is_reset
            assert (await one.wait()).is_reset
            assert bus.since(before, ALL) is None

    on_bus(test)


def test_metrics_of_a_run_are_coalesced_and_the_last_one_arrives() -> None:
    async def test(bus: EventBus) -> None:
        received: list[Event] = []
        begin = time.monotonic()
        with bus.subscribe(ALL) as subscription:
            while time.monotonic() - begin < 0.6:
                bus.publish([Change(Noun.METRIC, "run", job="job")])
                received += (await subscription.wait(0.001)).events
            last = Change(Noun.METRIC, "run", 7, "job")
            bus.publish([last])
            while not received or received[-1].change != last:
                received += (await subscription.wait()).events
        seconds = time.monotonic() - begin
        assert 3 <= len(received) <= 2 + seconds / 0.25

    on_bus(test)


def test_a_closed_bus_ends_all_waits() -> None:
    async def test(bus: EventBus) -> None:
        with bus.subscribe(ALL) as general, bus.subscribe(of_job("b", Noun.JOB)) as one:
            waits = [asyncio.create_task(listener.wait()) for listener in (general, one)]
            await settle()
            threading.Thread(target=bus.close).start()
            await asyncio.gather(*waits)
            await general.wait()  # returns at once

    on_bus(test)


def test_what_is_published_before_there_is_a_loop_is_not_kept() -> None:
    bus = EventBus()
    bus.publish(jobs("a"))
    bus.reset()

    async def test(bus: EventBus) -> None:
        with bus.subscribe(ALL) as subscription:
            bus.publish(jobs("b"))
            assert ids(await subscription.wait()) == ["b"]

    on_bus(test, bus)


def test_only_what_this_server_publishes_is_forwarded() -> None:
    forwarded: list[Change] = []

    def forward(changes: Sequence[Change]) -> None:
        forwarded.extend(changes)

    async def test(bus: EventBus) -> None:
        bus.forward_to(forward)
        with bus.subscribe(ALL) as subscription:
            bus.publish(jobs("own"))
            bus.receive(jobs("foreign"))
            assert ids(await subscription.wait()) == ["own", "foreign"]
        assert forwarded == jobs("own")

    on_bus(test)


def test_ten_thousand_waits_cost_nothing_while_nothing_happens_and_an_event_wakes_one() -> None:
    async def test(bus: EventBus) -> None:
        with ExitStack() as stack:
            names = [f"job-{number}" for number in range(10_000)]
            waits = [
                asyncio.create_task(
                    stack.enter_context(bus.subscribe(of_job(name, Noun.JOB))).wait()
                )
                for name in names
            ]
            await settle()
            began = time.process_time()
            await asyncio.sleep(2.0)
            assert time.process_time() - began < 0.1
            bus.publish(jobs("job-77"))
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            assert done == {waits[77]}
            began = time.process_time()
            for version in range(1000):
                bus.publish([job_changed("other", version)])
                await settle()
            assert time.process_time() - began < 1.0  # 10,000 waiters are not looked at
            for wait in waits:
                wait.cancel()
        assert not bus._by_job  # pyright: ignore[reportPrivateUsage]

    on_bus(test)


async def next_of(chunks: Awaitable[bytes]) -> str:
    return (await asyncio.wait_for(chunks, _LONG)).decode()


def test_a_stream_begins_with_a_reset_and_its_heartbeats_say_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_routes, "_HEARTBEAT_SECONDS", 0.05)

    async def test(bus: EventBus) -> None:
        epoch = bus.position.epoch
        stream = encoded_events(bus, of_job("a", Noun.JOB), None)
        assert await next_of(anext(stream)) == "retry: 1000\n\n"
        first = await next_of(anext(stream))
        assert first == f'id: {epoch}-0\nevent: reset\ndata: {{"noun":"reset"}}\n\n'
        bus.publish([*jobs("b"), Change(Noun.METRIC, "a", job="a"), job_changed("a", 3)])
        chunk = await next_of(anext(stream))
        data = '{"noun":"job","id":"a","version":3,"job":"a"}'
        assert chunk == f"id: {epoch}-3\nevent: job\ndata: {data}\n\n"
        bus.publish(jobs("b"))  # not selected, but the client must not fall behind
        assert await next_of(anext(stream)) == f": heartbeat\nid: {epoch}-4\n\n"
        bus.close()
        assert not [chunk async for chunk in stream if "data" in chunk.decode()]

    on_bus(test)
