"""Events between two servers of one PostgreSQL: with broken connections, and without LISTEN."""

import asyncio
import json
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from retarget.core.events import Change, Noun, Selection, job_changed, of_job
from retarget.core.jobs import Job, JobSpec
from retarget.core.names import new_id
from retarget.core.states import Event as JobEvent
from retarget.core.states import JobState
from retarget.core.targets import Target
from retarget.server import event_relay
from retarget.server.event_bus import Batch, EventBus, Subscription
from retarget.server.event_relay import EventRelay, Message, decode, encode
from retarget.store.engine import migrate, open_engine
from retarget.store.jobs import Jobs
from retarget.store.notifications import MAX_BYTES, Notifications
from retarget.store.targets import Targets
from tests.server.test_events import streaming
from tests.store.conftest import Cluster
from tests.testbeds.two_servers import running_servers

ALL = Selection(frozenset(Noun))
_LONG = 100.0


@pytest.fixture
def database(cluster: Cluster) -> Generator[str]:
    """The URL of an empty PostgreSQL database."""
    name = cluster.create()
    yield cluster.url(name)
    cluster.drop(name)


class Server:
    """The parts of a server that publish and relay."""

    def __init__(self, database: str) -> None:
        self.bus, self.wakes = EventBus(), 0
        self.engine = open_engine(database, publish=self.bus.publish)
        migrate(self.engine)
        self.relay = EventRelay(self.engine, self.bus, self._wake)
        self.jobs, self.targets = Jobs(self.engine), Targets(self.engine)

    def _wake(self) -> None:
        self.wakes += 1

    def add_job(self, name: str) -> Job:
        job = Job(
            id=new_id(1.0),
            name=name,
            state=JobState.QUEUED,
            reason="waits",
            version=0,
            spec=JobSpec.model_validate({"command": ["true"]}),
            created_at=1.0,
            changed_at=1.0,
        )
        self.jobs.add(job)
        return job


@contextmanager
def running(database: str) -> Generator[Server]:
    server = Server(database)
    server.bus.attach(asyncio.get_running_loop())
    server.relay.start()
    try:
        yield server
    finally:
        server.relay.stop()
        server.engine.dispose()


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(_awaited(test), _LONG))


async def _awaited(test: Callable[[], Awaitable[None]]) -> None:
    await test()


async def reset_of(subscription: Subscription) -> Batch:
    while not (batch := await subscription.wait()).is_reset:
        pass
    return batch


async def change_of(subscription: Subscription, name: str) -> Change:
    """Return the next change of the thing with this id; others are skipped."""
    while True:
        batch = await subscription.wait()
        assert not batch.is_reset
        for event in batch.events:
            if event.change.id == name:
                return event.change


async def both_greeted(first: Subscription, second: Subscription) -> None:
    """Wait until each server has heard of the other."""
    await asyncio.gather(reset_of(first), reset_of(second))
    while (await first.wait(0.5)).is_reset or (await second.wait(0.5)).is_reset:
        pass


def test_changes_of_one_server_reach_the_other_and_are_not_sent_back(database: str) -> None:
    async def test() -> None:
        with (
            running(database) as one,
            running(database) as two,
            one.bus.subscribe(ALL) as at_one,
            two.bus.subscribe(ALL) as at_two,
        ):
            await both_greeted(at_one, at_two)
            one.targets.save(Target(name="local", kind="local"))
            assert await change_of(at_two, "local") == Change(Noun.TARGET, "local")
            assert await change_of(at_one, "local") == Change(Noun.TARGET, "local")
            wakes = one.wakes, two.wakes
            job = await asyncio.to_thread(one.add_job, "first")
            assert await change_of(at_two, job.id) == job_changed(job.id, 0)
            assert await change_of(at_one, job.id) == job_changed(job.id, 0)
            assert one.wakes == wakes[0]  # its own changes do not come back
            while two.wakes == wakes[1]:  # its loop is woken right after the event
                await asyncio.sleep(0.01)
            read = two.jobs.read(job.id)
            canceled = two.jobs.record(read, JobEvent.CANCEL_REQUESTED, reason="", now=2.0)
            assert await change_of(at_one, job.id) == job_changed(job.id, canceled.version)
            one.bus.publish([Change(Noun.LOG, job.id, job=job.id)])
            assert (await change_of(at_two, job.id)).version == canceled.version
            assert (await change_of(at_two, job.id)).noun is Noun.LOG
            await at_one.wait(0.5)
            assert (await at_one.wait(0.5)).events == []  # nothing came back

    run(test)


def test_a_server_sends_at_most_one_notification_in_50_ms(database: str) -> None:
    async def test() -> None:
        with (
            running(database) as one,
            running(database) as two,
            one.bus.subscribe(ALL) as at_one,
            two.bus.subscribe(of_job("last", Noun.JOB)) as at_two,
        ):
            await both_greeted(at_one, at_two)
            counted = _listening(two.engine)
            began = time.monotonic()
            while time.monotonic() - began < 1.0:
                one.bus.publish([job_changed(f"job-{number}", 1) for number in range(10)])
                await asyncio.sleep(0.001)
            one.bus.publish([job_changed("last", 7)])
            assert await change_of(at_two, "last") == job_changed("last", 7)
            seconds = time.monotonic() - began
            payloads = counted.receive()
            counted.close()
            assert 1 <= len(payloads) <= seconds / 0.05 + 2

    run(test)


