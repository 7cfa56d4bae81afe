import math

import pytest

from retarget.control.attempt_table import AttemptEvent
from retarget.control.targets import check
from retarget.core.errors import TargetUnreachable
from retarget.core.jobs import Attempt
from retarget.core.targets import Inventory
from tests.control.jobs import inventory
from tests.control.world import World, one_node


@pytest.mark.parametrize(
    ("resources", "seconds"),
    [
        (one_node(), math.inf),
        (one_node(unavailable="no route"), 15.0),
        (inventory(nodes=2), 60.0),
        (Inventory(), 15.0),  # it may get nodes
        (Inventory(own_queue=True), math.inf),
    ],
)
def test_a_target_is_checked_again_if_its_nodes_may_change(
    world: World, resources: Inventory, seconds: float
) -> None:
    world.attach("t", resources)

    def start() -> list[str]:
        world.checks.start_due(world.targets.refresh())
        return world.executors.run()

    assert start() == ["check t"]  # each server checks a target once
    if seconds == math.inf:
        world.clock.time += 1_000_000
        assert start() == []
        return
    world.clock.time += seconds
    assert start() == []
    world.clock.time += 0.01
    assert start() == ["check t"]


def test_a_target_with_a_silent_launch_is_checked_soon(world: World) -> None:
    world.attach("t")
    world.checks.start_due(world.targets.refresh())
    world.executors.run()
    entry = world.table.add(Attempt(key="a", job_id="a", number=1, target="t"))
    for event in (AttemptEvent.LAUNCH_STARTED, AttemptEvent.LAUNCHED, AttemptEvent.SILENCE):
        entry = world.table.apply(entry, event) or entry
    world.clock.time += 3.01
    world.checks.start_due(world.targets.refresh())
    assert world.executors.run() == ["check t"]


def test_a_check_stores_since_when_a_node_is_in_its_state(world: World) -> None:
    driver = world.attach("t")
    for seconds, unavailable in ((0, ""), (10, "no route"), (10, "no route"), (10, "")):
        world.clock.time += seconds
        driver.inventory = one_node(unavailable=unavailable)
        check(world.context, world.context.store.targets.find("t"))
        (node,) = (world.context.store.targets.find("t").inventory or Inventory()).nodes
        assert node.unavailable == unavailable
        assert node.changed_at == {"": 1_000.0, "no route": 1_010.0}[unavailable] + (
            30.0 if world.clock.time == 1_030.0 else 0.0
        )


def test_a_target_that_cannot_be_checked_keeps_its_nodes(world: World) -> None:
    driver = world.attach("t")
    check(world.context, world.context.store.targets.find("t"))
    driver.check_error = TargetUnreachable("no route to host")
    with pytest.raises(TargetUnreachable):
        check(world.context, world.context.store.targets.find("t"))
    target = world.context.store.targets.find("t")
    assert target.reason == "no route to host"
    assert [node.name for node in (target.inventory or Inventory()).nodes] == ["n0"]
