"""Targets in SQL: settings, inventories and placements."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Engine, select

from retarget.core.errors import Conflict, NotFound
from retarget.core.jobs import Attempt, Job, JobSpec
from retarget.core.names import new_id
from retarget.core.states import LIVE, Event, JobState
from retarget.core.targets import Gpu, Inventory, Node, NodeType, Target
from retarget.store.engine import reading
from retarget.store.jobs import Jobs
from retarget.store.schema import nodes
from retarget.store.schema import targets as table
from retarget.store.targets import Targets

INVENTORY = Inventory(
    nodes=(Node(name="n", cpus=1.5, memory=2**40, gpus=(Gpu(id="0", name="H200"),)),),
    details={"python": "3.11\0"},
)


def test_a_target_comes_back_as_it_went_in(targets: Targets) -> None:
    far = Target(name="far", kind="ssh", config={"host": "h", "deep": [1, {"a": None}]})
    checked = Target(
        name="Checked", kind="ssh", inventory=INVENTORY, checked_at=1.5, reason="no route"
    )
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


def test_a_check_that_fails_keeps_the_inventory(targets: Targets) -> None:
    local = targets.find("local")
    targets.save_check(local, INVENTORY, "", 1.0)
    assert targets.find("local") == Target(
        name="local", kind="local", inventory=INVENTORY, checked_at=1.0
    )
    targets.save_check(local, None, "unreachable", 2.0)
    target = targets.find("local")
    assert (target.inventory, target.checked_at, target.reason) == (INVENTORY, 2.0, "unreachable")


def test_nodes_are_rows_with_a_state_and_since_when(targets: Targets, engine: Engine) -> None:
    resources = Inventory(
        nodes=(
            Node(name="n2", cpus=2, memory=2**40, changed_at=3.5, type="large"),
            Node(name="n1", cpus=1, memory=1, unavailable="no route", changed_at=4.0),
        ),
        node_types=(NodeType(name="large", cpus=2, memory=2**40, max_nodes=3),),
        own_queue=True,
        lost_after_seconds=9.0,
    )
    local = targets.find("local")
    targets.save_check(local, resources, "", 5.0)
    assert targets.find("local").inventory == resources  # in the order of placement
    with reading(engine) as db:
        rows = db.execute(select(nodes.c.name, nodes.c.state, nodes.c.changed_at)).all()
        stored = db.execute(select(table.c.inventory)).scalar_one()
    assert sorted(map(tuple, rows)) == [("n1", "unavailable", 4.0), ("n2", "ready", 3.5)]
    assert "nodes" not in stored
    targets.save_check(local, Inventory(), "", 6.0)
    assert targets.find("local").inventory == Inventory()


def test_the_nodes_of_a_removed_target_are_gone(targets: Targets, engine: Engine) -> None:
    targets.save_check(targets.find("local"), INVENTORY, "", 1.0)
    targets.remove("local", reason="detached", now=2.0)
    with reading(engine) as db:
        assert db.execute(select(nodes)).all() == []


def test_a_missing_target_is_reported_with_the_existing_ones(targets: Targets) -> None:
    targets.save(Target(name="far", kind="ssh"))
    calls: list[Callable[[str], object]] = [
        targets.find,
        lambda name: targets.remove(name, reason="", now=1.0),
        lambda name: targets.change(
            Target(name=name, kind="ssh"), before=Target(name=name, kind="ssh"), placements=0
        ),
        targets.placements,
        lambda name: targets.save_check(Target(name=name, kind="ssh"), None, "", 1.0),
    ]
    for call in calls:
        with pytest.raises(NotFound, match="no target named 'x'; this server has far, local"):
            call("x")


def test_a_removed_target_is_gone(targets: Targets) -> None:
    assert targets.remove("local", reason="detached", now=1.0) == []
    assert targets.list() == []
    with pytest.raises(NotFound, match="this server has none"):
        targets.find("local")


def test_a_new_target_does_not_replace_another(targets: Targets) -> None:
    existing = Target(name="far", kind="ssh", tags={"region": "north"}, inventory=INVENTORY)
    targets.add(existing)
    with pytest.raises(Conflict, match="a target named 'far' exists already"):
        targets.add(Target(name="far", kind="local"))
    assert targets.find("far") == existing


def test_a_target_changes(targets: Targets) -> None:
    before = targets.find("local")
    changed = Target(
        name="local", kind="local", config={"cpus": 3}, tags={"a": "b"}, inventory=INVENTORY
    )
    assert targets.change(changed, before=before, placements=0)
    assert targets.list() == [changed]


def test_a_target_that_has_changed_meanwhile_stays(
    targets: Targets, add: Callable[..., Job], place: Callable[[Job], Job]
) -> None:
    before = targets.find("local")
    first = before.model_copy(update={"config": {"cpus": 3}})
    second = before.model_copy(update={"config": {"memory": 5}})
    assert targets.change(first, before=before, placements=0)
    assert not targets.change(second, before=before, placements=1)
    assert not targets.change(second, before=first, placements=0)
    assert targets.list() == [first]


def test_what_is_placed_meanwhile_is_seen_by_a_change(
    targets: Targets, jobs: Jobs, add: Callable[..., Job], place: Callable[[Job], Job]
) -> None:
    before, job = targets.find("local"), add("one")
    place(add("other"))
    changed = before.model_copy(update={"config": {"cpus": 3}})
    assert not targets.change(changed, before=before, placements=0)
    assert targets.change(changed, before=before, placements=1)
    attempt = Attempt(
        key="b" * 32, job_id=job.id, number=1, target="local", allocations=(), created_at=1.0
    )
    with pytest.raises(Conflict, match="placed on target 'local' meanwhile"):
        jobs.place(job, attempt, reason="", now=1.0, placements=1)
    assert targets.all_placements() == {"local": 2}


def test_the_result_of_a_check_is_stored_unless_the_settings_have_changed(targets: Targets) -> None:
    before = targets.find("local")
    targets.save_check(before, INVENTORY, "", 1.0, {"host_keys": {"a": "b"}})
    after = targets.find("local")
    assert (after.config, after.inventory) == (before.config | {"host_keys": {"a": "b"}}, INVENTORY)
    targets.save_check(before, None, "it is silent", 2.0, {"host_keys": {}})
    assert targets.find("local") == after


def test_a_target_with_jobs_stays(
    targets: Targets, jobs: Jobs, add: Callable[..., Job], place: Callable[[Job], Job]
) -> None:
    placed = place(add("one"))
    for name in ("two", "three", "four"):
        add(name)
    sentence = "target 'local' has 4 unfinished jobs: one, two, three and 1 more; "
    with pytest.raises(Conflict, match=sentence):
        targets.remove("local", reason="detached", now=2000.0)
    assert [target.name for target in targets.list()] == ["local"]
    assert jobs.read(placed.id) == placed


def test_with_force_its_jobs_fail_and_those_of_other_targets_continue(
    targets: Targets, jobs: Jobs, add: Callable[..., Job], place: Callable[[Job], Job]
) -> None:
    placed, queued = place(add()), add()
    elsewhere = place(add(target="far"))
    unfinished = targets.remove(
        "local", reason="target 'local' was detached", now=2000.0, force=True
    )
    assert [job.id for job in unfinished] == [placed.id, queued.id]
    for job in (placed, queued):
        ended = jobs.read(job.id)
        assert (ended.state, ended.ended_at) == (JobState.FAILED, 2000.0)
        assert jobs.history(job.id)[-1].reason == ended.reason == "target 'local' was detached"
    (attempt,) = jobs.attempts(placed.id)
    assert (attempt.ended_at, attempt.reason) == (2000.0, "target 'local' was detached")
    assert jobs.read(elsewhere.id) == elsewhere
    assert jobs.live() == [(elsewhere, jobs.attempts(elsewhere.id)[0])]


@pytest.mark.parametrize("force", [False, True])
def test_no_job_waits_for_a_target_that_is_removed_at_that_moment(
    targets: Targets, jobs: Jobs, other: Engine, race: Callable[..., list[Any]], force: bool
) -> None:
    def submit(number: int) -> None:
        now = float(number)
        spec = JobSpec(command=("true",), target="going")
        fields: dict[str, Any] = {
            "reason": "waits",
            "version": 0,
            "created_at": now,
            "changed_at": now,
        }
        key = new_id(now)
        jobs.add(Job(id=key, name=f"j{key}", state=JobState.QUEUED, spec=spec, **fields))

    for round_number in range(10):
        targets.save(Target(name="going", kind="local"))
        detach = partial(Targets(other).remove, "going", reason="gone", now=9.0, force=force)
        submits = [partial(submit, round_number * 10 + number) for number in range(5)]
        ends = race([*submits, detach])
        assert {type(end) for end in ends} <= {type(None), NotFound, Conflict, list}
        removed = "going" not in [target.name for target in targets.list()]
        assert removed or (not force and isinstance(ends[-1], Conflict))
        if removed:
            counts = jobs.counts("going")
            assert sum(counts[state] for state in (*LIVE, JobState.QUEUED)) == 0
        else:
            Targets(other).remove("going", reason="gone", now=9.0, force=True)


def test_a_job_that_changes_while_its_target_is_removed_still_fails(
    targets: Targets,
    jobs: Jobs,
    other: Engine,
    add: Callable[..., Job],
    place: Callable[[Job], Job],
    race: Callable[..., list[Any]],
) -> None:
    for round_number in range(10):
        job = place(add(f"changing-{round_number}", target="going"))
        retry = partial(jobs.record, job, Event.RETRIED, reason="again", now=8.0)
        detach = partial(Targets(other).remove, "going", reason="gone", now=9.0, force=True)
        ends = race([retry, detach])
        if isinstance(ends[1], Conflict):  # the retry came first, so nothing was removed
            assert [target.name for target in targets.list()] == ["going", "local"]
            detach()
        ended = jobs.read(job.id)
        assert (ended.state, ended.reason) == (JobState.FAILED, "gone")
        assert {type(end) for end in ends} <= {Job, Conflict, list}