def test_many_changes_at_once_become_a_reset(database: str) -> None:
    async def test() -> None:
        with (
            running(database) as one,
            running(database) as two,
            one.bus.subscribe(ALL) as at_one,
            two.bus.subscribe(ALL) as at_two,
        ):
            await both_greeted(at_one, at_two)
            for number in range(5000):
                one.bus.publish([job_changed(f"job-{number}", 1)])
            await reset_of(at_two)
            await asyncio.sleep(0.3)
            one.bus.publish([job_changed("next", 1)])
            while not (batch := await at_two.wait()).events:
                pass
            assert {event.change.id for event in batch.events} <= {"next", "job-4999"}

    run(test)


def test_a_connection_that_broke_is_restored_with_a_reset(database: str) -> None:
    async def test() -> None:
        with (
            running(database) as one,
            running(database) as two,
            one.bus.subscribe(ALL) as at_one,
            two.bus.subscribe(ALL) as at_two,
        ):
            await both_greeted(at_one, at_two)
            with two.engine.connect() as db:
                listening = text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
                assert len(db.execute(listening).all()) >= 2
            await both_greeted(at_one, at_two)
            two.bus.publish([job_changed("after", 1)])
            assert await change_of(at_one, "after") == job_changed("after", 1)
            one.bus.publish([job_changed("after-that", 1)])
            assert await change_of(at_two, "after-that") == job_changed("after-that", 1)

    run(test)


def test_if_listen_is_ignored_the_database_is_polled_until_it_works(
    database: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_relay, "_ECHO_SECONDS", 0.3)
    monkeypatch.setattr(event_relay, "_PROBE_SECONDS", 1.0)
    monkeypatch.setattr(event_relay, "_POLL_SECONDS", 0.2)
    received, is_ignored = Notifications.receive, threading.Event()
    is_ignored.set()

    def receive(self: Notifications) -> list[str]:
        payloads = received(self)
        return [] if is_ignored.is_set() else payloads

    monkeypatch.setattr(Notifications, "receive", receive)

    async def test() -> None:
        with running(database) as one, one.bus.subscribe(ALL) as at_one:
            await reset_of(at_one)
            other = open_engine(database)  # a server whose notifications do not arrive
            while not one.relay.is_polling:
                await at_one.wait(0.1)
            while (await at_one.wait(1.0)).is_reset:
                pass
            wakes = one.wakes
            await asyncio.to_thread(Targets(other).save, Target(name="local", kind="local"))
            await reset_of(at_one)
            while one.wakes == wakes:  # its loop is woken right after the event
                await asyncio.sleep(0.01)
            other.dispose()
            is_ignored.clear()
            while one.relay.is_polling:
                await at_one.wait(0.1)

    with caplog.at_level(logging.WARNING, "retarget"):
        run(test)
    first, second = (record.getMessage() for record in caplog.records)
    assert "do not arrive" in first
    assert "arrive again" in second


def test_a_quiet_relay_does_nothing(database: str) -> None:
    async def test() -> None:
        with running(database) as one, one.bus.subscribe(ALL) as at_one:
            await reset_of(at_one)
            await asyncio.sleep(1.0)
            counted, began = _listening(one.engine), time.process_time()
            await asyncio.sleep(3.0)
            assert time.process_time() - began < 0.1
            assert counted.receive() == []
            counted.close()

    run(test)


def test_two_real_servers_exchange_events(database: str, tmp_path: Path) -> None:
    with running_servers(tmp_path, database) as servers:
        one, two = servers.start("one"), servers.start("two")
        with streaming(two, nouns="target") as stream:
            assert next(iter(stream))["noun"] == "reset"
            answer = one.ask("PATCH", "/api/targets/local", {"tags": {"room": "12"}})
            assert answer.status == 200, answer.content
            assert stream.until(lambda event: event["noun"] == "target")[-1]["id"] == "local"
            assert two.ask("GET", "/api/targets/local").json["tags"] == {"room": "12"}


def test_a_message_is_read_as_it_was_written_and_fits_into_a_notification() -> None:
    changes = [job_changed("ä" * 32, 7), Change(Noun.TARGET, 'a"b'), Change(Noun.METRIC, "r")]
    assert decode(encode(Message("one", changes))) == Message("one", changes)
    many = [job_changed(f"{number:032x}", number) for number in range(200)]
    payload = encode(Message("one", many))
    assert len(payload.encode()) <= MAX_BYTES
    assert decode(payload) == Message("one", [], is_reset=True)
    assert decode(encode(Message("one", many[:60]))).changes == many[:60]


@pytest.mark.parametrize(
    "fields",
    [
        [],
        {},
        {"server": "x", "reset": False, "changes": [["service", "a", 1, None]]},  # of a newer one
        {"server": "x", "reset": False, "changes": [["job"]]},
    ],
)
def test_a_message_that_cannot_be_read_is_a_reset(fields: Any) -> None:
    assert decode(json.dumps(fields)).is_reset
    assert decode("not JSON").is_reset


def _listening(engine: Engine) -> Notifications:
    return Notifications(engine)
