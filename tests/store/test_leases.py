"""Servers and leases on SQLite and PostgreSQL. Each test has two servers on one database."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, func, select, update

from retarget.core.errors import Conflict
from retarget.core.jobs import Attempt, Job
from retarget.core.leases import LEASE_SECONDS, FreeTarget, Lease, ServerRecord
from retarget.core.states import Event, JobState
from retarget.core.targets import Allocation, Inventory, Node, Target
from retarget.store.engine import reading, writing
from retarget.store.jobs import Jobs
from retarget.store.leases import Leases
from retarget.store.schema import history, leases, servers
from retarget.store.target_locks import TargetLocks
from retarget.store.targets import Targets

Place = Callable[[Job], Job]
Race = Callable[[list[Callable[[], Any]]], list[Any]]


def server(server_id: str, *, identity: str = "home", incarnation: str = "") -> ServerRecord:
    return ServerRecord(
        id=server_id,
        incarnation=incarnation or f"{server_id}-1",
        host="host",
        host_name="this-machine",
        pid=1,
        url=f"http://{server_id}",
        version="1",
        identity=identity,
        home=f"/{identity}",
    )


A, B = server("a"), server("b")


@pytest.fixture
def first(engine: Engine, targets: Targets) -> Leases:
    return Leases(engine)


@pytest.fixture
def second(other: Engine) -> Leases:
    return Leases(other)


def expire(engine: Engine, incarnation: str) -> None:
    """Let the time of a server pass, as if it had not renewed."""
    with writing(engine) as db:
        row = servers.c.incarnation == incarnation
        db.execute(
            update(servers).where(row).values(expires_at=servers.c.expires_at - LEASE_SECONDS)
        )


def take_all(leases: Leases, server: ServerRecord) -> dict[str, Lease]:
    for free in leases.free():
        leases.take(server, free)
    return leases.held(server.incarnation)


def take_over(leases: Leases, server: ServerRecord, *, from_server: ServerRecord) -> Lease:
    expire(leases.engine, from_server.incarnation)
    assert leases.renew(server.incarnation)
    return take_all(leases, server)["local"]


def test_one_of_two_servers_takes_a_lease(first: Leases, second: Leases, race: Race) -> None:
    first.register(A)
    second.register(B)
    (free,) = first.free()
    assert free == FreeTarget(target="local")
    leases = race([lambda: first.take(A, free), lambda: second.take(B, free)])
    assert sum(lease is not None for lease in leases) == 1
    held = {**first.held("a-1"), **second.held("b-1")}
    assert held == {"local": next(lease for lease in leases if lease)}
    assert first.free() == second.free() == []


def test_a_lease_stays_while_its_server_renews(first: Leases, second: Leases) -> None:
    first.register(A)
    second.register(B)
    held = take_all(first, A)
    expire(first.engine, "a-1")
    assert first.renew("a-1")  # late, but nobody has removed it
    assert second.renew("b-1")
    assert take_all(second, B) == {}
    assert first.held("a-1") == held


def test_the_lease_of_an_expired_server_is_taken_over_with_a_higher_epoch(
    first: Leases, second: Leases
) -> None:
    first.register(A)
    second.register(B)
    before = take_all(first, A)["local"]
    after = take_over(second, B, from_server=A)
    assert after.epoch > before.epoch
    assert first.held("a-1") == {}
    assert not first.renew("a-1")  # it must register again
    assert first.take(A, FreeTarget(target="local", epoch=after.epoch)) is None


def test_a_server_that_stops_gives_up_its_leases_at_once(first: Leases, second: Leases) -> None:
    first.register(A)
    second.register(B)
    take_all(first, A)
    first.unregister("a-1")
    assert "local" in take_all(second, B)


def test_a_server_that_restarts_takes_its_own_leases_at_once(first: Leases) -> None:
    first.register(A)
    before = take_all(first, A)["local"]
    again = server("a", incarnation="a-2")
    first.register(again)
    assert take_all(first, again)["local"].epoch > before.epoch
    assert not first.renew("a-1")
    assert not first.is_current(A)
    assert first.is_current(again)


def test_only_one_of_many_servers_takes_each_free_lease(
    engine: Engine, targets: Targets, race: Race
) -> None:
    for number in range(5):
        targets.save(Target(name=f"t{number}", kind="local"))
    stores = [Leases(engine) for _ in range(4)]
    records = [server(f"s{number}") for number in range(4)]
    for store, record in zip(stores, records, strict=True):
        store.register(record)
    race([lambda n=n: take_all(stores[n], records[n]) for n in range(4)])
    held = [lease for record in records for lease in stores[0].held(record.incarnation).values()]
    assert sorted(lease.target for lease in held) == ["local", *(f"t{n}" for n in range(5))]


def test_a_lease_of_a_database_with_one_server_does_not_expire(engine: Engine) -> None:
    alone = Leases(engine, expire=False)
    alone.register(A)
    with reading(engine) as db:
        assert db.scalar(select(servers.c.expires_at)) is None
    alone.register(server("b"))  # its lock on the database shows that the first one has ended
    assert [row["id"] for row in alone.servers()] == ["b"]


def test_a_server_with_another_home_or_secret_is_refused(first: Leases, second: Leases) -> None:
    first.register(A)
    with pytest.raises(Conflict, match="share one home folder") as refused:
        second.register(server("b", identity="elsewhere"))
    assert "'a' on this-machine" in str(refused.value)
    assert "/home there, /elsewhere here" in str(refused.value)
    assert [row["id"] for row in second.servers()] == ["a"]
    expire(first.engine, "a-1")  # it was killed, and its home may be lost
    second.register(server("b", identity="elsewhere"))


def test_servers_are_listed_with_their_targets(first: Leases, second: Leases) -> None:
    first.register(A)
    second.register(B)
    take_all(second, B)
    rows = [(row["id"], row["url"], row["targets"]) for row in first.servers()]
    assert rows == [("a", "http://a", []), ("b", "http://b", ["local"])]
    assert first.others(A) == 1
    expire(first.engine, "b-1")
    assert first.others(A) == 0


def test_a_part_of_another_machine_is_known_with_its_server(first: Leases) -> None:
    first.register(A)
    first.take(A, first.free()[0], host="host")
    assert first.elsewhere("host") == {}
    assert first.elsewhere("another") == {"local": "http://a"}
    first.unregister("a-1")
    assert first.elsewhere("another") == {"local": ""}
    (free,) = first.free()
    assert (free.host, free.holder) == ("host", "a")


def test_the_epoch_of_a_detached_target_is_not_used_again(first: Leases, targets: Targets) -> None:
    first.register(A)
    before = take_all(first, A)["local"]
    targets.remove("local", reason="", now=1.0)
    first.free_one("local")
    targets.save(Target(name="local", kind="local"))
    assert take_all(first, A)["local"].epoch > before.epoch


# -- writes under a lease


@pytest.fixture
def stale(first: Leases, second: Leases) -> Lease:
    """A lease that another server has taken over."""
    first.register(A)
    second.register(B)
    lease = take_all(first, A)["local"]
    take_over(second, B, from_server=A)
    return lease


def attempt_of(job: Job) -> Attempt:
    return Attempt(
        key=f"{job.id}-1",
        job_id=job.id,
        number=1,
        target="local",
        allocations=(Allocation(node="n"),),
        created_at=1.0,
    )


def rows_of(engine: Engine) -> list[Any]:
    with reading(engine) as db:
        return [db.execute(select(history)).all(), db.scalar(select(func.count(leases.c.target)))]


def test_nothing_is_placed_under_a_lost_lease(
    stale: Lease, jobs: Jobs, targets: Targets, add: Callable[..., Job]
) -> None:
    job = add()
    before = rows_of(jobs.engine)
    with pytest.raises(Conflict):
        jobs.under(stale).place(
            job, attempt_of(job), reason="", now=2.0, placements=targets.placements("local")
        )
    assert jobs.read(job.id) == job
    assert jobs.attempts(job.id) == []
    assert rows_of(jobs.engine) == before
    assert targets.placements("local") == 0


def test_no_transition_is_recorded_under_a_lost_lease(
    stale: Lease, jobs: Jobs, add: Callable[..., Job], place: Place
) -> None:
    placed = place(add())
    before, attempt = rows_of(jobs.engine), jobs.attempts(placed.id)[0]
    late = jobs.under(stale)
    with pytest.raises(Conflict):
        late.record(placed, Event.FAILED, reason="lost", now=9.0, attempt={"ended_at": 9.0})
    with pytest.raises(Conflict):
        late.unplace(placed, attempt, reason="", now=9.0)
    with pytest.raises(Conflict, match="another server looks after target 'local'"):
        late.change_attempt(attempt.key, {"handle": "pid 1"})
    assert late.explain(placed, "it is silent") == placed
    assert jobs.read(placed.id) == placed
    assert jobs.attempts(placed.id) == [attempt]
    assert rows_of(jobs.engine) == before


def test_handles_stay_under_a_lost_lease(
    stale: Lease, jobs: Jobs, add: Callable[..., Job], place: Place
) -> None:
    placed = place(add())
    key = jobs.attempts(placed.id)[0].key
    jobs.change_attempt(key, {"handle": "pid 1"})
    jobs.under(stale).clear_handles([key])
    assert jobs.attempt(key).handle == "pid 1"


def test_a_check_under_a_lost_lease_is_dropped(stale: Lease, targets: Targets) -> None:
    inventory = Inventory(nodes=(Node(name="n", cpus=1, memory=1),))
    changes = targets.changes
    targets.under(stale).save_check(targets.find("local"), inventory, "", 5.0)
    assert targets.find("local").inventory is None
    assert targets.changes == changes + 1  # one counter, however the targets are written


def test_the_holder_of_a_lease_writes(
    first: Leases, jobs: Jobs, targets: Targets, add: Callable[..., Job]
) -> None:
    first.register(A)
    own = jobs.under(take_all(first, A)["local"])
    job = add()
    placed = own.place(
        job, attempt_of(job), reason="", now=2.0, placements=targets.placements("local")
    )
    own.change_attempt(f"{job.id}-1", {"handle": "pid 1"})
    ended = own.record(placed, Event.FAILED, reason="x", now=9.0, attempt={"ended_at": 9.0})
    own.clear_handles([f"{job.id}-1"])
    assert jobs.read(job.id) == ended
    assert ended.state is JobState.FAILED
    assert jobs.attempt(f"{job.id}-1").handle is None
    inventory = Inventory(nodes=(Node(name="n", cpus=1, memory=1),))
    lease = first.held("a-1")["local"]
    targets.under(lease).save_check(targets.find("local"), inventory, "", 5.0)
    assert targets.find("local").inventory == inventory


# -- locks on targets


def test_nothing_is_placed_on_a_locked_target(
    first: Leases, jobs: Jobs, targets: Targets, add: Callable[..., Job]
) -> None:
    first.register(A)
    locks, job = TargetLocks(jobs.engine, server=lambda: "a-1"), add()
    with locks.hold("local"):
        assert locks.held() == {"local"}
        with pytest.raises(Conflict, match="being changed"):
            jobs.place(job, attempt_of(job), reason="", now=2.0, placements=0)
    assert locks.held() == set()
    jobs.place(job, attempt_of(job), reason="", now=2.0, placements=targets.placements("local"))


def test_a_lock_on_a_target_excludes_other_servers(
    first: Leases, second: Leases, race: Race
) -> None:
    first.register(A)
    second.register(B)
    inside, most = list[int](), list[int]()

    def change(locks: TargetLocks) -> None:
        for _ in range(5):
            with locks.hold("local"):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    locks = [
        TargetLocks(first.engine, server=lambda: "a-1"),
        TargetLocks(second.engine, server=lambda: "b-1"),
    ]
    assert race([lambda held=held: change(held) for held in locks]) == [None, None]
    assert most == [1] * 10


def test_the_lock_of_a_dead_server_does_not_count(first: Leases, second: Leases) -> None:
    first.register(A)
    second.register(B)
    late, locks = (
        TargetLocks(first.engine, server=lambda: "a-1"),
        TargetLocks(second.engine, server=lambda: "b-1"),
    )
    with late.hold("local"):
        assert locks.held() == {"local"}
        first.unregister("a-1")
        assert locks.held() == set()
        with locks.hold("local"):
            assert locks.held() == {"local"}
