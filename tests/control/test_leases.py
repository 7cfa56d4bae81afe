"""The keeper of leases, with a clock that the tests set."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, update

from retarget.control.leases import LeaseKeeper
from retarget.core.errors import Conflict, LeaseLost
from retarget.core.leases import LEASE_SECONDS, MARGIN_SECONDS, ServerRecord
from retarget.core.targets import Target
from retarget.store.engine import open_engine, writing
from retarget.store.leases import Leases
from retarget.store.schema import servers
from retarget.store.targets import Targets
from tests.store.new_schema import create_schema


class Clock:
    time = 100.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = open_engine(f"sqlite:///{tmp_path}/retarget.db")
    create_schema(engine)
    for name in ("gpu", "local"):
        Targets(engine).save(Target(name=name, kind=name))
    yield engine
    engine.dispose()


def keeper(
    engine: Engine, server_id: str, clock: Clock, *, host: str = "here", incarnation: str = "1"
) -> LeaseKeeper:
    record = ServerRecord(
        id=server_id,
        incarnation=f"{server_id}-{incarnation}",
        host=host,
        host_name=host,
        pid=1,
        url=f"http://{server_id}",
        version="1",
        identity="home",
        home="/home",
    )
    return LeaseKeeper(
        Leases(engine),
        Targets(engine),
        record,
        is_local=lambda target: target.kind == "local",
        clock=clock,
    )


def expire_all(engine: Engine) -> None:
    with writing(engine) as db:
        db.execute(update(servers).values(expires_at=servers.c.expires_at - LEASE_SECONDS))


def test_the_first_server_takes_all_leases_and_the_second_one_none(engine: Engine) -> None:
    first, second = keeper(engine, "a", Clock()), keeper(engine, "b", Clock())
    first.register()
    second.register()
    assert sorted(first.held()) == ["gpu", "local"]
    assert second.held() == {}


def test_a_server_does_not_act_once_it_could_not_renew_for_too_long(engine: Engine) -> None:
    clock = Clock()
    server = keeper(engine, "a", clock)
    server.register()
    lease = server.held()["gpu"]
    clock.time += LEASE_SECONDS - MARGIN_SECONDS - 0.1
    server.check(lease)
    clock.time += 0.1
    assert server.held() == {}
    with pytest.raises(LeaseLost, match="another server looks after target 'gpu'"):
        server.check(lease)
    server.renew()  # nobody has taken the leases meanwhile
    server.check(lease)


def test_a_paused_server_loses_its_leases_and_comes_back_without_them(engine: Engine) -> None:
    clock, other = Clock(), Clock()
    paused, second = keeper(engine, "a", clock), keeper(engine, "b", other)
    paused.register()
    second.register()
    old = paused.held()["gpu"]
    expire_all(engine)
    second.renew()  # late itself, but first: it is alive, and the other one is removed
    leases = second.held()
    assert sorted(leases) == ["gpu", "local"]
    clock.time += 3 * LEASE_SECONDS
    with pytest.raises(LeaseLost):
        paused.check(old)
    before = paused.server.incarnation
    paused.renew()
    assert paused.held() == {}
    assert paused.server.incarnation != before
    second.renew()
    assert second.held() == leases


def test_changes_of_leases_are_announced(engine: Engine) -> None:
    changes = list[str]()
    first, second = keeper(engine, "a", Clock()), keeper(engine, "b", Clock())
    first.register()
    second.register()
    second.start(on_change=lambda: changes.append("changed"), on_replaced=lambda: None)
    second.renew()
    assert changes == []
    first.stop()
    second.renew()
    assert changes == ["changed"]
    assert sorted(second.held()) == ["gpu", "local"]
    second.stop()


def test_a_part_of_a_machine_stays_with_the_servers_of_that_machine(engine: Engine) -> None:
    here, there = keeper(engine, "a", Clock()), keeper(engine, "b", Clock(), host="there")
    here.register()
    there.register()
    here.stop()
    there.renew()
    assert sorted(there.held()) == ["gpu"]
    assert there.elsewhere("local") == ""
    assert there.elsewhere("gpu") is None
    same_host = keeper(engine, "c", Clock())
    same_host.register()
    assert sorted(same_host.held()) == ["local"]
    there.renew()
    assert there.elsewhere("local") == "http://c"
    there.stop()
    same_host.stop()


def test_a_server_that_moved_to_another_machine_keeps_its_targets(engine: Engine) -> None:
    keeper(engine, "a", Clock()).register()
    moved = keeper(engine, "a", Clock(), host="there", incarnation="2")
    moved.register()
    assert sorted(moved.held()) == ["gpu", "local"]
    back = keeper(engine, "c", Clock())
    moved.stop()
    back.register()
    assert sorted(back.held()) == ["gpu"]


def test_an_attached_target_belongs_to_the_server_that_attached_it(engine: Engine) -> None:
    first, second = keeper(engine, "a", Clock()), keeper(engine, "b", Clock(), host="there")
    first.register()
    second.register()
    scratch = Target(name="scratch", kind="local")
    second.claim(scratch)
    Targets(engine).add(scratch)
    first.renew()
    assert "scratch" not in first.held()
    assert sorted(second.held()) == ["scratch"]
    assert first.elsewhere("scratch") == "http://b"
    Targets(engine).remove("scratch", reason="", now=1.0)
    first.renew()
    assert "scratch" not in first.held()
    first.claim(scratch)  # it is attached to the other machine now
    Targets(engine).add(scratch)
    second.renew()
    assert second.held() == {}
    assert second.elsewhere("scratch") == "http://a"
    assert "scratch" in first.held()


def test_a_target_whose_settings_bind_it_to_a_machine_moves_there(engine: Engine) -> None:
    first, second = keeper(engine, "a", Clock()), keeper(engine, "b", Clock(), host="there")
    first.register()
    second.register()
    second.rebind(Target(name="gpu", kind="gpu"))  # nothing has changed in this respect
    first.renew()
    assert "gpu" in first.held()
    second.rebind(Target(name="gpu", kind="local"))
    first.renew()
    assert sorted(first.held()) == ["local"]
    assert sorted(second.held()) == ["gpu"]
    assert first.elsewhere("gpu") == "http://b"


def test_a_copy_of_a_home_stops_the_server_that_has_its_id(engine: Engine) -> None:
    first, copy = keeper(engine, "a", Clock()), keeper(engine, "a", Clock(), incarnation="2")
    first.register()
    copy.register()
    with pytest.raises(Conflict, match="another server with the id 'a'"):
        first.renew()
