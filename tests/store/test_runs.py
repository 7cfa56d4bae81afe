"""Runs in SQL: logging, reading back, and the runs of jobs."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine

from retarget.core.errors import Conflict, Invalid, NotFound
from retarget.core.jobs import Job
from retarget.core.states import Event, JobState
from retarget.core.tracking import Dataset, DatasetInput, Metric, ModelLink, Run, RunStatus
from retarget.store.experiments import Experiments
from retarget.store.jobs import Jobs
from retarget.store.metrics import Metrics
from retarget.store.runs import Runs


@pytest.fixture
def runs(engine: Engine) -> Runs:
    return Runs(engine)


@pytest.fixture
def metrics(engine: Engine) -> Metrics:
    return Metrics(engine)


def _run(run_id: str = "r1", **changes: Any) -> Run:
    fields: dict[str, Any] = {"id": run_id, "experiment_id": "0", "name": f"run {run_id}"}
    fields |= {"user": "me", "status": RunStatus.RUNNING, "started_at": 5}
    return Run.model_validate(fields | {"location": f"mlflow-artifacts:/0/{run_id}"} | changes)


def test_a_run_comes_back_as_it_was_logged(runs: Runs) -> None:
    runs.create(_run(tags={"a": "b"}))
    runs.log("r1", [Metric("acc", 0.5, 10, 1)], {"lr": "0.1"}, {"t": "é"})
    run = runs.get("r1")
    assert run.metrics == (Metric("acc", 0.5, 10, 1),)
    assert run.params == {"lr": "0.1"}
    assert run.tags == {"a": "b", "t": "é", "mlflow.runName": "run r1"}
    assert (run.status, run.started_at, run.ended_at, run.job_id) == (
        "RUNNING",
        5,
        None,
        None,
    )


def test_runs_are_loaded_in_the_requested_order(runs: Runs) -> None:
    for name in ("a", "b", "c"):
        runs.create(_run(name))
        runs.log(name, [Metric("m", ord(name), 1, 1)])
    assert [run.id for run in runs.load(["c", "x", "a"])] == ["c", "a"]
    assert runs.load(["c"])[0].metrics[0].value == ord("c")
    assert runs.load([]) == []


def test_the_latest_point_has_the_highest_step_then_time_then_value(runs: Runs) -> None:
    runs.create(_run())
    for metric in (
        Metric("m", 1.0, 50, 3),
        Metric("m", 9.0, 90, 2),
        Metric("m", 2.0, 60, 3),
        Metric("m", 0.5, 60, 3),
        Metric("m", -1.0, 10, 1),
    ):
        runs.log("r1", [metric])
    assert runs.get("r1").metrics == (Metric("m", 2.0, 60, 3),)


def test_logging_a_batch_again_changes_nothing(runs: Runs, metrics: Metrics) -> None:
    runs.create(_run())
    batch = [Metric("m", value, 1, step) for step, value in enumerate((1.0, math.nan, math.inf))]
    for _ in range(3):
        runs.log("r1", [*batch, *batch], {"p": "1"}, {"t": "1"})
    points = metrics.history("r1", "m", limit=100)
    assert [(point.step, str(point.value)) for point in points] == [
        (0, "1.0"),
        (1, "nan"),
        (2, "inf"),
    ]
    assert str(runs.get("r1").metrics[0].value) == "inf"


def test_a_param_keeps_its_value_and_a_refused_batch_leaves_nothing(
    runs: Runs, metrics: Metrics
) -> None:
    runs.create(_run())
    runs.log("r1", params={"p": "1"})
    with pytest.raises(Invalid, match=r"key='p' was already logged with value='1'.*new value '2'"):
        runs.log("r1", [Metric("m", 1, 1, 1)], {"p": "2"}, {"t": "x"})
    with pytest.raises(Invalid, match="Params were already logged="):
        runs.log("r1", params={"p": "2", "q": "2"})
    run = runs.get("r1")
    assert (run.params, run.metrics, "t" in run.tags) == ({"p": "1"}, (), False)
    assert metrics.history("r1", "m", limit=9) == []


def test_a_deleted_run_refuses_metrics_until_it_is_restored(runs: Runs) -> None:
    runs.create(_run())
    runs.delete("r1", now=7)
    with pytest.raises(Invalid, match="must be in the 'active' state"):
        runs.log("r1", [Metric("m", 1, 1, 1)])
    runs.restore("r1")
    runs.log("r1", [Metric("m", 1, 1, 1)])
    assert len(runs.get("r1").metrics) == 1


def test_a_missing_run_is_reported(runs: Runs, metrics: Metrics) -> None:
    for action in (
        lambda: runs.get("x"),
        lambda: runs.log("x", [Metric("m", 1, 1, 1)]),
        lambda: runs.delete("x", now=1),
        lambda: runs.owner("x"),
        lambda: runs.update("x", {"status": "FINISHED"}),
        lambda: metrics.history("x", "m", limit=1),
    ):
        with pytest.raises(NotFound, match="Run with id=x not found"):
            action()
    runs.create(_run())
    with pytest.raises(Conflict):
        runs.create(_run())


def test_the_name_of_a_run_is_a_tag_too(runs: Runs) -> None:
    runs.create(_run())
    runs.log("r1", tags={"mlflow.runName": "second"})
    assert runs.get("r1").name == "second"
    assert runs.update("r1", {"name": "third"}).tags["mlflow.runName"] == "third"
    runs.delete_tag("r1", "mlflow.runName")
    with pytest.raises(NotFound, match="No tag with name: x in run"):
        runs.delete_tag("r1", "x")


def test_inputs_are_recorded_once(runs: Runs) -> None:
    runs.create(_run())
    runs.create(_run("r2"))
    dataset = Dataset(name="iris", digest="d", source_type="local", source="s", schema_="{}")
    for _ in range(2):
        dataset_input = DatasetInput(dataset=dataset, tags={"mlflow.data.context": "train"})
        runs.add_inputs("r1", [dataset_input, dataset_input], [ModelLink(model_id="m-1")])
    runs.add_inputs("r2", [DatasetInput(dataset=dataset)], [])
    runs.add_outputs("r1", [ModelLink(model_id="m-2", step=4)])
    run = runs.get("r1")
    assert run.datasets == (DatasetInput(dataset=dataset, tags={"mlflow.data.context": "train"}),)
    assert run.models_in == (ModelLink(model_id="m-1"),)
    assert run.models_out == (ModelLink(model_id="m-2", step=4),)
    assert runs.get("r2").datasets == (DatasetInput(dataset=dataset),)


def test_inputs_are_shown_in_the_order_of_logging(runs: Runs) -> None:
    runs.create(_run())
    names = ["c", "a", "d", "b"]
    dataset_inputs = [
        DatasetInput(dataset=Dataset(name=name, digest="d", source_type="local", source="s"))
        for name in names
    ]
    runs.add_inputs("r1", dataset_inputs[:3], [])
    runs.add_inputs("r1", dataset_inputs, [])
    assert [item.dataset.name for item in runs.get("r1").datasets] == names


def test_many_writers_lose_nothing(
    runs: Runs, other: Engine, metrics: Metrics, race: Callable[..., list[Any]]
) -> None:
    runs.create(_run())
    writers = [runs, Runs(other)] * 3

    def write(index: int) -> None:
        for step in range(20):
            writers[index].log("r1", [Metric("m", index, 1, step)], {"p": "1"}, {"t": str(step)})

    ends = race([lambda index=index: write(index) for index in range(len(writers))])
    assert ends == [None] * len(writers)
    assert len(metrics.history("r1", "m", limit=1000)) == 20 * len(writers)
    assert runs.get("r1").metrics == (Metric("m", 5.0, 1, 19),)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.lists(
        st.tuples(st.integers(-5, 5), st.integers(0, 5), st.sampled_from([-1.0, 0.5, math.nan])),
        max_size=40,
    ),
    most=st.integers(1, 45),
)
def test_a_sample_is_even_and_has_both_ends(
    runs: Runs, metrics: Metrics, rows: list[tuple[int, int, float]], most: int
) -> None:
    name = f"r{hash((tuple(map(str, rows)), most))}"
    try:
        runs.create(_run(name))
    except Conflict:
        return  # drawn twice
    runs.log(name, [Metric("m", value, time, step) for step, time, value in rows])
    # the stored points by step; NaN is stored as 0
    kept = sorted(
        {
            (step, time, 0.0 if value != value else value, value != value)
            for step, time, value in rows
        }
    )
    size, longer = divmod(len(kept), most)
    starts = [index * size + min(index, longer) for index in range(most)] if size else []
    expected = [kept[start] for start in starts] if len(kept) > most else kept
    if len(kept) > most:
        expected[-1] = kept[-1]
    sample = metrics.sample(name, "m", max_points=most)
    assert [
        (point.step, point.logged_at, 0.0 if point.value != point.value else point.value)
        for point in sample
    ] == [row[:3] for row in expected]


def test_histories_come_by_time_in_pages_in_batches_and_for_several_runs(
    runs: Runs, metrics: Metrics
) -> None:
    for name in ("r1", "r2"):
        runs.create(_run(name))
        runs.log(name, [Metric("m", step / 2, 100 - step, step) for step in range(12)])
    times = [point.logged_at for point in metrics.history("r1", "m", limit=5, offset=2)]
    assert times == [91, 92, 93, 94, 95]
    assert [m.step for batch in metrics.iterate("r1", "m") for m in batch] == list(
        range(11, -1, -1)
    )
    points = metrics.history_of_runs(["r2", "r1", "x"], "m", limit=14)
    assert [run_id for run_id, _ in points] == ["r1"] * 12 + ["r2"] * 2
    assert [m.step for m in metrics.sample("r1", "m", max_points=99, steps=(3, 5))] == [3, 4, 5]
    assert metrics.history("r1", "other", limit=5) == []
    assert list(metrics.iterate("r1", "other")) == []


@pytest.mark.parametrize(
    ("event", "status"),
    [
        (Event.SUCCEEDED, RunStatus.FINISHED),
        (Event.FAILED, RunStatus.FAILED),
        (Event.STOPPED, RunStatus.KILLED),
    ],
)
def test_a_jobs_run_follows_its_job(
    jobs: Jobs,
    runs: Runs,
    add: Callable[..., Job],
    place: Callable[[Job], Job],
    event: Event,
    status: RunStatus,
) -> None:
    job = add(experiment="vision")
    run = runs.get(job.id)
    assert (run.status, run.name, run.job_id) == (RunStatus.SCHEDULED, job.name, job.id)
    assert Experiments(runs.engine).get(run.experiment_id).name == "vision"
    job = _running(jobs, place(job))
    assert runs.get(job.id).status is RunStatus.RUNNING
    if event is Event.STOPPED:
        job = jobs.record(job, Event.CANCEL_REQUESTED, reason="", now=70.0)
    if event is Event.SUCCEEDED:
        job = jobs.record(job, Event.EXITED, reason="", now=70.0)
    jobs.record(job, event, reason="", now=80.0)
    assert (runs.get(job.id).status, runs.get(job.id).ended_at) == (status, 80_000)


def test_the_status_that_a_client_set_stays_when_the_job_fails(
    jobs: Jobs, runs: Runs, add: Callable[..., Job], place: Callable[[Job], Job]
) -> None:
    job = _running(jobs, place(add()))
    runs.update(job.id, {"status": RunStatus.FINISHED, "ended_at": 61_000})
    job = jobs.record(job, Event.FAILED, reason="exit code 1", now=80.0)
    assert job.state is JobState.FAILED
    assert (runs.get(job.id).status, runs.get(job.id).ended_at) == (RunStatus.FINISHED, 61_000)
    jobs.delete(job)
    with pytest.raises(NotFound):
        runs.get(job.id)


def _running(jobs: Jobs, job: Job) -> Job:
    job = jobs.record(job, Event.PREPARING, reason="", now=55.0)
    return jobs.record(job, Event.STARTED, reason="", now=60.0, attempt={"started_at": 60.0})
