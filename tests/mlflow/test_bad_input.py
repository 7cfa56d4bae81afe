"""MLflow's API with requests that no client sends: refused, without a loss of data."""

import base64
import json
from typing import Any

import pytest

from tests.mlflow.test_runs import Holder
from tests.server.conftest import Answer, Api

LONG = "9" * 5000
LARGEST = (1 << 63) - 1
TREE = "/api/2.0/mlflow-artifacts/artifacts"


def post(api: Api, path: str, **body: Any) -> Answer:
    return api.ask("POST", f"/api/2.0/mlflow/{path}", body)


def new_run(api: Api, **fields: Any) -> dict[str, Any]:
    return post(api, "runs/create", start_time=5, **fields).json["run"]["info"]


def refused(answer: Answer) -> str:
    assert answer.status == 400, answer.content
    assert answer.json["error_code"] == "INVALID_PARAMETER_VALUE"
    return str(answer.json["message"])


def test_a_search_is_ordered_by_at_most_20_fields(api: Api) -> None:
    new_run(api)
    for kind in ("metrics", "params", "tags"):
        fields = [f"{kind}.m{number}" for number in range(20)]
        assert post(api, "runs/search", experiment_ids=["0"], order_by=fields).status == 200
        more = [f"{kind}.m{number}" for number in range(40)]
        assert "at most 20" in refused(
            post(api, "runs/search", experiment_ids=["0"], order_by=more)
        )
    rows = [{"field_name": f"metrics.m{number}"} for number in range(3000)]
    refused(post(api, "logged-models/search", experiment_ids=["0"], order_by=rows))
    many = [{"dataset_name": f"d{number}"} for number in range(50_000)]
    refused(post(api, "logged-models/search", experiment_ids=["0"], datasets=many))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("runs/search", {"run_view_type": []}),
        ("runs/search", {"run_view_type": {}}),
        ("runs/search", {"run_view_type": LONG}),
        ("experiments/search", {"view_type": [], "max_results": 5}),
        ("experiments/search", {"view_type": LONG, "max_results": 5}),
        ("logged-models/search", {"experiment_ids": ["0"], "max_results": LARGEST}),
        ("experiments/create", {"name": "a", "artifact_location": "mlflow-artifacts:/0/#"}),
        ("experiments/create", {"name": "a", "artifact_location": "mlflow-artifacts:/a/%2e%2e/b"}),
        ("experiments/create", {"name": "a", "artifact_location": "http://["}),
    ],
)
def test_it_is_refused(api: Api, path: str, body: dict[str, Any]) -> None:
    refused(post(api, path, **body))


@pytest.mark.parametrize("name", ["dataset_name", "dataset_digest", "model_id"])
@pytest.mark.parametrize("value", [["a"], 5, True, {"a": 1}])
def test_the_model_and_dataset_of_a_metric_are_strings(api: Api, name: str, value: Any) -> None:
    point = {"run_id": new_run(api)["run_id"], "key": "m", "value": 1, "timestamp": 1}
    related = {"dataset_name": "d", "dataset_digest": "x", "model_id": "m-1"} | {name: value}
    refused(post(api, "runs/log-metric", **point, **related))


@pytest.mark.parametrize(
    "name", ["name", "digest", "source_type", "source", "schema", "profile", "tags"]
)
@pytest.mark.parametrize("value", [["x"], 5, {"x": 1}, [{"key": 1, "value": "x"}]])
def test_the_fields_of_a_dataset_are_strings(api: Api, name: str, value: Any) -> None:
    run_id = new_run(api)["run_id"]
    dataset: dict[str, Any] = {"name": "n", "digest": "d", "source_type": "local", "source": "s"}
    row: dict[str, Any] = {"dataset": dataset}
    (row if name == "tags" else dataset)[name] = value
    refused(post(api, "runs/log-inputs", run_id=run_id, datasets=[row]))


@pytest.mark.parametrize(
    "content", ['{"offset": Infinity}', "[" * 3000, '{"offset": 1e30}', f'{{"offset": {LONG}}}']
)
def test_an_invented_page_token_is_refused(api: Api, content: str) -> None:
    run_id = new_run(api)["run_id"]
    token = base64.b64encode(content.encode()).decode()
    path = "/api/2.0/mlflow/metrics/get-history"
    pages: list[dict[str, Any]] = [{}, {"max_results": 5}]
    for more in pages:
        query: dict[str, Any] = {"run_id": run_id, "metric_key": "m", "page_token": token}
        refused(api.ask("GET", path, **query, **more))


def test_a_history_can_be_read_in_pages_of_any_size(api: Api) -> None:
    query: dict[str, Any] = {"run_id": new_run(api)["run_id"], "metric_key": "m"}
    query["max_results"] = LARGEST
    assert api.ask("GET", "/api/2.0/mlflow/metrics/get-history", **query).json == {"metrics": []}


def test_a_status_that_is_no_number_is_refused(api: Api) -> None:
    model = post(api, "logged-models", experiment_id="0", name="m").json["model"]["info"]
    path = f"/api/2.0/mlflow/logged-models/{model['model_id']}"
    wrong: list[Any] = [float("inf"), [], LONG, 99]
    for status in wrong:
        refused(api.ask("PATCH", path, {"status": status}))


