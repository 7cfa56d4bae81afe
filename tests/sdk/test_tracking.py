"""Metrics, experiments and models through the Python client."""

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from retarget import Invalid, Job, NotFound, RetargetError, Workspace
from retarget.sdk.downloads import download
from retarget.sdk.records import Output

Log = Callable[..., None]


@pytest.fixture
def workspace(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    folder = tmp_path / "code"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("MLFLOW_TRACKING_TOKEN", raising=False)
    yield Workspace()
    os.environ.pop("MLFLOW_TRACKING_TOKEN", None)


@pytest.fixture
def log(workspace: Workspace) -> Log:
    def send(job: Job, **content: Any) -> None:
        path = "/api/2.0/mlflow/runs/log-batch"
        workspace._connection.post(path, {"run_id": job.id, **content})  # pyright: ignore[reportPrivateUsage]

    return send


def series(key: str, *values: Any) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": value, "timestamp": 1000 + step, "step": step}
        for step, value in enumerate(values)
    ]


def finished(workspace: Workspace, command: str = "true", **options: Any) -> Job:
    job = workspace.submit(["sh", "-c", command], **options)
    job.wait()
    return job


def test_a_job_shows_what_it_logged(workspace: Workspace, log: Log) -> None:
    job = finished(workspace, name="first", experiment="trial")
    assert (job.metrics(), job.params()) == ({}, {})
    assert job.tags() == {}
    assert job.tracking().tags == {
        "mlflow.runName": "first",
        "mlflow.source.name": "sh -c true",
        "mlflow.source.type": "JOB",
    }
    log(
        job,
        metrics=[*series("loss", 0.5, 0.25), *series("gone", "NaN"), *series("up", "-Infinity")],
        params=[{"key": "lr", "value": "0.1"}],
        tags=[{"key": "who", "value": "me"}],
    )
    metrics = job.metrics()
    assert (metrics["loss"], metrics["up"]) == (0.25, -math.inf)
    assert math.isnan(metrics["gone"])
    assert (job.params(), job.tags()["who"]) == ({"lr": "0.1"}, "me")
    tracking = job.tracking()
    assert (tracking.run_id, tracking.experiment, tracking.status) == (job.id, "trial", "FINISHED")
    loss = tracking.metrics["loss"]
    assert (loss.step, loss.logged_at.timestamp()) == (1, 1.001)


def test_a_history_is_a_sequence_of_points(workspace: Workspace, log: Log) -> None:
    job = finished(workspace)
    log(job, metrics=series("val/loss", *range(100)))
    history = job.metric_history("val/loss")
    assert [point.value for point in history] == list(range(100))
    assert (len(history), history[-1].step, history.is_sampled) == (100, 99, False)
    few = job.metric_history("val/loss", points=5)
    assert (len(few), few.total, few.min, few.max, few.is_sampled) == (5, 100, 0.0, 99.0, True)
    log(job, metrics=series("none", "NaN"))
    assert job.metric_history("none").min is None
    with pytest.raises(NotFound, match="val/loss"):
        job.metric_history("acc")
    with pytest.raises(Invalid, match="points"):
        job.metric_history("val/loss", points=0)
    with pytest.raises(Invalid, match="empty"):
        job.metric_history("")


def test_experiments_and_their_runs(workspace: Workspace, log: Log) -> None:
    job = finished(workspace, name="one", experiment="trial")
    log(job, metrics=series("acc", 0.5), params=[{"key": "lr", "value": "1"}])
    finished(workspace, name="two", experiment="trial")
    experiments = {experiment.name: experiment for experiment in workspace.experiments}
    trial = experiments["trial"]
    assert (trial.jobs, trial.runs, trial.newest) == (2, 2, None)
    newest = workspace.experiments["trial"].newest
    assert newest is not None
    assert [(run.job, run.state) for run in newest] == [
        ("two", "succeeded"),
        ("one", "succeeded"),
    ]
    assert (newest[1].metrics["acc"].value, newest[1].params) == (0.5, {"lr": "1"})
    assert len(workspace.experiments.get("trial", limit=1).newest or []) == 1
    with pytest.raises(NotFound, match="no experiment named 'none'"):
        workspace.experiments["none"]


def test_an_output_becomes_a_version(workspace: Workspace, log: Log, tmp_path: Path) -> None:
    Path("code.txt").write_text("some code")
    job = finished(workspace, "mkdir outputs/m; echo a > outputs/m/a", name="j")
    log(job, metrics=[*series("acc", 0.75), *series("odd", "NaN")])
    version = job.register_model("iris", "outputs/m", description="the first", tags={"a": "b"})
    assert (version.name, version.version, version.description) == ("iris", 1, "the first")
    assert (version.tags, version.aliases) == ({"a": "b"}, [])
    lineage = version.lineage
    assert (lineage.job_id, lineage.job_name) == (job.id, "j")
    assert lineage.snapshot == job.to_json()["snapshot"] is not None
    assert lineage.metrics["acc"] == 0.75
    assert math.isnan(lineage.metrics["odd"])
    assert [file.path for file in version.files()] == ["a"]


def test_versions_outlive_their_job_and_go_by_number_or_alias(
    workspace: Workspace, tmp_path: Path
) -> None:
    job = finished(workspace, "mkdir outputs/m; echo a > outputs/m/a; echo b > outputs/b")
    job.register_model("iris", "outputs/m")
    second = job.register_model("iris", path="outputs/b")
    second.alias("champion")
    assert second.aliases == ["champion"]
    job.delete()
    model = workspace.models["iris"]
    assert (model.aliases, [version.version for version in model.versions()]) == (
        {"champion": 2},
        [2, 1],
    )
    assert (model[1].version, model["champion"].version, model["latest"].version) == (1, 2, 2)
    [path] = model["champion"].download(tmp_path / "files")
    assert path == tmp_path / "files/b"
    assert path.read_text() == "b\n"
    assert [file.name for file in (tmp_path / "files").iterdir()] == ["b"]
    model.remove_alias("champion")
    model[2].delete()
    [listed] = workspace.models
    assert listed.latest is not None
    assert (listed.latest.version, [version.version for version in listed.versions()]) == (1, [1])
    listed.delete()
    assert workspace.models.list() == []
    with pytest.raises(NotFound):
        workspace.models["iris"]


def test_registering_nothing_is_refused(workspace: Workspace) -> None:
    job = finished(workspace, "echo x > outputs/x", name="j")
    with pytest.raises(NotFound, match="outputs/x"):
        job.register_model("iris", "outputs/none")
    for name in ("", "a/b", "a:b"):
        with pytest.raises(Invalid, match=f"'{name}'" if name else "empty"):
            job.register_model(name, "outputs/x")
    assert workspace.models.list() == []


def test_a_damaged_file_is_not_kept(workspace: Workspace, tmp_path: Path) -> None:
    job = finished(workspace, "echo x > outputs/x")
    version = job.register_model("iris", "outputs/x")
    connection = workspace._connection  # pyright: ignore[reportPrivateUsage]
    source = f"/api/models/iris/versions/{version.version}/files"
    with pytest.raises(RetargetError, match="damaged"):
        download(connection, source, Output("x", 2, "0" * 64), tmp_path / "files")
    assert list((tmp_path / "files").iterdir()) == []


def test_the_tracking_uri_sets_the_token_for_mlflow(workspace: Workspace, home: Path) -> None:
    assert workspace.tracking_uri == workspace.url
    assert os.environ["MLFLOW_TRACKING_TOKEN"] == (home / "token").read_text()
