"""Summaries of experiments, runs and metrics."""

import math
from collections.abc import Callable

import pytest
from sqlalchemy import Engine

from retarget.core.errors import NotFound
from retarget.core.jobs import Job
from retarget.core.states import JobState
from retarget.core.tracking import Metric, Run, RunStatus
from retarget.store.experiments import Experiments
from retarget.store.overview import MetricRange, Overview
from retarget.store.runs import Runs


def add_run(engine: Engine, experiment_id: str, run_id: str, *, started_at: int) -> None:
    run = Run(
        id=run_id,
        experiment_id=experiment_id,
        name=run_id,
        user="",
        status=RunStatus.RUNNING,
        started_at=started_at,
        location=f"mlflow-artifacts:/{experiment_id}/{run_id}/artifacts",
    )
    Runs(engine).create(run)


def test_experiments_come_with_counts_and_the_most_recently_changed_first(
    engine: Engine, add: Callable[..., Job]
) -> None:
    job = add()
    later = int(job.created_at * 1000) + 50_000
    other = Experiments(engine).create("other", "", {"a": "1", "b": "2"}, now=1)
    add_run(engine, other.id, "first", started_at=5)
    add_run(engine, other.id, "second", started_at=later)
    summaries = Overview(engine).experiments()
    assert [(summary.name, summary.jobs, summary.runs) for summary in summaries] == [
        ("other", 0, 2),
        ("Default", 1, 1),
    ]
    assert (summaries[0].changed_at, summaries[0].tags) == (later, {"a": "1", "b": "2"})
    assert Overview(engine).experiment("other") == summaries[0]
    with pytest.raises(NotFound, match="'Other'"):
        Overview(engine).experiment("Other")


def test_only_the_run_of_a_job_has_a_job_and_a_state(
    engine: Engine, add: Callable[..., Job]
) -> None:
    job = add()
    add_run(engine, "0", "by-hand", started_at=5)
    owners = Overview(engine).runs("0", limit=10)
    assert [(owner.run_id, owner.job, owner.state) for owner in owners] == [
        (job.id, job.name, JobState.QUEUED),
        ("by-hand", None, None),
    ]
    assert [owner.run_id for owner in Overview(engine).runs("0", limit=1)] == [job.id]


def test_the_range_of_a_metric_ignores_nan(engine: Engine) -> None:
    add_run(engine, "0", "r", started_at=5)
    values = (3.0, math.nan, -1.0, math.inf)
    Runs(engine).log("r", [Metric("m", value, 1, step) for step, value in enumerate(values)])
    Runs(engine).log("r", [Metric("n", math.nan, 1)])
    overview = Overview(engine)
    assert overview.metric_range("r", "m") == MetricRange(4, -1.0, math.inf)
    assert overview.metric_range("r", "n") == MetricRange(1, None, None)
    assert overview.metric_range("r", "none") == MetricRange(0, None, None)
