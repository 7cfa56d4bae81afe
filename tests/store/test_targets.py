"""Targets in SQL: what is known about each place, and the claims on it."""

from collections.abc import Callable

import pytest

from retarget.core.errors import NotFound
from retarget.core.jobs import Job
from retarget.core.targets import Facts, Gpu, Node, Target
from retarget.store.targets import Targets

FACTS = Facts(
    nodes=(Node(name="n", cpus=1.5, memory=2**40, gpus=(Gpu(id="0", name="H200"),)),),
    details={"python": "3.11\0"},
)


def test_a_target_comes_back_as_it_went_in(targets: Targets) -> None:
    far = Target(name="far", kind="ssh", config={"host": "h", "deep": [1, {"a": None}]})
    checked = Target(name="Checked", kind="ssh", facts=FACTS, checked=1.5, reason="no route")
    targets.save(far)
    targets.save(checked)
    assert targets.find("far") == far
    assert targets.list() == [checked, far, Target(name="local", kind="local")]


def test_saving_again_replaces_all_but_the_placements(
    targets: Targets, add: Callable[..., Job], place: Callable[[Job], Job]
) -> None:
    place(add())
    place(add())
    targets.save(Target(name="local", kind="local", config={"cpus": 2}))
    assert targets.find("local").config == {"cpus": 2}
    assert targets.placements("local") == 2


def test_a_check_that_fails_keeps_the_facts(targets: Targets) -> None:
    targets.checked("local", FACTS, "", 1.0)
    assert targets.find("local") == Target(name="local", kind="local", facts=FACTS, checked=1.0)
    targets.checked("local", None, "unreachable", 2.0)
    target = targets.find("local")
    assert (target.facts, target.checked, target.reason) == (FACTS, 2.0, "unreachable")


def test_an_unknown_target_is_told_with_those_there_are(targets: Targets) -> None:
    targets.save(Target(name="far", kind="ssh"))
    asks: list[Callable[[str], object]] = [
        targets.find,
        targets.remove,
        targets.placements,
        lambda name: targets.checked(name, None, "", 1.0),
    ]
    for ask in asks:
        with pytest.raises(NotFound, match="no target named 'x'; this server has far, local"):
            ask("x")


def test_a_removed_target_is_gone(targets: Targets) -> None:
    targets.remove("local")
    assert targets.list() == []
    with pytest.raises(NotFound, match="this server has none"):
        targets.find("local")
