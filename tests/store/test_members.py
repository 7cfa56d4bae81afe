"""What is heard of each node: kept once, whoever writes it."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine

from retarget.core.errors import Conflict
from retarget.core.jobs import Job, Member
from retarget.store.jobs import Jobs
from retarget.store.members import Members

Add = Callable[..., Job]
Place = Callable[[Job], Job]
Race = Callable[[list[Callable[[], Any]]], list[Any]]


def test_members_come_back_in_order(engine: Engine, jobs: Jobs, add: Add, place: Place) -> None:
    key = jobs.attempts(place(add(nodes=2)).id)[0].key
    members = Members(engine)
    assert members.of(key) == []
    second = Member(node=1, heard=5.0, confirmed=2, preparing=True)
    ended = Member(node=0, heard=6.0, exited=7.5, outcome="failed", reason="why", exit_code=3)
    for each in (second, ended):
        members.replace(key, None, each)
    assert members.of(key) == [ended, second]
    more = second.model_copy(update={"confirmed": 3, "started": True})
    members.replace(key, second, more)
    assert members.of(key) == [ended, more]


def test_what_was_heard_meanwhile_is_not_overwritten(
    engine: Engine, jobs: Jobs, add: Add, place: Place
) -> None:
    key = jobs.attempts(place(add(nodes=2)).id)[0].key
    members = Members(engine)
    first = Member(node=0, heard=1.0)
    members.replace(key, None, first)
    with pytest.raises(Conflict):
        members.replace(key, None, first)
    members.replace(key, first, first.model_copy(update={"confirmed": 1}))
    with pytest.raises(Conflict):
        members.replace(key, first, first.model_copy(update={"confirmed": 2}))


def test_members_go_with_their_job(engine: Engine, jobs: Jobs, add: Add, place: Place) -> None:
    from retarget.core.states import Event

    placed = place(add(nodes=2))
    key = jobs.attempts(placed.id)[0].key
    Members(engine).replace(key, None, Member(node=0, heard=1.0))
    ended = jobs.record(placed, Event.FAILED, reason="no", now=60.0, attempt={"ended": 60.0})
    jobs.delete(ended)
    assert Members(engine).of(key) == []
