"""Track files in SQL: lines are logged, and the size advances, in one transaction."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine

from retarget.core.errors import NotFound
from retarget.core.jobs import Job
from retarget.core.tracking import Metric
from retarget.store.metrics import Metrics
from retarget.store.runs import Runs
from retarget.store.track import Logged, TrackFiles


@pytest.fixture
def track(engine: Engine) -> TrackFiles:
    return TrackFiles(engine)


@pytest.fixture
def job(add: Callable[..., Job], place: Callable[[Job], Job]) -> Job:
    return place(add())


def file_of(job: Job, name: str = "1-a.jsonl") -> tuple[str, str]:
    return f"{job.id}-{job.attempt}", name


def points(count: int, key: str = "loss", start: int = 0) -> list[Metric]:
    return [Metric(key, step / 2, 1_000 + step, step) for step in range(start, start + count)]


def test_what_is_taken_in_is_counted_and_logged(
    track: TrackFiles, engine: Engine, job: Job
) -> None:
    file = file_of(job)
    assert track.processed_bytes(*file) == 0
    logged = Logged(points(3), [("lr", "0.1")], {"stage": "dev"})
    assert track.log_lines(file, (0, 30), job.id, logged) == []
    assert track.log_lines(file, (30, 50), job.id, Logged(points(2, start=3))) == []
    assert track.processed_bytes(*file) == 50
    run = Runs(engine).get(job.id)
    assert run.params == {"lr": "0.1"}
    assert run.tags["stage"] == "dev"
    assert Metrics(engine).history(job.id, "loss", limit=10) == points(5)


def test_lines_that_are_sent_again_are_not_taken_in_again(
    track: TrackFiles, engine: Engine, job: Job
) -> None:
    file = file_of(job)
    track.log_lines(file, (0, 30), job.id, Logged(points(3), tags={"stage": "first"}))
    Runs(engine).log(job.id, [], {}, {"stage": "changed since"})
    assert track.log_lines(file, (0, 30), job.id, Logged(points(9), tags={"stage": "again"})) == []
    assert track.log_lines(file, (10, 40), job.id, Logged(points(9))) == []
    assert track.processed_bytes(*file) == 30
    assert Runs(engine).get(job.id).tags["stage"] == "changed since"
    assert len(Metrics(engine).history(job.id, "loss", limit=10)) == 3


def test_each_file_has_its_size(track: TrackFiles, engine: Engine, job: Job) -> None:
    for number in range(3):
        file = file_of(job, f"{number}.jsonl")
        track.log_lines(file, (0, number + 1), job.id, Logged(points(2, start=10 * number)))
    files = [file_of(job, f"{number}.jsonl") for number in range(3)]
    assert [track.processed_bytes(*file) for file in files] == [1, 2, 3]
    assert len(Metrics(engine).history(job.id, "loss", limit=10)) == 6


def test_a_param_keeps_its_first_value_and_later_ones_are_reported(
    track: TrackFiles, engine: Engine, job: Job
) -> None:
    file = file_of(job)
    pairs = [("lr", "0.1"), ("depth", "3"), ("lr", "0.1"), ("lr", "0.2")]
    refused = track.log_lines(file, (0, 30), job.id, Logged(params=pairs))
    assert refused == ["param 'lr' keeps its value '0.1'; the later '0.2' is ignored"]
    later = Logged(points(1), [("lr", "0.3"), ("depth", "3"), ("seed", "7")])
    assert track.log_lines(file, (30, 60), job.id, later) == [
        "param 'lr' keeps its value '0.1'; the later '0.3' is ignored"
    ]
    assert Runs(engine).get(job.id).params == {"lr": "0.1", "depth": "3", "seed": "7"}
    assert len(Metrics(engine).history(job.id, "loss", limit=10)) == 1


def test_tables_are_listed_in_the_tag_that_clients_read(
    track: TrackFiles, engine: Engine, job: Job
) -> None:
    Runs(engine).log(job.id, [], {}, {"mlflow.loggedArtifacts": '[{"path": "x", "type": "image"}]'})
    track.log_lines(file_of(job), (0, 10), job.id, Logged(tables=["a.json"]))
    track.log_lines(file_of(job), (10, 20), job.id, Logged(tables=["b.json", "a.json"]))
    listed = json.loads(Runs(engine).get(job.id).tags["mlflow.loggedArtifacts"])
    assert listed == [
        {"path": "x", "type": "image"},
        {"path": "a.json", "type": "table"},
        {"path": "b.json", "type": "table"},
    ]


@pytest.mark.parametrize("invalid", ["no JSON", '{"path": "x"}', "[]"])
def test_an_invalid_list_of_tables_is_replaced(
    track: TrackFiles, engine: Engine, job: Job, invalid: str
) -> None:
    Runs(engine).log(job.id, [], {}, {"mlflow.loggedArtifacts": invalid})
    track.log_lines(file_of(job), (0, 10), job.id, Logged(tables=["a.json"]))
    listed = json.loads(Runs(engine).get(job.id).tags["mlflow.loggedArtifacts"])
    assert listed == [{"path": "a.json", "type": "table"}]


def test_a_deleted_run_does_not_block_its_files(
    track: TrackFiles, engine: Engine, job: Job
) -> None:
    Runs(engine).delete(job.id, now=1)
    (refused,) = track.log_lines(file_of(job), (0, 30), job.id, Logged(points(3)))
    assert "must be in the 'active' state" in refused
    assert track.processed_bytes(*file_of(job)) == 30
    assert Metrics(engine).history(job.id, "loss", limit=10) == []


def test_more_metrics_than_fit_into_one_statement(
    track: TrackFiles, engine: Engine, job: Job
) -> None:
    many = [Metric(f"m{number}", 1.0, 1, 0) for number in range(40_000)]
    assert track.log_lines(file_of(job), (0, 30), job.id, Logged(many)) == []
    assert len(Runs(engine).get(job.id).metrics) == 40_000


def test_one_of_two_servers_takes_a_line_in(
    track: TrackFiles,
    other: Engine,
    engine: Engine,
    job: Job,
    race: Callable[[list[Callable[[], Any]]], list[Any]],
) -> None:
    def take(store: TrackFiles) -> None:
        for size in range(0, 200, 10):
            store.log_lines(file_of(job), (size, size + 10), job.id, Logged(points(1, start=size)))

    race([lambda: take(track), lambda: take(TrackFiles(other))])
    assert track.processed_bytes(*file_of(job)) == 200
    assert len(Metrics(engine).history(job.id, "loss", limit=100)) == 20


def test_missing_attempts_and_runs_are_reported(track: TrackFiles, job: Job) -> None:
    with pytest.raises(NotFound, match="no attempt 'nobody'"):
        track.log_lines(("nobody", "a.jsonl"), (0, 1), job.id, Logged())
    with pytest.raises(NotFound, match="has no run"):
        track.run_of("nobody")
    assert track.run_of(job.id)[1].endswith(f"{job.id}/artifacts")
