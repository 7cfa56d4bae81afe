"""Targets in SQL: what is known about each place, and the claims on it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Engine

from retarget.core.errors import Conflict, NotFound
from retarget.core.jobs import Attempt, Job, JobSpec
from retarget.core.names import new_id
from retarget.core.states import LIVE, Event, JobState
from retarget.core.targets import Facts, Gpu, Node, Target
from retarget.store.jobs import Jobs
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
    local = targets.find("local")
    targets.checked(local, FACTS, "", 1.0)
    assert targets.find("local") == Target(name="local", kind="local", facts=FACTS, checked=1.0)
    targets.checked(local, None, "unreachable", 2.0)
    target = targets.find("local")
    assert (target.facts, target.checked, target.reason) == (FACTS, 2.0, "unreachable")


def test_an_unknown_target_is_told_with_those_there_are(targets: Targets) -> None:
    targets.save(Target(name="far", kind="ssh"))
    asks: list[Callable[[str], object]] = [
        targets.find,
        lambda name: targets.remove(name, reason="", now=1.0),
        lambda name: targets.change(
            Target(name=name, kind="ssh"), before=Target(name=name, kind="ssh"), seen=0
        ),
        targets.placements,
        lambda name: targets.checked(Target(name=name, kind="ssh"), None, "", 1.0),
    ]
    for ask in asks:
        with pytest.raises(NotFound, match="no target named 'x'; this server has far, local"):
            ask("x")


def test_a_removed_target_is_gone(targets: Targets) -> None:
    assert targets.remove("local", reason="detached", now=1.0) == []
    assert targets.list() == []
    with pytest.raises(NotFound, match="this server has none"):
        targets.find("local")


def test_a_new_target_takes_no_others_place(targets: Targets) -> None:
    there = Target(name="far", kind="ssh", tags={"region": "north"}, facts=FACTS)
    targets.add(there)
    with pytest.raises(Conflict, match="a target named 'far' exists already"):
        targets.add(Target(name="far", kind="local"))
    assert targets.find("far") == there


def test_a_target_changes(targets: Targets) -> None:
    before = targets.find("local")
    changed = Target(name="local", kind="local", config={"cpus": 3}, tags={"a": "b"}, facts=FACTS)
    assert targets.change(changed, before=before, seen=0)
    assert targets.list() == [changed]


def test_a_target_that_has_moved_meanwhile_does_not_change(
    targets: Targets, add: Callable[..., Job], place: Callable[[Job], Job]
) -> None:
    before = targets.find("local")
    first = before.model_copy(update={"config": {"cpus": 3}})
    second = before.model_copy(update={"config": {"memory": 5}})
    assert targets.change(first, before=before, seen=0)
    assert not targets.change(second, before=before, seen=1)
    assert not targets.change(second, before=first, seen=0)
    assert targets.list() == [first]


def test_what_is_placed_meanwhile_is_seen_by_a_change(
    targets: Targets, jobs: Jobs, add: Callable[..., Job], place: Callable[[Job], Job]
) -> None:
    before, job = targets.find("local"), add("one")
    place(add("other"))
    changed = before.model_copy(update={"config": {"cpus": 3}})
    assert not targets.change(changed, before=before, seen=0)
    assert targets.change(changed, before=before, seen=1)
    attempt = Attempt(key="b" * 32, job_id=job.id, number=1, target="local", shares=(), created=1.0)
    with pytest.raises(Conflict, match="placed on target 'local' meanwhile"):
        jobs.place(job, attempt, reason="", now=1.0, seen=1)
    assert targets.all_placements() == {"local": 2}


def test_what_a_check_found_is_kept_unless_the_settings_have_changed(targets: Targets) -> None:
    before = targets.find("local")
    targets.checked(before, FACTS, "", 1.0, {"pins": {"a": "b"}})
    after = targets.find("local")
    assert (after.config, after.facts) == (before.config | {"pins": {"a": "b"}}, FACTS)
    targets.checked(before, None, "it is silent", 2.0, {"pins": {}})
    assert targets.find("local") == after


def test_a_target_with_jobs_stays(
    targets: Targets, jobs: Jobs, add: Callable[..., Job], place: Callable[[Job], Job]
) -> None:
    placed = place(add("one"))
    for name in ("two", "three", "four"):
        add(name)
    sentence = "target 'local' has 4 jobs that did not end yet: one, two, three and 1 more; "
    with pytest.raises(Conflict, match=sentence):
        targets.remove("local", reason="detached", now=2000.0)
    assert [target.name for target in targets.list()] == ["local"]
    assert jobs.read(placed.id) == placed


def test_by_force_its_jobs_fail_and_those_of_others_go_on(
    targets: Targets, jobs: Jobs, add: Callable[..., Job], place: Callable[[Job], Job]
) -> None:
    placed, queued = place(add()), add()
    elsewhere = place(add(target="far"))
    left = targets.remove("local", reason="target 'local' was detached", now=2000.0, force=True)
    assert [job.id for job in left] == [placed.id, queued.id]
    for job in (placed, queued):
        ended = jobs.read(job.id)
        assert (ended.state, ended.ended) == (JobState.FAILED, 2000.0)
        assert jobs.history(job.id)[-1].reason == ended.reason == "target 'local' was detached"
    (attempt,) = jobs.attempts(placed.id)
    assert (attempt.ended, attempt.reason) == (2000.0, "target 'local' was detached")
    assert jobs.read(elsewhere.id) == elsewhere
    assert jobs.live() == [(elsewhere, jobs.attempts(elsewhere.id)[0])]


@pytest.mark.parametrize("force", [False, True])
def test_no_job_is_left_waiting_for_a_target_that_goes_at_that_moment(
    targets: Targets, jobs: Jobs, other: Engine, race: Callable[..., list[Any]], force: bool
) -> None:
    def submit(number: int) -> None:
        now = float(number)
        spec = JobSpec(command=("true",), target="going")
        told: dict[str, Any] = {"reason": "waits", "version": 0, "created": now, "changed": now}
        key = new_id(now)
        jobs.add(Job(id=key, name=f"j{key}", state=JobState.QUEUED, spec=spec, **told))

    for turn in range(10):
        targets.save(Target(name="going", kind="local"))
        detach = partial(Targets(other).remove, "going", reason="gone", now=9.0, force=force)
        submits = [partial(submit, turn * 10 + number) for number in range(5)]
        ends = race([*submits, detach])
        assert {type(end) for end in ends} <= {type(None), NotFound, Conflict, list}
        gone = "going" not in [target.name for target in targets.list()]
        assert gone or (not force and isinstance(ends[-1], Conflict))
        if gone:
            counts = jobs.counts("going")
            assert sum(counts[state] for state in (*LIVE, JobState.QUEUED)) == 0
        else:
            Targets(other).remove("going", reason="gone", now=9.0, force=True)


def test_a_job_that_moves_while_its_target_goes_ends_all_the_same(
    targets: Targets,
    jobs: Jobs,
    other: Engine,
    add: Callable[..., Job],
    place: Callable[[Job], Job],
    race: Callable[..., list[Any]],
) -> None:
    for turn in range(10):
        job = place(add(f"moving-{turn}", target="going"))
        move = partial(jobs.record, job, Event.RETRIED, reason="again", now=8.0)
        detach = partial(Targets(other).remove, "going", reason="gone", now=9.0, force=True)
        ends = race([move, detach])
        if isinstance(ends[1], Conflict):  # it moved first, in the middle: all is as it was
            assert [target.name for target in targets.list()] == ["going", "local"]
            detach()
        ended = jobs.read(job.id)
        assert (ended.state, ended.reason) == (JobState.FAILED, "gone")
        assert {type(end) for end in ends} <= {Job, Conflict, list}
