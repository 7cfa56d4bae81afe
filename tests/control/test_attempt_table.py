import math
import threading

from hypothesis import given
from hypothesis import strategies as st

from retarget.control.attempt_table import (
    TRANSITIONS,
    AttemptEvent,
    AttemptPhase,
    AttemptTable,
    Entry,
)
from retarget.core.jobs import Attempt

P, E = AttemptPhase, AttemptEvent


def attempt(key: str = "a", target: str = "t") -> Attempt:
    return Attempt(key=key, job_id=key, number=1, target=target)


def after(table: AttemptTable, entry: Entry, *events: AttemptEvent) -> Entry:
    for event in events:
        changed = table.apply(entry, event)
        assert changed is not None, event
        entry = changed
    return entry


def test_a_new_attempt_is_launched_and_then_watched() -> None:
    table = AttemptTable()
    entry = table.add(attempt())
    assert entry.phase is P.PLACED
    assert after(table, entry, E.LAUNCH_STARTED).phase is P.LAUNCHING
    assert after(table, table.get("a") or entry, E.LAUNCHED).phase is P.WATCHED
    assert after(table, table.get("a") or entry, E.SILENCE).phase is P.SILENT
    assert after(table, table.get("a") or entry, E.ANSWER).phase is P.WATCHED


def test_an_attempt_of_an_earlier_server_may_be_on_its_target() -> None:
    table = AttemptTable()
    table.keep([attempt()])
    entry = table.get("a")
    assert entry is not None
    assert entry.phase is P.UNCONFIRMED


def test_an_attempt_of_this_server_stays_as_it_is_while_it_is_live() -> None:
    table = AttemptTable()
    entry = table.add(attempt())
    table.keep([attempt()])
    assert table.get("a") == entry
    table.keep([])
    assert table.get("a") is None


def test_only_one_thread_begins_a_launch() -> None:
    table = AttemptTable()
    entry = table.add(attempt())
    barrier, transitions = threading.Barrier(8), list[Entry | None]()

    def begin() -> None:
        barrier.wait()
        transitions.append(table.apply(entry, E.LAUNCH_STARTED))

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(result is not None for result in transitions) == 1


def test_a_launch_that_reached_no_target_can_still_be_undone() -> None:
    table = AttemptTable()
    entry = after(table, table.add(attempt()), E.LAUNCH_STARTED, E.NOTHING_STARTED)
    assert entry.phase is P.PLACED
    assert after(table, entry, E.LAUNCH_STARTED, E.LAUNCH_FAILED).phase is P.UNCONFIRMED


def test_an_attempt_that_is_placed_again_is_another_entry() -> None:
    table = AttemptTable()
    old = after(table, table.add(attempt()), E.LAUNCH_STARTED)
    new = table.add(attempt())
    assert table.apply(old, E.LAUNCH_FAILED) is None
    assert table.get("a") == new


def test_what_a_thread_saw_before_the_next_launch_comes_too_late() -> None:
    table = AttemptTable()
    watched = after(table, table.add(attempt()), E.LAUNCH_STARTED, E.LAUNCHED)
    again = after(table, watched, E.RUNNER_DIED, E.LAUNCH_STARTED, E.LAUNCHED)
    assert table.apply(watched, E.RUNNER_DIED) is None
    assert table.get("a") == again


def test_after_a_change_of_settings_launches_are_looked_up_again() -> None:
    table = AttemptTable()
    watched = after(table, table.add(attempt("watched")), E.LAUNCH_STARTED, E.LAUNCHED)
    launching = after(table, table.add(attempt("launching")), E.LAUNCH_STARTED)
    other = after(table, table.add(attempt("other", "u")), E.LAUNCH_STARTED, E.LAUNCHED)
    table.change_settings({"t"})
    assert (table.get("watched") or watched).phase is P.UNCONFIRMED
    assert (table.get("launching") or launching).phase is P.OUTDATED
    assert after(table, launching, E.LAUNCHED).phase is P.UNCONFIRMED  # with the old settings
    assert table.get("other") == other


def test_the_next_launch_is_the_earliest_that_waits() -> None:
    table = AttemptTable()
    assert table.next_launch() == math.inf
    for key, not_before in (("a", 5.0), ("b", 3.0)):
        entry = after(table, table.add(attempt(key)), E.LAUNCH_STARTED)
        table.apply(entry, E.LAUNCH_FAILED, not_before=not_before)
    after(table, table.add(attempt("c")), E.LAUNCH_STARTED, E.LAUNCHED)
    assert table.next_launch() == 3.0


def test_silent_targets_are_known() -> None:
    table = AttemptTable()
    for key, target in (("a", "t"), ("b", "u")):
        after(table, table.add(attempt(key, target)), E.LAUNCH_STARTED, E.LAUNCHED)
    entry = table.get("a")
    assert entry is not None
    after(table, entry, E.SILENCE)
    assert table.silent_targets() == {"t"}


@given(st.lists(st.sampled_from(AttemptEvent)))
def test_events_in_any_order_leave_an_attempt_launched_or_launchable(
    events: list[AttemptEvent],
) -> None:
    """No phase is a dead end: from each, an event leads on to WATCHED."""
    table = AttemptTable()
    entry = table.add(attempt())
    for event in events:
        entry = table.apply(entry, event) or entry
    if (entry.phase, E.LAUNCH_STARTED) in TRANSITIONS:
        entry = after(table, entry, E.LAUNCH_STARTED)
    if entry.phase is P.OUTDATED:
        entry = after(table, entry, E.LAUNCHED, E.LAUNCH_STARTED)
    if entry.phase is P.LAUNCHING:
        entry = after(table, entry, E.LAUNCHED)
    assert entry.is_launched
