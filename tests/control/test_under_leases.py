"""The loop acts only on targets whose lease this server holds, and only as long as it does."""

import pytest

from retarget.control.cleaner import Cleaner
from retarget.control.known_targets import KnownTargets
from retarget.control.launcher import Launcher
from retarget.control.leases import LeaseKeeper
from retarget.control.placer import Placer
from retarget.control.watcher import Watcher
from retarget.core.driver import ActingLease
from retarget.core.errors import Conflict, LeaseLost
from retarget.core.jobs import Job
from retarget.core.states import JobState
from tests.control.world import EXITED, GONE, StubDriver, World, make_keeper


@pytest.fixture
def driver(world: World) -> StubDriver:
    return world.attach("t")


@pytest.fixture
def placer(world: World) -> Placer:
    return Placer(world.context, world.table, world.targets)


@pytest.fixture
def launcher(world: World) -> Launcher:
    return Launcher(
        world.table,
        executors=world.executors,
        targets=world.targets,
        checks=world.checks,
        retry_seconds=1.0,
    )


@pytest.fixture
def watcher(world: World) -> Watcher:
    return Watcher(world.table, world.executors, world.targets)


@pytest.fixture
def cleaner(world: World) -> Cleaner:
    return Cleaner(world.context, world.table, world.executors, world.targets)


def take_over(world: World) -> LeaseKeeper:
    """Let another server take all leases, before this one hears of it."""
    other = make_keeper(world.context.store.jobs.engine, "other")
    other.register()  # on this database, it replaces the first one
    return other


def place_one(world: World, placer: Placer) -> Job:
    job = world.submit("t")
    placer.place(world.targets.refresh(), explain=True)
    assert world.job(job).state is JobState.LAUNCHING
    return world.job(job)


def test_nothing_is_placed_after_the_lease_was_taken_over(
    world: World, driver: StubDriver, placer: Placer
) -> None:
    job = world.submit("t")
    targets = world.targets.refresh()
    take_over(world)
    assert placer.place(targets, explain=True) == ([], [])
    assert world.job(job) == job


def test_targets_of_other_servers_are_left_alone(
    world: World, driver: StubDriver, placer: Placer, launcher: Launcher
) -> None:
    launched = place_one(world, placer)
    take_over(world)
    world.context.links.leases.renew()
    queued = world.submit("t")
    assert world.targets.refresh() == []
    pairs, reasons = placer.place(world.targets.refresh(), explain=True)
    assert (pairs, reasons) == ([], [])
    launcher.launch(pairs)
    world.checks.start_due(world.targets.refresh())
    assert world.executors.run() == []
    assert (world.job(launched), world.job(queued)) == (launched, queued)


def test_a_launch_that_began_before_the_lease_was_lost_records_nothing(
    world: World, driver: StubDriver, placer: Placer, launcher: Launcher
) -> None:
    job = place_one(world, placer)
    pairs, _ = placer.place(world.targets.refresh(), explain=True)
    launcher.launch(pairs)

    def lose(_: object) -> None:
        take_over(world)

    driver.on_launch = lose
    with pytest.raises(LeaseLost):
        world.executors.run()
    assert world.attempt(job).handle is None
    assert world.job(job) == job


def test_no_launch_begins_once_the_lease_is_known_to_be_lost(
    world: World, driver: StubDriver, placer: Placer, launcher: Launcher
) -> None:
    place_one(world, placer)
    pairs, _ = placer.place(world.targets.refresh(), explain=True)
    launcher.launch(pairs)
    take_over(world)
    world.context.links.leases.renew()
    with pytest.raises(LeaseLost):
        world.executors.run()
    assert driver.count("launch") == 0


def test_an_attempt_is_not_ended_after_the_lease_was_taken_over(
    world: World, driver: StubDriver, placer: Placer, launcher: Launcher, watcher: Watcher
) -> None:
    job = place_one(world, placer)
    pairs, _ = placer.place(world.targets.refresh(), explain=True)
    launcher.launch(pairs)
    world.executors.run()
    pairs, _ = placer.place(world.targets.refresh(), explain=True)
    before = world.job(job)
    watcher.poll(pairs)
    driver.observation = GONE
    take_over(world)
    world.executors.run()
    assert world.job(job) == before
    assert world.attempt(job).ended_at is None


def test_handles_stay_after_the_lease_was_taken_over(
    world: World, driver: StubDriver, placer: Placer, launcher: Launcher, cleaner: Cleaner
) -> None:
    job = place_one(world, placer)
    pairs, _ = placer.place(world.targets.refresh(), explain=True)
    launcher.launch(pairs)
    world.executors.run()
    world.context.store.jobs.change_attempt(world.attempt(job).key, {"ended_at": 1.0})
    driver.observation = EXITED
    cleaner.clean(idle=True)
    take_over(world)
    world.executors.run()
    assert world.attempt(job).handle is not None


def test_a_server_that_gets_a_lease_back_looks_all_launches_up_again(
    world: World, driver: StubDriver, placer: Placer, launcher: Launcher
) -> None:
    place_one(world, placer)
    pairs, _ = placer.place(world.targets.refresh(), explain=True)
    launcher.launch(pairs)
    world.executors.run()
    take_over(world).stop()
    again = make_keeper(world.context.store.jobs.engine)
    again.register()
    world.context.links.leases.renew()
    pairs, _ = placer.place(world.targets.refresh(), explain=True)
    launcher.launch(pairs)
    world.executors.run()
    assert driver.count("launch") == 2


def test_a_driver_carries_the_epoch_of_the_lease(world: World) -> None:
    carried = list[ActingLease]()

    class LeasedDriver(StubDriver):
        def act_under(self, lease: ActingLease) -> None:
            carried.append(lease)

    world.attach("t")
    world.drivers["t"] = LeasedDriver()
    world.targets.refresh()
    lease = world.context.links.leases.held()["t"]
    world.targets.context("t").driver("t")
    (lease,) = carried
    assert lease.epoch == lease.epoch
    lease.check()
    take_over(world)
    world.context.links.leases.renew()
    with pytest.raises(LeaseLost):
        lease.check()
    with pytest.raises(Conflict):
        world.targets.context("t").driver("t")


def test_another_server_cleans_up_only_what_nobody_looks_after(
    world: World, driver: StubDriver, placer: Placer, launcher: Launcher, cleaner: Cleaner
) -> None:
    job = place_one(world, placer)
    pairs, _ = placer.place(world.targets.refresh(), explain=True)
    launcher.launch(pairs)
    world.executors.run()
    world.context.store.jobs.change_attempt(world.attempt(job).key, {"ended_at": 1.0})
    take_over(world)
    world.context.links.leases.renew()
    world.targets.refresh()
    cleaner.clean(idle=True)
    assert world.executors.run() == []
    world.context.store.targets.remove("t", reason="", now=1.0, force=True)
    world.targets.refresh()
    cleaner.clean(idle=True)
    assert world.executors.run() == ["forget t"]
    assert world.attempt(job).handle is None


def test_known_targets_are_read_again_after_a_change_of_leases(world: World) -> None:
    world.attach("t")
    targets = KnownTargets(world.context, world.table, interval_seconds=100.0)
    assert [target.name for target in targets.refresh()] == ["t"]
    take_over(world)
    world.context.links.leases.renew()
    assert targets.refresh() == []
    assert (targets.is_held("t"), targets.is_known("t")) == (False, True)
