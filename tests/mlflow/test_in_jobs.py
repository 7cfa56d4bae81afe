"""Scripts that call `mlflow.*` in a job, without any setup, log to the run of the job."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.mlflow.conftest import part
from tests.server.conftest import Api

Cli = Callable[..., subprocess.CompletedProcess[str]]
CLIENTS = pytest.mark.parametrize("name", ["skinny-new", "skinny-old"])


class Jobs:
    """Runs scripts as jobs with the Python of a client, and reads their runs."""

    def __init__(self, retarget: Cli, home: Path, folder: Path) -> None:
        self._retarget, self._home, self._folder = retarget, home, folder

    def run(self, client: str, script: str, *options: str) -> dict[str, Any]:
        (self._folder / "script.py").write_text(script)
        options = ("--python", str(part(client)), "--name", "it", *options)
        quiet = ("--env", "MLFLOW_DISABLE_TELEMETRY=true", "--env", "DO_NOT_TRACK=true")
        self.done = self._retarget("run", *options, *quiet, "script.py", cwd=self._folder)
        return self.api.job("it")

    @property
    def api(self) -> Api:
        server_info = json.loads((self._home / "servers/main/server.json").read_text())
        return Api(self._home, server_info, (self._home / "token").read_text())

    def get(self, run_id: str) -> dict[str, Any]:
        answer = self.api.ask("GET", "/api/2.0/mlflow/runs/get", run_id=run_id)
        assert answer.status == 200, answer.content
        return answer.json["run"]

    def search(self, **query: Any) -> list[dict[str, Any]]:
        answer = self.api.ask("POST", "/api/2.0/mlflow/runs/search", query)
        assert answer.status == 200, answer.content
        return answer.json.get("runs", [])


@pytest.fixture
def jobs(retarget: Cli, home: Path, tmp_path: Path) -> Jobs:
    folder = tmp_path / "code"
    folder.mkdir()
    return Jobs(retarget, home, folder)


def pairs(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {row["key"]: row["value"] for row in rows}


PLAIN = """
import mlflow
mlflow.log_param("lr", 0.1)
for step in range(3):
    mlflow.log_metric("loss", 1 / (step + 1), step=step)
mlflow.set_tag("kind", "plain")
mlflow.log_text("hello", "notes/a.txt")
print(mlflow.active_run().info.run_id)
"""


@CLIENTS
def test_a_script_without_any_set_up_logs_to_the_run_of_its_job(jobs: Jobs, name: str) -> None:
    job = jobs.run(name, PLAIN)
    assert job["state"] == "succeeded", jobs.done.stdout + jobs.done.stderr
    assert job["id"] in jobs.done.stdout
    run = jobs.get(job["id"])
    assert run["info"]["status"] == "FINISHED"
    assert pairs(run["data"]["params"]) == {"lr": "0.1"}
    assert pairs(run["data"]["metrics"]) == {"loss": pytest.approx(1 / 3)}
    assert pairs(run["data"]["tags"])["kind"] == "plain"
    path = f"/api/2.0/mlflow/artifacts/list?run_id={job['id']}&path=notes"
    listed = jobs.api.ask("GET", path)
    assert [file["path"] for file in listed.json["files"]] == ["notes/a.txt"]


STARTED = """
import mlflow
with mlflow.start_run() as run:
    mlflow.log_metric("outer", 1)
    with mlflow.start_run(nested=True, run_name="inner") as inner:
        mlflow.log_metric("inner", 2)
    print("ids", run.info.run_id, inner.info.run_id)
