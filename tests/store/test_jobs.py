"""Jobs in SQL: guarded transitions, a complete history, and ordered listings."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, event

from retarget.core.environments import Environment
from retarget.core.errors import Conflict, NotFound
from retarget.core.jobs import Attempt, Job, JobSpec, Output
from retarget.core.states import LIVE, Event, JobState
from retarget.core.targets import Target
from retarget.store.job_rows import AttemptChange
from retarget.store.jobs import Jobs
from retarget.store.outputs import Outputs
from retarget.store.targets import Targets

Add = Callable[..., Job]
Place = Callable[[Job], Job]
Race = Callable[[list[Callable[[], Any]]], list[Any]]


def test_a_job_comes_back_as_it_went_in(jobs: Jobs, add: Add) -> None:
    spec = {
        "experiment": "digits",
        "snapshot": "a" * 64,
        "environment": Environment(kind="system", python="3.11", pip=("numpy==2.0",), name="np"),
        "variables": {"GREETING": "grüezi 'mitenand' 🎉\n"},
        "cpus": 0.5,
        "memory": "2g",
        "gpus": 2,
        "timeout": "1h30m",
        "priority": -3,
    }
    job = add("first", **spec)
    assert jobs.read(job.id) == jobs.find("first") == jobs.find(job.id) == job


def test_a_spec_is_kept_word_for_word(jobs: Jobs, add: Add) -> None:
    job = add(command=["bash", "-c", "echo 'a  b' \\ \"c\" \u2028"])
    assert jobs.find(job.name).spec == job.spec == JobSpec.model_validate(job.spec.model_dump())


def test_a_name_is_taken_once(jobs: Jobs, add: Add) -> None:
    job = add("first")
    sentence = "a job named 'first' exists already; choose another name or delete it"
    with pytest.raises(Conflict, match=sentence):
        add("first")
    assert jobs.list() == [job]


def test_one_of_many_gets_the_name(jobs: Jobs, add: Add, race: Race) -> None:
    ends = race([lambda: add("popular")] * 8)
    assert sorted(type(end).__name__ for end in ends) == ["Conflict"] * 7 + ["Job"]
    assert len(jobs.list()) == 1


def test_a_name_takes_precedence_over_an_id(jobs: Jobs, add: Add) -> None:
    first = add("first")
    second = add(first.id)
    assert jobs.find(first.id) == second


def test_a_missing_job_is_reported(jobs: Jobs) -> None:
    for read in (jobs.find, jobs.read):
        with pytest.raises(NotFound, match="no job named 'x'; `retarget job list` shows them"):
            read("x")
    with pytest.raises(NotFound):
        jobs.find("a\0b\udc80")
    with pytest.raises(NotFound, match="no attempt 'x'"):
        jobs.attempt("x")


def test_a_whole_life_is_in_the_history(jobs: Jobs, add: Add, place: Place) -> None:
    job = place(add("first", retries=1))
    assert (job.state, job.version, job.attempt) == (JobState.LAUNCHING, 1, 1)
    job = jobs.record(job, Event.PREPARING, reason="builds", now=60.0, attempt={"events_acked": 1})
    job = jobs.record(job, Event.STARTED, reason="runs", now=61.0, attempt={"started_at": 60.5})
    assert (job.state, job.started_at, job.ended_at) == (JobState.RUNNING, 60.5, None)
    job = jobs.record(job, Event.EXITED, reason="exit code 3", now=70.0, exit_code=3)
    assert job.exit_code == 3
    ended: AttemptChange = {"exit_code": 3, "ended_at": 70.0, "reason": "exit code 3"}
    job = jobs.record(job, Event.RETRIED, reason="tries again", now=71.0, attempt=ended)
    assert (job.state, job.exit_code, job.started_at) == (JobState.QUEUED, None, None)
    assert (job.failures, job.preemptions) == (1, 0)
    job = place(job)
    assert job.attempt == 2
    job = jobs.record(job, Event.PREPARING, reason="builds", now=80.0)
    job = jobs.record(job, Event.STARTED, reason="runs", now=81.0)
    assert job.started_at == 81.0
    job = jobs.record(job, Event.EXITED, reason="collects", now=90.0, exit_code=0)
    job = jobs.record(job, Event.SUCCEEDED, reason="exit code 0", now=91.0)
    assert (job.state, job.exit_code, job.ended_at) == (JobState.SUCCEEDED, 0, 91.0)
    assert (job.changed_at, job.reason) == (91.0, "exit code 0")

    assert jobs.read(job.id) == job
    transitions = jobs.history(job.id)
    assert [transition.version for transition in transitions] == list(range(11))
    assert [transition.event for transition in transitions] == [
        *("submitted", "placed", "preparing", "started", "exited", "retried"),
        *("placed", "preparing", "started", "exited", "succeeded"),
    ]
    assert transitions[0].reason == "waits for room"
    assert (transitions[0].at, transitions[-1].at) == (job.created_at, 91.0)
    assert transitions[-1].state == "succeeded"
    first, second = jobs.attempts(job.id)
    assert (first.number, first.exit_code, first.ended_at, first.events_acked) == (1, 3, 70.0, 1)
    assert (second.number, second.exit_code, second.allocations[0].gpus) == (2, None, ("0", "1"))


def test_failures_and_preemptions_are_counted_apart(jobs: Jobs, add: Add, place: Place) -> None:
    job = place(add(retries=1))
    for ending in (Event.PREEMPTED, Event.RETRIED, Event.PREEMPTED):
        job = place(jobs.record(job, ending, reason="again", now=60.0))
    job = jobs.record(job, Event.FAILED, reason="exit code 1", now=61.0)
    assert (job.attempt, job.failures, job.preemptions) == (4, 2, 2)
    assert jobs.read(job.id) == job


def test_what_ends_without_a_failed_attempt_is_no_failure(
    jobs: Jobs, add: Add, place: Place
) -> None:
    waiting = jobs.record(add(), Event.FAILED, reason="the target was detached", now=60.0)
    canceling = jobs.record(place(add()), Event.CANCEL_REQUESTED, reason="", now=60.0)
    canceled = jobs.record(canceling, Event.FAILED, reason="killed", now=61.0)
    assert (waiting.failures, canceled.failures) == (0, 0)


def test_a_placement_that_is_undone_is_no_attempt(jobs: Jobs, add: Add, place: Place) -> None:
    job = place(add())
    (attempt,) = jobs.attempts(job.id)
    jobs.unplace(job, attempt, reason="unreachable", now=60.0)
    queued = jobs.read(job.id)
    assert (queued.state, queued.attempt, queued.reason) == ("queued", 0, "unreachable")
    assert jobs.attempts(job.id) == []
    with pytest.raises(Conflict):
        jobs.unplace(job, attempt, reason="again", now=61.0)
    job = place(queued)
    (attempt,) = jobs.attempts(job.id)
    assert (job.attempt, attempt.number) == (1, 1)
    jobs.change_attempt(attempt.key, {"handle": "taken"})
    with pytest.raises(Conflict, match="has accepted the job meanwhile"):
        jobs.unplace(job, attempt, reason="unreachable", now=62.0)
    assert jobs.read(job.id) == job


def test_one_of_many_writers_changes_a_job(
    jobs: Jobs, other: Engine, add: Add, place: Place, race: Race
) -> None:
    job = place(add())
    servers = [jobs, Jobs(other)] * 4

    def prepare(server: Jobs, number: int) -> Job:
        change: AttemptChange = {"last_seen_at": float(number)}
        return server.record(job, Event.PREPARING, reason=f"{number}", now=60.0, attempt=change)

    ends = race([lambda s=s, n=n: prepare(s, n) for n, s in enumerate(servers)])
    (winner,) = [end for end in ends if isinstance(end, Job)]
    assert sum(isinstance(end, Conflict) for end in ends) == 7
    assert jobs.read(job.id) == winner
    assert [row.reason for row in jobs.history(job.id)][2:] == [winner.reason]
    assert jobs.attempts(job.id)[0].last_seen_at == float(winner.reason)


def test_an_event_on_a_stale_job_changes_nothing(jobs: Jobs, add: Add, place: Place) -> None:
    stale = place(add())
    job = jobs.record(stale, Event.PREPARING, reason="builds", now=60.0)
    with pytest.raises(Conflict, match="has changed meanwhile"):
        jobs.record(stale, Event.FAILED, reason="lost", now=61.0, attempt={"ended_at": 61.0})
    assert jobs.read(job.id) == job
    assert jobs.attempts(job.id)[0].ended_at is None
    assert len(jobs.history(job.id)) == 3


def test_an_event_that_is_not_allowed_changes_nothing(jobs: Jobs, add: Add) -> None:
    job = add()
    with pytest.raises(Conflict, match="the event 'started' is not allowed for a queued job"):
        jobs.record(job, Event.STARTED, reason="", now=60.0)
    assert jobs.read(job.id) == job


def test_one_of_two_servers_places_on_a_target(
    jobs: Jobs, other: Engine, targets: Targets, add: Add, race: Race
) -> None:
    waiting = [add() for _ in range(8)]
    servers = [jobs, Jobs(other)] * 4
    ends = race(
        [lambda s=s, j=j: _place(s, j, placements=0) for s, j in zip(servers, waiting, strict=True)]
    )
    (winner,) = [end for end in ends if isinstance(end, Job)]
    assert sum(isinstance(end, Conflict) for end in ends) == 7
    assert targets.placements("local") == 1
    assert [job.id for job, _ in jobs.live()] == [winner.id]
    assert {job.id for job in jobs.queued("local")} == {job.id for job in waiting} - {winner.id}
    assert sum(len(jobs.attempts(job.id)) for job in waiting) == 1


def test_one_of_many_places_a_job(jobs: Jobs, targets: Targets, add: Add, race: Race) -> None:
    job = add()
    for name in "abcdef":
        targets.save(Target(name=name, kind="local"))
    ends = race([lambda t=t: _place(jobs, job, placements=0, target=t) for t in "abcdef"])
    assert sum(isinstance(end, Job) for end in ends) == 1
    assert sum(isinstance(end, Conflict) for end in ends) == 5
    assert sum(targets.placements(name) for name in "abcdef") == 1
    ((_, attempt),) = jobs.live()
    assert targets.placements(attempt.target) == 1


def test_nothing_is_placed_on_a_removed_target(jobs: Jobs, targets: Targets, add: Add) -> None:
    job = add()
    targets.remove("local", reason="detached", now=2000.0, force=True)
    job = jobs.read(job.id).model_copy(update={"state": JobState.QUEUED})  # as it was read before
    with pytest.raises(Conflict, match="'local'"):
        _place(jobs, job, placements=0)
    assert jobs.read(job.id).state is JobState.FAILED
    assert jobs.attempts(job.id) == []


def test_nothing_is_added_for_a_removed_target(jobs: Jobs, targets: Targets, add: Add) -> None:
    job = add()
    jobs.delete(job.model_copy(update={"state": JobState.FAILED}))
    targets.remove("local", reason="detached", now=2000.0)
    with pytest.raises(NotFound, match="no target named 'local'; this server has none"):
        jobs.add(job)
    assert jobs.list() == []


def test_a_reason_changes_without_a_transition(jobs: Jobs, add: Add) -> None:
    job = add()
    explained = jobs.explain(job, "waits for 2 cores")
    assert (explained.reason, explained.version, explained.state) == (
        "waits for 2 cores",
        1,
        JobState.QUEUED,
    )
    assert jobs.read(job.id) == explained
    assert jobs.explain(job, "too late") == job
    assert jobs.explain(explained, "waits for 2 cores") == explained
    assert jobs.read(job.id) == explained
    canceled = jobs.record(explained, Event.CANCEL_REQUESTED, reason="asked to", now=60.0)
    assert [row.version for row in jobs.history(job.id)] == [0, 2] == [0, canceled.version]


def test_an_attempt_changes_without_a_transition(jobs: Jobs, add: Add, place: Place) -> None:
    job = place(add())
    (before,) = jobs.attempts(job.id)
    jobs.change_attempt(before.key, {"handle": "pid 7", "events_acked": 3_000_000_000})
    jobs.change_attempt(before.key, {"last_seen_at": 1.5})
    jobs.change_attempt(before.key, {})
    after = {"handle": "pid 7", "events_acked": 3_000_000_000, "last_seen_at": 1.5}
    assert jobs.attempt(before.key) == before.model_copy(update=after)
    assert jobs.read(job.id) == job
    with pytest.raises(NotFound):
        jobs.change_attempt("x", {"last_seen_at": 2.0})


def test_only_an_ended_job_is_deleted(jobs: Jobs, outputs: Outputs, add: Add, place: Place) -> None:
    job = place(add("first"))
    kept = place(add("second"))
    outputs.put(job.id, 1, Output(path="outputs/a", size=1, digest="d"))
    with pytest.raises(Conflict, match="job 'first' is launching; cancel it first"):
        jobs.delete(job)
    job = jobs.record(job, Event.FAILED, reason="lost", now=60.0)
    jobs.delete(job)
    jobs.delete(job)
    assert jobs.list() == [kept]
    assert (jobs.attempts(job.id), jobs.history(job.id), outputs.list(job.id, 1)) == ([], [], [])
    assert len(jobs.history(kept.id)) == 2
    add("first")


def test_digests_are_of_snapshots_and_outputs(jobs: Jobs, outputs: Outputs, add: Add) -> None:
    assert jobs.snapshots() == outputs.digests() == set()
    job = add(snapshot="a" * 64)
    add(snapshot="a" * 64)
    add()
    outputs.put(job.id, 1, Output(path="outputs/a", size=1, digest="b" * 64))
    outputs.put(job.id, 2, Output(path="outputs/a", size=1, digest="c" * 64))
    assert (jobs.snapshots(), outputs.digests()) == ({"a" * 64}, {"b" * 64, "c" * 64})


def test_an_ended_attempt_is_found_until_its_handle_is_cleared(
    jobs: Jobs, add: Add, place: Place
) -> None:
    running, ended, clean = (place(add()) for _ in range(3))
    for job in (running, ended):
        jobs.change_attempt(f"{job.id}-1", {"handle": "pid 7"})
    for job in (ended, clean):
        jobs.record(job, Event.FAILED, reason="lost", now=60.0, attempt={"ended_at": 60.0})
    assert jobs.ended_with_handle() == jobs.attempts(ended.id)
    jobs.change_attempt(f"{ended.id}-1", {"handle": None})
    assert jobs.ended_with_handle() == []


def test_lists_are_newest_first_and_filtered(jobs: Jobs, add: Add, place: Place) -> None:
    a = add("a", experiment="x")
    b = add("b", target="far")
    c = add("c", experiment="x", target="far")
    d = place(add("d", experiment="x"))
    e = jobs.record(add("e"), Event.CANCEL_REQUESTED, reason="", now=60.0)
    live_or_ended = [JobState.LAUNCHING, JobState.CANCELED, JobState.FAILED]

    assert jobs.list() == [e, d, c, b, a]
    assert jobs.list(states=[JobState.QUEUED]) == [c, b, a]
    assert jobs.list(states=live_or_ended) == [e, d]
    assert jobs.list(states=[JobState.QUEUED, JobState.QUEUED, JobState.LAUNCHING]) == [d, c, b, a]
    assert jobs.list(states=[JobState.QUEUED] * 2) == [c, b, a]
    assert jobs.list(states=[JobState.FAILED]) == []
    assert jobs.list(target="far") == [c, b]
    assert jobs.list(experiment="x") == [d, c, a]
    assert jobs.list(experiment="x", target="local") == [d, a]
    assert jobs.list(experiment="x", states=[JobState.QUEUED], target="far") == [c]
    assert jobs.list(states=list(JobState), target="local", before=e.id) == [d, a]
    assert jobs.list(target="nowhere") == []


@pytest.mark.parametrize("states", [[], [JobState.QUEUED], list(JobState)])
def test_pages_join_up(jobs: Jobs, add: Add, states: list[JobState]) -> None:
    everything = [add() for _ in range(7)][::-1]
    pages: list[Job] = []
    while page := jobs.list(states=states, limit=3, before=pages[-1].id if pages else None):
        assert len(page) <= 3
        pages += page
    assert pages == everything


def test_the_queue_is_in_placing_order(jobs: Jobs, add: Add, place: Place) -> None:
    low, first, high, second = (add(priority=number) for number in (-5, 0, 9, 0))
    place(add(priority=10))
    assert jobs.queued("local") == [high, first, second, low]
    assert jobs.queued("local", limit=2) == [high, first]
    assert jobs.queued("elsewhere") == []
    assert jobs.ahead_of(second) == [high.name, first.name]
    assert jobs.ahead_of(high) == []


def test_live_jobs_come_with_their_current_attempt(jobs: Jobs, add: Add, place: Place) -> None:
    add()
    again = place(add(retries=1))
    again = place(jobs.record(again, Event.RETRIED, reason="lost", now=60.0))
    ended = jobs.record(place(add()), Event.FAILED, reason="lost", now=60.0)
    canceling = jobs.record(place(add()), Event.CANCEL_REQUESTED, reason="", now=60.0)
    live = {job.id: (job, attempt) for job, attempt in jobs.live()}
    assert ended.id not in live
    assert {again.id, canceling.id} == set(live)
    assert live[again.id] == (again, jobs.attempts(again.id)[1])
    assert live[canceling.id] == (canceling, jobs.attempts(canceling.id)[0])


def test_counts_name_every_state(jobs: Jobs, add: Add, place: Place) -> None:
    assert jobs.counts() == dict.fromkeys(JobState, 0)
    add()
    add()
    place(add())
    expected = {JobState.QUEUED: 2, JobState.LAUNCHING: 1}
    assert jobs.counts() == dict.fromkeys(JobState, 0) | expected


def test_many_writers_all_succeed(jobs: Jobs, other: Engine, add: Add, race: Race) -> None:
    waiting = [add() for _ in range(12)]

    def explain_much(server: Jobs, job: Job) -> int:
        for number in range(20):
            job = server.explain(job, f"reason {number}")
        return job.version

    servers = [jobs, Jobs(other)] * 6
    ends = race(
        [lambda s=s, j=j: explain_much(s, j) for s, j in zip(servers, waiting, strict=True)]
    )
    assert ends == [20] * 12


@pytest.mark.parametrize("address", ["sqlite"], indirect=True)
@pytest.mark.parametrize("states", [[], [JobState.QUEUED], sorted(LIVE)])
@pytest.mark.parametrize("target", [None, "local"])
@pytest.mark.parametrize("experiment", [None, "Default"])
@pytest.mark.parametrize("before", [None, "ffff"])
def test_a_listing_walks_an_index_and_never_sorts(
    jobs: Jobs,
    states: list[JobState],
    target: str | None,
    experiment: str | None,
    before: str | None,
) -> None:
    plan = _plan(
        jobs,
        lambda: jobs.list(states=states, target=target, experiment=experiment, before=before),
    )
    assert not [step for step in plan if "TEMP B-TREE" in step]
    assert not [step for step in plan if step.startswith("SCAN jobs") and "INDEX" not in step]
    walks = [step for step in plan if "INDEX jobs_" in step or step.startswith("SCAN jobs")]
    by_id_alone = before and not (states or target or experiment)
    assert len(walks) == (0 if by_id_alone else max(1, len(states)))
    for walk in walks:
        assert "state=?" in walk or not states
        # for a target and an experiment, one index is walked and the other column is filtered
        assert "target=?" in walk or "experiment=?" in walk or not (target or experiment)


@pytest.mark.parametrize("address", ["sqlite"], indirect=True)
def test_the_queue_and_the_live_jobs_are_found_by_index(jobs: Jobs) -> None:
    (step,) = _plan(jobs, lambda: jobs.queued("local", limit=64))
    assert step == "SEARCH jobs USING INDEX jobs_in_placing_order (target=? AND state=?)"
    of_jobs, of_attempts = _plan(jobs, jobs.live)
    assert "SEARCH jobs USING INDEX" in of_jobs
    assert "(state=?)" in of_jobs
    assert "SEARCH attempts USING INDEX" in of_attempts
    assert "(job_id=? AND number=?)" in of_attempts
    (step,) = _plan(jobs, jobs.ended_with_handle)
    assert "USING INDEX attempts_with_handle" in step


def _place(jobs: Jobs, job: Job, *, placements: int, target: str = "local") -> Job:
    key = f"{job.id}-{target}"
    attempt = Attempt(key=key, job_id=job.id, number=1, target=target, created_at=50.0)
    return jobs.place(job, attempt, reason="there is room", now=50.0, placements=placements)


def _plan(jobs: Jobs, query: Callable[[], Any]) -> list[str]:
    """Return SQLite's plan for the first SELECT of `query`."""
    executed: list[tuple[str, Any]] = []

    def listen(_db: Any, _cursor: Any, statement: str, parameters: Any, *_more: Any) -> None:
        executed.append((statement, parameters))

    event.listen(jobs.engine, "before_cursor_execute", listen)
    query()
    event.remove(jobs.engine, "before_cursor_execute", listen)
    (statement, parameters) = next(call for call in executed if call[0].startswith("SELECT"))
    with jobs.engine.connect() as db:
        rows = db.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
    return [row[3] for row in rows]
