"""Events: their ids, those kept for clients that come back, and how many there are at most."""

import random
from itertools import pairwise

import pytest

from retarget.core.events import (
    Change,
    Coalescer,
    EventId,
    History,
    Noun,
    Selection,
    job_changed,
    newest_of_each,
    of_job,
)

ALL = Selection()


def metric(run: str, version: int | None = None) -> Change:
    return Change(Noun.METRIC, run, version, run)


def filled(count: int, *, size: int = 100, epoch: str = "e") -> History:
    history = History(epoch, size)
    for number in range(count):
        history.add(job_changed(f"job-{number}", 1))
    return history


def test_an_id_is_read_as_it_was_written() -> None:
    assert EventId.parse(str(EventId("3f-2a", 17))) == EventId("3f-2a", 17)


@pytest.mark.parametrize(
    "text", ["", "-", "7", "-7", "e-", "e-x", "e--", "e-1.5", "e-²", "e-" + "9" * 19, "\0"]
)
def test_what_is_not_an_id_is_none(text: str) -> None:
    assert EventId.parse(text) is None


def test_a_client_that_comes_back_gets_exactly_what_it_missed() -> None:
    history = filled(5)
    for seen in range(6):
        missed = history.since(EventId("e", seen), ALL)
        assert missed is not None
        assert [event.number for event in missed] == list(range(seen + 1, 6))
        assert [event.change.id for event in missed] == [f"job-{n}" for n in range(seen, 5)]


def test_the_oldest_id_that_is_not_too_old_is_exact() -> None:
    history = filled(10, size=4)
    assert history.since(EventId("e", 5), ALL) is None  # event 6 is forgotten
    oldest = history.since(EventId("e", 6), ALL)
    assert oldest is not None
    assert [event.number for event in oldest] == [7, 8, 9, 10]


def test_an_id_of_another_server_or_of_the_future_is_unknown() -> None:
    history = filled(5)
    assert history.since(EventId("other", 5), ALL) is None
    assert history.since(EventId("e", 6), ALL) is None


def test_after_events_were_forgotten_every_earlier_id_is_too_old() -> None:
    history = filled(5)
    before = history.position
    history.clear()
    assert history.since(before, ALL) is None
    assert history.since(history.position, ALL) == []
    history.add(job_changed("next", 2))
    [event] = history.since(EventId("e", history.position.number - 1), ALL) or []
    assert event.change.id == "next"


def test_a_selection_is_by_noun_and_by_job() -> None:
    of_run = Change(Noun.METRIC, "run", job="job")
    target = Change(Noun.TARGET, "local")
    log = Change(Noun.LOG, "job", job="job")
    assert [change in ALL for change in (of_run, target, log)] == [True, True, False]
    assert of_run in of_job("job", Noun.METRIC)
    assert of_run not in of_job("job", Noun.JOB)
    assert of_run not in of_job("run", Noun.METRIC)
    assert target not in of_job("job", Noun.TARGET)


def test_what_was_missed_is_selected_too() -> None:
    history = filled(5)
    history.add(metric("job-3"))
    missed = history.since(EventId("e", 0), of_job("job-3", *Noun))
    assert missed is not None
    assert [(event.number, event.change.noun) for event in missed] == [(4, "job"), (6, "metric")]


def test_the_first_of_many_metrics_goes_out_at_once_and_the_last_one_later() -> None:
    coalescer = Coalescer(0.25)
    assert coalescer.offer(metric("a", 1), 0.0)
    assert not coalescer.offer(metric("a", 2), 0.1)
    assert not coalescer.offer(metric("a", 3), 0.2)
    assert coalescer.next_at == 0.25
    assert coalescer.due(0.24) == []
    assert coalescer.due(0.25) == [metric("a", 3)]
    assert not coalescer.offer(metric("a", 4), 0.3)  # as the last one went out at 0.25
    assert coalescer.due(0.5) == [metric("a", 4)]
    assert coalescer.due(0.75) == []
    assert coalescer.next_at is None  # nothing is kept about a run that is quiet
    assert coalescer.offer(metric("a", 5), 0.75)


def test_runs_do_not_hold_each_other_back_and_jobs_are_never_held_back() -> None:
    coalescer = Coalescer(0.25)
    assert coalescer.offer(metric("a"), 0.0)
    assert coalescer.offer(metric("b"), 0.1)
    assert coalescer.offer(Change(Noun.OUTPUT, "a"), 0.1)
    assert all(coalescer.offer(job_changed("a", version), 0.1) for version in range(9))


def test_at_any_rate_there_is_one_metric_per_run_and_interval_and_the_last_one_comes() -> None:
    rng, seconds = random.Random(13), 0.25
    coalescer, now, version = Coalescer(seconds), 0.0, 0
    published: dict[str, list[tuple[float, int | None]]] = {"a": [], "b": []}
    newest: dict[str, int] = {}
    while now < 60:
        next_offer_at = now + rng.choice((0.001, 0.02, 0.3))
        while coalescer.next_at is not None and coalescer.next_at <= next_offer_at:
            now = coalescer.next_at
            for change in coalescer.due(now):
                published[change.id].append((now, change.version))
        now, version, run = next_offer_at, version + 1, rng.choice("ab")
        newest[run] = version
        if coalescer.offer(metric(run, version), now):
            published[run].append((now, version))
    for change in coalescer.due(now + 1):
        published[change.id].append((now + 1, change.version))
    for run, events in published.items():
        times = [at for at, _ in events]
        assert min(b - a for a, b in pairwise(times)) >= seconds - 1e-9
        assert len(times) > 100
        assert events[-1][1] == newest[run]


def test_only_the_newest_change_of_each_thing_is_kept() -> None:
    changes = [job_changed("a", 1), metric("a"), job_changed("b", 1), job_changed("a", 2)]
    assert newest_of_each(changes) == [job_changed("a", 2), metric("a"), job_changed("b", 1)]
