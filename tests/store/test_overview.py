"""Experiments and runs at a glance, on every database."""

import math
from collections.abc import Callable

import pytest
from sqlalchemy import Engine

from retarget.core.errors import NotFound
from retarget.core.jobs import Job
from retarget.core.states import JobState
from retarget.core.tracking import Metric, Run, RunStatus
from retarget.store.experiments import Experiments
from retarget.store.overview import Overview, Spread
from retarget.store.runs import Runs


def add_run(engine: Engine, experiment_id: str, run_id: str, *, started: int) -> None:
    run = Run(
        id=run_id,
        experiment_id=experiment_id,
        name=run_id,
        user="",
        status=RunStatus.RUNNING,
        started=started,
        location=f"mlflow-artifacts:/{experiment_id}/{run_id}/artifacts",
    )
    Runs(engine).create(run)


def test_experiments_come_with_counts_and_by_their_last_move(
    engine: Engine, add: Callable[..., Job]
) -> None:
    job = add()
    later = int(job.created * 1000) + 50_000
    other = Experiments(engine).create("other", "", {"a": "1", "b": "2"}, now=1)
    add_run(engine, other.id, "first", started=5)
    add_run(engine, other.id, "second", started=later)
    found = Overview(engine).experiments()
    assert [(each.name, each.jobs, each.runs) for each in found] == [
        ("other", 0, 2),
        ("Default", 1, 1),
    ]
    assert (found[0].changed, found[0].tags) == (later, {"a": "1", "b": "2"})
    assert Overview(engine).experiment("other") == found[0]
    with pytest.raises(NotFound, match="'Other'"):
        Overview(engine).experiment("Other")


def test_the_run_of_a_job_is_told_from_others(engine: Engine, add: Callable[..., Job]) -> None:
    job = add()
    add_run(engine, "0", "by-hand", started=5)
    owners = Overview(engine).runs("0", limit=10)
    assert [(each.run_id, each.job, each.state) for each in owners] == [
        (job.id, job.name, JobState.QUEUED),
        ("by-hand", None, None),
    ]
    assert [each.run_id for each in Overview(engine).runs("0", limit=1)] == [job.id]


def test_the_spread_of_a_metric_passes_over_nan(engine: Engine) -> None:
    add_run(engine, "0", "r", started=5)
    values = (3.0, math.nan, -1.0, math.inf)
    Runs(engine).log("r", [Metric("m", value, 1, step) for step, value in enumerate(values)])
    Runs(engine).log("r", [Metric("n", math.nan, 1)])
    overview = Overview(engine)
    assert overview.spread("r", "m") == Spread(4, -1.0, math.inf)
    assert overview.spread("r", "n") == Spread(1, None, None)
    assert overview.spread("r", "none") == Spread(0, None, None)
