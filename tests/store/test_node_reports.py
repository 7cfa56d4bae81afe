"""Reports of the nodes of an attempt: stored once, whoever writes them."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine

from retarget.core.errors import Conflict
from retarget.core.jobs import Job, NodeReport
from retarget.core.states import Event
from retarget.store.jobs import Jobs
from retarget.store.node_reports import NodeReports

Add = Callable[..., Job]
Place = Callable[[Job], Job]
Race = Callable[[list[Callable[[], Any]]], list[Any]]


def test_reports_come_back_in_order(engine: Engine, jobs: Jobs, add: Add, place: Place) -> None:
    key = jobs.attempts(place(add(nodes=2)).id)[0].key
    reports = NodeReports(engine)
    assert reports.of(key) == []
    second = NodeReport(node=1, last_seen_at=5.0, events_acked=2, preparing=True)
    ended = NodeReport(
        node=0, last_seen_at=6.0, exited_at=7.5, outcome="failed", reason="why", exit_code=3
    )
    for report in (second, ended):
        reports.replace(key, None, report)
    assert reports.of(key) == [ended, second]
    more = second.model_copy(update={"events_acked": 3, "started": True})
    reports.replace(key, second, more)
    assert reports.of(key) == [ended, more]


def test_a_newer_report_is_not_overwritten(
    engine: Engine, jobs: Jobs, add: Add, place: Place
) -> None:
    key = jobs.attempts(place(add(nodes=2)).id)[0].key
    reports = NodeReports(engine)
    first = NodeReport(node=0, last_seen_at=1.0)
    reports.replace(key, None, first)
    with pytest.raises(Conflict):
        reports.replace(key, None, first)
    reports.replace(key, first, first.model_copy(update={"events_acked": 1}))
    with pytest.raises(Conflict):
        reports.replace(key, first, first.model_copy(update={"events_acked": 2}))


def test_node_reports_go_with_their_job(engine: Engine, jobs: Jobs, add: Add, place: Place) -> None:
    placed = place(add(nodes=2))
    key = jobs.attempts(placed.id)[0].key
    NodeReports(engine).replace(key, None, NodeReport(node=0, last_seen_at=1.0))
    ended = jobs.record(placed, Event.FAILED, reason="no", now=60.0, attempt={"ended_at": 60.0})
    jobs.delete(ended)
    assert NodeReports(engine).of(key) == []