@pytest.mark.parametrize(
    "source",
    [
        "http://[",
        "mlflow-artifacts://[",
        "file://[::1",
        f"models:/x/{LONG}",
        "models:/" + "x" * 3000,
    ],
)
def test_a_source_that_is_no_address_is_refused(api: Api, source: str) -> None:
    post(api, "registered-models/create", name="sourced")
    refused(post(api, "model-versions/create", name="sourced", source=source))
    far = post(api, "model-versions/create", name="sourced", source="models:/sourced/9" + "9" * 19)
    assert far.status == 404


def test_a_part_that_has_no_number_is_refused(api: Api) -> None:
    for number in (LONG, "x", "-1"):
        path = f"/api/2.0/mlflow-artifacts/mpu/part/x/{number}?proof=é"
        assert api.ask("PUT", path.replace("é", "%C3%A9"), b"x", token="").status == 403


def test_the_models_of_a_run_are_the_newest_that_fit(api: Api) -> None:
    run_id = new_run(api)["run_id"]

    def log(number: int, size: int = 3000) -> Answer:
        model = {"artifact_path": f"m{number}", "flavors": {"x": "y" * size}}
        model |= {"utc_time_created": "now", "run_id": run_id}
        return post(api, "runs/log-model", run_id=run_id, model_json=json.dumps(model))

    for number in range(5):
        assert log(number).status == 200
    assert _logged(api, run_id) == ["m3", "m4"]
    refused(log(6, 9000))
    refused(post(api, "runs/log-model", run_id=run_id, model_json="[" * 100_000))
    for garbage in ("garbage", "5", "null"):
        post(api, "runs/set-tag", run_id=run_id, key="mlflow.log-model.history", value=garbage)
        assert log(7).status == 200
        assert _logged(api, run_id) == ["m7"]


def _logged(api: Api, run_id: str) -> list[str]:
    run = api.ask("GET", "/api/2.0/mlflow/runs/get", run_id=run_id).json["run"]
    tags = {tag["key"]: tag["value"] for tag in run["data"]["tags"]}
    return [model["artifact_path"] for model in json.loads(tags["mlflow.log-model.history"])]


def test_the_folders_of_experiments_and_models_are_no_files(api: Api) -> None:
    for name in ("0", "57", "registry"):
        refused(api.ask("PUT", f"{TREE}/{name}", b"x"))
    assert api.ask("PUT", f"{TREE}/loose.txt", b"x").status == 200


def test_names_and_descriptions_have_a_length(api: Api) -> None:
    run_id = new_run(api)["run_id"]
    refused(post(api, "runs/update", run_id=run_id, run_name="x" * 10_000))
    refused(post(api, "registered-models/create", name="long", description="x" * 1_000_000))
    refused(post(api, "model-versions/create", name="long", source="s3://" + "x" * 1_000_000))


def test_a_job_cannot_have_the_artifacts_of_others_removed_with_it(api: Api) -> None:
    foreign_folder = new_run(api)["artifact_uri"].partition(":/")[2]
    assert api.ask("PUT", f"{TREE}/{foreign_folder}/kept.txt", b"kept").status == 200
    holder = Holder(api, "thief")
    for location in (
        "mlflow-artifacts:/0/#",
        "mlflow-artifacts:/0",
        f"mlflow-artifacts:/{foreign_folder}",
    ):
        answer = holder.post("experiments/create", name="f", artifact_location=location)
        assert answer.status in (400, 403)
    assert holder.post("experiments/create", name="f", artifact_location="s3://mine").status == 200
    post(api, "registered-models/create", name="foreign")
    assert holder.post("registered-models/rename", name="foreign", new_name="b").status == 403
    api.ask("POST", "/api/jobs/thief/cancel")
    api.wait("thief")
    assert api.ask("DELETE", "/api/jobs/thief").status == 204
    assert api.ask("GET", f"{TREE}/{foreign_folder}/kept.txt").content == b"kept"


def test_deleting_a_version_keeps_the_files_of_others(api: Api) -> None:
    api.submit(
        "sh",
        "-c",
        "mkdir -p outputs/m/sub; echo > outputs/m/a; echo > outputs/m/sub/b",
        name="left",
    )
    api.wait("left")
    registration = {"job": "left", "path": "outputs/m"}
    assert api.ask("POST", "/api/models/first/versions", registration).status == 201
    query = {"name": "first", "version": "1"}
    answer = api.ask("GET", "/api/2.0/mlflow/model-versions/get-download-uri", **query)
    location = answer.json["artifact_uri"]
    post(api, "registered-models/create", name="second")
    for source in (
        f"{location}/sub",
        f"{location}/",
        location.replace("registry/", "registry//"),
        f"{location}?x=1",
    ):
        version = post(api, "model-versions/create", name="second", source=source).json
        number = version["model_version"]["version"]
        gone = {"name": "second", "version": number}
        assert api.ask("DELETE", "/api/2.0/mlflow/model-versions/delete", gone).status == 200
        assert _files(api) == ["a", "sub/b"]
    inner = post(api, "model-versions/create", name="second", source=f"{location}/sub").json
    assert api.ask("DELETE", "/api/models/first").status == 204
    folder = location.partition(":/")[2]
    assert api.ask("GET", f"{TREE}/{folder}/sub/b").status == 200
    gone = {"name": "second", "version": inner["model_version"]["version"]}
    assert api.ask("DELETE", "/api/2.0/mlflow/model-versions/delete", gone).status == 200
    assert api.ask("GET", f"{TREE}/{folder}/sub/b").status == 404


def _files(api: Api) -> list[str]:
    return [file["path"] for file in api.ask("GET", "/api/models/first/versions/1/files").json]
