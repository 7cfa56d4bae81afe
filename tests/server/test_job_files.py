"""The files of a job: its outputs and the artifacts of its run, in one list."""

from tests.mlflow.test_runs import Holder
from tests.server.conftest import Api

SCRIPT = "import os; os.makedirs('outputs', exist_ok=True); open('outputs/a', 'w').write('a')"


def _put(api: Api, job_id: str, path: str, content: bytes) -> None:
    run = api.ask("GET", "/api/2.0/mlflow/runs/get", run_id=job_id).json["run"]
    folder = run["info"]["artifact_uri"].partition(":/")[2]
    url_path = f"/api/2.0/mlflow-artifacts/artifacts/{folder}/{path}"
    assert api.ask("PUT", url_path, content).status == 200


def test_artifacts_are_listed_and_read_with_the_outputs(api: Api) -> None:
    api.submit("python", "-c", SCRIPT, name="leaves")
    job = api.wait("leaves")
    _put(api, job["id"], "best/model.txt", b"weights")
    listed = api.ask("GET", "/api/jobs/leaves/outputs").json
    assert [file["path"] for file in listed] == ["best/model.txt", "outputs/a"]
    assert [file["size"] for file in listed] == [7, 1]
    for path, content in (("best/model.txt", b"weights"), ("outputs/a", b"a")):
        assert api.ask("GET", f"/api/jobs/leaves/outputs/{path}").content == content
    answer = api.ask("GET", "/api/jobs/leaves/outputs/best")
    assert (answer.status, answer.json["message"]) == (
        404,
        "job 'leaves' has no file 'best'; it has best/model.txt, outputs/a",
    )


def test_other_runs_and_models_that_a_job_created_name_that_job(api: Api) -> None:
    holder = Holder(api, "maker")
    created = holder.post("runs/create", experiment_id="0", start_time=5, run_name="more").json
    model = holder.post("logged-models", experiment_id="0", name="net").json["model"]["info"]
    runs = api.ask("GET", "/api/experiments/Default").json["newest"]
    (more,) = [run for run in runs if run["run_id"] == created["run"]["info"]["run_id"]]
    assert (more["job"], more["state"], more["name"]) == ("maker", None, "more")
    assert api.ask("GET", "/api/jobs/maker/tracking").json["models"] == ["net"]
    assert holder.post("registered-models/create", name="net").status == 200
    source = f"models:/{model['model_id']}"
    assert holder.post("model-versions/create", name="net", source=source).status == 200
    lineage = api.ask("GET", "/api/models/net/versions/1").json["lineage"]
    assert (lineage["job_id"], lineage["job_name"]) == (holder.id, "maker")
    api.ask("POST", "/api/jobs/maker/cancel")
    api.wait("maker")