"""


@CLIENTS
def test_start_run_takes_up_the_jobs_run_and_nested_runs_are_below_it(
    jobs: Jobs, name: str
) -> None:
    job = jobs.run(name, STARTED)
    ids_line = next(line for line in jobs.done.stdout.splitlines() if line.startswith("ids"))
    _, outer, inner = ids_line.split()
    assert outer == job["id"]
    assert pairs(jobs.get(outer)["data"]["metrics"]) == {"outer": 1}
    nested = jobs.get(inner)
    assert pairs(nested["data"]["tags"])["mlflow.parentRunId"] == job["id"]
    assert nested["info"]["status"] == "FINISHED"


def test_a_script_that_raises_fails_its_job_and_its_run(jobs: Jobs) -> None:
    script = "import mlflow\nwith mlflow.start_run():\n    mlflow.log_metric('m', 1)\n    1 / 0\n"
    job = jobs.run("skinny-new", script)
    assert job["state"] == "failed"
    run = jobs.get(job["id"])
    assert run["info"]["status"] == "FAILED"
    assert pairs(run["data"]["metrics"]) == {"m": 1}


def test_a_script_that_is_gone_at_once_leaves_no_open_run(jobs: Jobs) -> None:
    script = "import mlflow, os\nmlflow.log_metric('m', 1)\nos._exit(9)\n"
    job = jobs.run("skinny-new", script)
    assert (job["state"], jobs.done.returncode) == ("failed", 9)
    info = jobs.get(job["id"])["info"]
    assert info["status"] == "FAILED"
    assert info["end_time"] >= info["start_time"]


def test_a_job_that_fails_after_its_run_was_finished_has_failed(jobs: Jobs) -> None:
    script = "import mlflow, sys\nwith mlflow.start_run():\n    pass\nsys.exit(3)\n"
    job = jobs.run("skinny-new", script)
    assert (job["state"], jobs.done.returncode) == ("failed", 3)
    assert jobs.get(job["id"])["info"]["status"] == "FINISHED"


@CLIENTS
def test_a_script_that_names_its_experiment_takes_its_job_there(jobs: Jobs, name: str) -> None:
    job = jobs.run(name, "import mlflow\nmlflow.set_experiment('mine')" + PLAIN)
    assert job["state"] == "succeeded", jobs.done.stdout + jobs.done.stderr
    experiment = jobs.api.ask(
        "GET", "/api/2.0/mlflow/experiments/get-by-name", experiment_name="mine"
    ).json["experiment"]
    runs = jobs.search(experiment_ids=[experiment["experiment_id"]], filter="params.lr = '0.1'")
    assert [run["info"]["run_id"] for run in runs] == [job["id"]]


def test_a_job_may_not_write_to_anothers_run(jobs: Jobs) -> None:
    first = jobs.run("skinny-new", PLAIN)
    script = f"""
import mlflow
try:
    mlflow.MlflowClient().log_metric({first["id"]!r}, "loss", 5)
except mlflow.exceptions.MlflowException as error:
    print("refused", error.error_code)
"""
    jobs.run("skinny-new", script, "--name", "other")
    assert "refused PERMISSION_DENIED" in jobs.done.stdout
    assert pairs(jobs.get(first["id"])["data"]["metrics"]) == {"loss": pytest.approx(1 / 3)}


OWN = """
import mlflow
client = mlflow.MlflowClient()
experiment = client.create_experiment("draft")
client.create_run(experiment)
client.rename_experiment(experiment, "final")
print("renamed to", client.get_experiment(experiment).name)
client.delete_experiment(experiment)
client.restore_experiment(experiment)
client.delete_experiment(experiment)
print("experiment is", client.get_experiment(experiment).lifecycle_stage)
client.create_registered_model("first")
for number in ("1", "2"):
    client.create_model_version("first", "s3://bucket/net", None)
client.delete_model_version("first", "1")
client.rename_registered_model("first", "second")
print("versions", [v.version for v in client.search_model_versions("name = 'second'")])
client.delete_registered_model("second")
print("models", [model.name for model in client.search_registered_models()])
"""


@CLIENTS
def test_a_job_may_rename_and_delete_what_it_created(jobs: Jobs, name: str) -> None:
    job = jobs.run(name, OWN)
    assert job["state"] == "succeeded", jobs.done.stdout + jobs.done.stderr
    for line in ("renamed to final", "experiment is deleted", "versions [2]", "models []"):
        assert line in jobs.done.stdout.replace("'2'", "2")


NOT_OWN = """
import mlflow
client = mlflow.MlflowClient()
client.create_experiment("shared")
client.create_registered_model("shared")
client.create_model_version("shared", "s3://bucket/net", None)
"""
OF_ANOTHER = """
import mlflow
client = mlflow.MlflowClient()
experiment = client.get_experiment_by_name("shared").experiment_id
for change in (
    lambda: client.rename_experiment(experiment, "mine"),
    lambda: client.delete_experiment(experiment),
    lambda: client.rename_experiment("0", "mine"),
    lambda: client.rename_registered_model("shared", "mine"),
    lambda: client.delete_registered_model("shared"),
    lambda: client.delete_model_version("shared", "1"),
):
    try:
        change()
    except mlflow.exceptions.MlflowException as error:
        print(error.error_code, error.message)
"""


def test_a_job_may_not_rename_or_delete_what_others_created(jobs: Jobs) -> None:
    assert jobs.run("skinny-new", NOT_OWN)["state"] == "succeeded", jobs.done.stderr
    jobs.run("skinny-new", OF_ANOTHER, "--name", "other")
    refusals = [line for line in jobs.done.stdout.splitlines() if "PERMISSION_DENIED" in line]
    assert len(refusals) == 6, jobs.done.stdout
    assert all("it was not created by this job" in line for line in refusals)
