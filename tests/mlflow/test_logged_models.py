"""MLflow's API over plain HTTP: logged models."""

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
    url_path = f"/api/2.0/mlflow/logged-models{path}"
    return api.ask("GET", url_path, **body) if method == "GET" else api.ask(method, url_path, body)


def _create(api: Api, **body: Any) -> Any:
    answer = _ask(api, "POST", **({"experiment_id": "0"} | body))
    assert answer.status == 200, answer.content
    return answer.json["model"]["info"]


def _get(api: Api, model_id: str) -> Any:
    return _ask(api, "GET", f"/{model_id}").json["model"]


def test_a_new_model_has_only_the_known_fields(api: Api) -> None:
    info = _create(api, name="net")
    model_id = info["model_id"]
    assert model_id.startswith("m-")
    assert info.pop("creation_timestamp_ms") == info.pop("last_updated_timestamp_ms")
    assert info == {
        "model_id": model_id,
        "experiment_id": "0",
        "name": "net",
        "artifact_uri": f"mlflow-artifacts:/0/models/{model_id}/artifacts",
        "status": "LOGGED_MODEL_PENDING",
        "model_type": "",
        "source_run_id": "",
    }
    assert _get(api, model_id)["data"] == {}


def test_a_model_keeps_all_its_fields(api: Api) -> None:
    params, tags = [{"key": "lr", "value": "0.1"}], [{"key": "t", "value": "v"}]
    fields = {"source_run_id": "r", "model_type": "kind", "params": params, "tags": tags}
    info = _create(api, **fields)
    assert info["name"]
    _ask(api, "POST", f"/{info['model_id']}/params", params=[{"key": "a", "value": "b"}])
    model = _get(api, info["model_id"])
    assert model["info"] == info
    assert (info["source_run_id"], info["model_type"], info["tags"]) == ("r", "kind", tags)
    assert model["data"]["params"] == [{"key": "a", "value": "b"}, *params]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"experiment_id": ""}, 400, "Missing value for required parameter 'experiment_id'"),
        ({"experiment_id": "777"}, 404, "No Experiment with id=777 exists"),
        ({"name": "a.b"}, 400, "Invalid model name ('a.b') provided."),
        ({"tags": [{"key": 5}]}, 400, "for parameter 'tags'"),
    ],
)
def test_invalid_models_are_refused(
    api: Api, body: dict[str, Any], status: int, message: str
) -> None:
    answer = _ask(api, "POST", **({"experiment_id": "0"} | body))
    assert answer.status == status
    assert message in answer.json["message"]


def test_a_deleted_experiment_takes_no_models(api: Api) -> None:
    experiment = api.ask("POST", "/api/2.0/mlflow/experiments/create", {"name": "short"}).json
    api.ask("POST", "/api/2.0/mlflow/experiments/delete", experiment)
    answer = _ask(api, "POST", **experiment)
    assert (answer.status, answer.json["error_code"]) == (400, "INVALID_PARAMETER_VALUE")
    assert "must be in the 'active' state. Current state is deleted." in answer.json["message"]


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        ("LOGGED_MODEL_READY", "LOGGED_MODEL_READY"),
        (3, "LOGGED_MODEL_UPLOAD_FAILED"),
        ("1", "LOGGED_MODEL_PENDING"),
    ],
)
def test_a_status_comes_by_name_or_number(api: Api, status: Any, shown: str) -> None:
    model_id = _create(api)["model_id"]
    answer = _ask(api, "PATCH", f"/{model_id}", model_id=model_id, status=status)
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


def test_a_deleted_model_is_shown_only_on_request(api: Api) -> None:
    model_id = _create(api)["model_id"]
    assert _ask(api, "DELETE", f"/{model_id}").status == 200
    answer = _ask(api, "GET", f"/{model_id}")
    message = f"Logged model with ID '{model_id}' not found."
    assert (answer.status, answer.json["message"]) == (404, message)
    assert _ask(api, "GET", f"/{model_id}", allow_deleted="true").status == 200


def test_metrics_of_a_model_come_with_their_run(api: Api) -> None:
    model_id = _create(api)["model_id"]
    run = api.ask("POST", "/api/2.0/mlflow/runs/create", {"start_time": 1}).json["run"]["info"]
    metric = {"key": "acc", "value": "NaN", "timestamp": 7, "step": 2, "model_id": model_id}
    more = {"dataset_name": "train", "dataset_digest": "d"}
    body = {"run_id": run["run_id"], "metrics": [metric | more]}
    for _ in range(2):
        assert api.ask("POST", "/api/2.0/mlflow/runs/log-batch", body).status == 200
    metrics = _get(api, model_id)["data"]["metrics"]
    assert metrics == [metric | more | {"run_id": run["run_id"]}]
    body["metrics"][0]["model_id"] = "m-none"
    assert api.ask("POST", "/api/2.0/mlflow/runs/log-batch", body).status == 404


def test_a_model_lists_its_files(api: Api) -> None:
    info = _create(api)
    path = info["artifact_uri"].removeprefix("mlflow-artifacts:/")
    for name in ("MLmodel", "data/weights"):
        url_path = f"/api/2.0/mlflow-artifacts/artifacts/{path}/{name}"
        assert api.ask("PUT", url_path, b"1234").status == 200
    url_path = f"/{info['model_id']}/artifacts/directories"
    listing = _ask(api, "GET", url_path).json
    assert listing["root_uri"] == info["artifact_uri"]
    assert listing["files"] == [
        {"path": "MLmodel", "is_dir": False, "file_size": 4},
        {"path": "data", "is_dir": True},
    ]
    inner = _ask(api, "GET", url_path, artifact_directory_path="data").json["files"]
    assert inner == [{"path": "data/weights", "is_dir": False, "file_size": 4}]
    assert _ask(api, "GET", url_path, artifact_directory_path="../x").status == 400
    url_path = f"/{info['model_id']}/artifacts/files"
    assert _ask(api, "GET", url_path, artifact_file_path="data/weights").content == b"1234"
    assert _ask(api, "GET", url_path, artifact_file_path="none").status == 404
    assert _ask(api, "GET", url_path).status == 400


def test_a_job_writes_to_its_own_models_and_to_no_other(api: Api, holder: Holder) -> None:
    own_model = holder.post("logged-models", experiment_id="0").json["model"]["info"]["model_id"]
    foreign = _create(api)["model_id"]
    tags = [{"key": "a", "value": "b"}]
    for method, path, body in (
        ("PATCH", "/tags", {"tags": tags}),
        ("DELETE", "/tags/a", {}),
        ("POST", "/params", {"params": tags}),
        ("PATCH", "", {"status": 2}),
        ("DELETE", "", {}),
    ):
        for model_id, status in ((own_model, 200), (foreign, 403)):
            url_path = f"/api/2.0/mlflow/logged-models/{model_id}{path}"
            answer = api.ask(method, url_path, body, token=holder.token)
            assert answer.status == status, (method, path, answer.content)
    assert holder.get(f"logged-models/{foreign}").status == 200
