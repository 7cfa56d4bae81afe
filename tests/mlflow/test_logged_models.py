"""MLflow's API over plain HTTP: models as runs logged them."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.mlflow.test_runs import Holder
from tests.server.conftest import Answer, Api, serving


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with serving(tmp_path_factory.mktemp("home")) as api:
        yield api


@pytest.fixture(scope="module")
def holder(api: Api) -> Iterator[Holder]:
    holder = Holder(api, "holder")
    yield holder
    api.ask("POST", "/api/jobs/holder/cancel")
    api.wait("holder")


def _ask(api: Api, method: str, path: str = "", **body: Any) -> Answer:
    where = f"/api/2.0/mlflow/logged-models{path}"
    return api.ask("GET", where, **body) if method == "GET" else api.ask(method, where, body)


def _create(api: Api, **body: Any) -> Any:
    answer = _ask(api, "POST", **({"experiment_id": "0"} | body))
    assert answer.status == 200, answer.content
    return answer.json["model"]["info"]


def _get(api: Api, model_id: str) -> Any:
    return _ask(api, "GET", f"/{model_id}").json["model"]


def test_a_model_says_what_is_known_and_no_more(api: Api) -> None:
    made = _create(api, name="net")
    model_id = made["model_id"]
    assert model_id.startswith("m-")
    assert made.pop("creation_timestamp_ms") == made.pop("last_updated_timestamp_ms")
    assert made == {
        "model_id": model_id,
        "experiment_id": "0",
        "name": "net",
        "artifact_uri": f"mlflow-artifacts:/0/models/{model_id}/artifacts",
        "status": "LOGGED_MODEL_PENDING",
        "model_type": "",
        "source_run_id": "",
    }
    assert _get(api, model_id)["data"] == {}


def test_a_model_keeps_all_that_it_is_given(api: Api) -> None:
    params, tags = [{"key": "lr", "value": "0.1"}], [{"key": "t", "value": "v"}]
    known = {"source_run_id": "r", "model_type": "kind", "params": params, "tags": tags}
    made = _create(api, **known)
    assert made["name"]
    _ask(api, "POST", f"/{made['model_id']}/params", params=[{"key": "a", "value": "b"}])
    found = _get(api, made["model_id"])
    assert found["info"] == made
    assert (made["source_run_id"], made["model_type"], made["tags"]) == ("r", "kind", tags)
    assert found["data"]["params"] == [{"key": "a", "value": "b"}, *params]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"experiment_id": ""}, 400, "Missing value for required parameter 'experiment_id'"),
        ({"experiment_id": "777"}, 404, "No Experiment with id=777 exists"),
        ({"name": "a.b"}, 400, "Invalid model name ('a.b') provided."),
        ({"tags": [{"key": 5}]}, 400, "for parameter 'tags'"),
    ],
)
def test_what_cannot_be_is_told(api: Api, body: dict[str, Any], status: int, message: str) -> None:
    answer = _ask(api, "POST", **({"experiment_id": "0"} | body))
    assert answer.status == status
    assert message in answer.json["message"]


def test_a_deleted_experiment_takes_no_models(api: Api) -> None:
    made = api.ask("POST", "/api/2.0/mlflow/experiments/create", {"name": "short"}).json
    api.ask("POST", "/api/2.0/mlflow/experiments/delete", made)
    answer = _ask(api, "POST", **made)
    assert (answer.status, answer.json["error_code"]) == (400, "INVALID_PARAMETER_VALUE")
    assert "must be in the 'active' state. Current state is deleted." in answer.json["message"]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("LOGGED_MODEL_READY", "LOGGED_MODEL_READY"),
        (3, "LOGGED_MODEL_UPLOAD_FAILED"),
        ("1", "LOGGED_MODEL_PENDING"),
    ],
)
def test_a_status_comes_by_name_or_number(api: Api, given: Any, shown: str) -> None:
    model_id = _create(api)["model_id"]
    answer = _ask(api, "PATCH", f"/{model_id}", model_id=model_id, status=given)
    assert answer.json["model"]["info"]["status"] == shown
    assert _get(api, model_id)["info"]["status"] == shown


@pytest.mark.parametrize("status", [None, "NONE_SUCH", 9, [1]])
def test_a_status_that_is_none_is_refused(api: Api, status: Any) -> None:
    model_id = _create(api)["model_id"]
    answer = _ask(api, "PATCH", f"/{model_id}", status=status)
    assert (answer.status, answer.json["error_code"]) == (400, "INVALID_PARAMETER_VALUE")


def test_tags_change_and_go(api: Api) -> None:
    model_id = _create(api, tags=[{"key": "a", "value": "1"}])["model_id"]
    tags = [{"key": "a", "value": "2"}, {"key": "b/c", "value": "3"}]
    assert _ask(api, "PATCH", f"/{model_id}/tags", tags=tags).status == 200
    assert _get(api, model_id)["info"]["tags"] == tags
    assert _ask(api, "DELETE", f"/{model_id}/tags/b/c").status == 200
    gone = _ask(api, "DELETE", f"/{model_id}/tags/b/c")
    assert (gone.status, gone.json["error_code"]) == (404, "RESOURCE_DOES_NOT_EXIST")


def test_a_deleted_model_is_seen_only_if_asked_for(api: Api) -> None:
    model_id = _create(api)["model_id"]
    assert _ask(api, "DELETE", f"/{model_id}").status == 200
    answer = _ask(api, "GET", f"/{model_id}")
    told = f"Logged model with ID '{model_id}' not found."
    assert (answer.status, answer.json["message"]) == (404, told)
    assert _ask(api, "GET", f"/{model_id}", allow_deleted="true").status == 200


def test_metrics_of_a_model_come_with_their_run(api: Api) -> None:
    model_id = _create(api)["model_id"]
    run = api.ask("POST", "/api/2.0/mlflow/runs/create", {"start_time": 1}).json["run"]["info"]
    metric = {"key": "acc", "value": "NaN", "timestamp": 7, "step": 2, "model_id": model_id}
    more = {"dataset_name": "train", "dataset_digest": "d"}
    body = {"run_id": run["run_id"], "metrics": [metric | more]}
    for _ in range(2):
        assert api.ask("POST", "/api/2.0/mlflow/runs/log-batch", body).status == 200
    found = _get(api, model_id)["data"]["metrics"]
    assert found == [metric | more | {"run_id": run["run_id"]}]
    body["metrics"][0]["model_id"] = "m-none"
    assert api.ask("POST", "/api/2.0/mlflow/runs/log-batch", body).status == 404


def test_a_model_lists_its_files(api: Api) -> None:
    made = _create(api)
    path = made["artifact_uri"].removeprefix("mlflow-artifacts:/")
    for name in ("MLmodel", "data/weights"):
        where = f"/api/2.0/mlflow-artifacts/artifacts/{path}/{name}"
        assert api.ask("PUT", where, b"1234").status == 200
    where = f"/{made['model_id']}/artifacts/directories"
    found = _ask(api, "GET", where).json
    assert found["root_uri"] == made["artifact_uri"]
    assert found["files"] == [
        {"path": "MLmodel", "is_dir": False, "file_size": 4},
        {"path": "data", "is_dir": True},
    ]
    inner = _ask(api, "GET", where, artifact_directory_path="data").json["files"]
    assert inner == [{"path": "data/weights", "is_dir": False, "file_size": 4}]
    assert _ask(api, "GET", where, artifact_directory_path="../x").status == 400
    where = f"/{made['model_id']}/artifacts/files"
    assert _ask(api, "GET", where, artifact_file_path="data/weights").content == b"1234"
    assert _ask(api, "GET", where, artifact_file_path="none").status == 404
    assert _ask(api, "GET", where).status == 400


def test_a_job_writes_to_its_own_models_and_to_no_other(api: Api, holder: Holder) -> None:
    made = holder.post("logged-models", experiment_id="0").json["model"]["info"]["model_id"]
    foreign = _create(api)["model_id"]
    tags = [{"key": "a", "value": "b"}]
    for method, path, body in (
        ("PATCH", "/tags", {"tags": tags}),
        ("DELETE", "/tags/a", {}),
        ("POST", "/params", {"params": tags}),
        ("PATCH", "", {"status": 2}),
        ("DELETE", "", {}),
    ):
        for model_id, status in ((made, 200), (foreign, 403)):
            where = f"/api/2.0/mlflow/logged-models/{model_id}{path}"
            answer = api.ask(method, where, body, token=holder.token)
            assert answer.status == status, (method, path, answer.content)
    assert holder.get(f"logged-models/{foreign}").status == 200
