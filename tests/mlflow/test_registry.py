"""MLflow's API over plain HTTP: the registry, what may be a source, and what a job may do."""

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


def _ask(api: Api, method: str, path: str, **body: Any) -> Answer:
    if method == "GET":
        return api.ask("GET", f"/api/2.0/mlflow/{path}", **body)
    return api.ask(method, f"/api/2.0/mlflow/{path}", body)


def _told(answer: Answer) -> tuple[int, str, str]:
    return (answer.status, answer.json["error_code"], answer.json["message"])


def _model(api: Api, name: str, **body: Any) -> Any:
    answer = _ask(api, "POST", "registered-models/create", name=name, **body)
    assert answer.status == 200, answer.content
    return answer.json["registered_model"]


def _version(api: Api, name: str, source: str = "s3://bucket/model", **body: Any) -> Any:
    answer = _ask(api, "POST", "model-versions/create", name=name, source=source, **body)
    assert answer.status == 200, answer.content
    return answer.json["model_version"]


def _run(api: Api, **asked: Any) -> Any:
    answer = _ask(api, "POST", "runs/create", start_time=5, **asked)
    return answer.json["run"]["info"]


def _logged(api: Api, **asked: Any) -> Any:
    answer = _ask(api, "POST", "logged-models", experiment_id="0", **asked)
    return answer.json["model"]["info"]


def test_a_model_says_what_is_known_and_no_more(api: Api) -> None:
    made = _model(api, "plain")
    assert set(made) == {"name", "creation_timestamp", "last_updated_timestamp"}
    tags = [{"key": "a", "value": "1"}]
    made = _model(api, "tagged", description="words", tags=tags)
    assert (made["description"], made["tags"]) == ("words", tags)
    assert _ask(api, "GET", "registered-models/get", name="tagged").json == {
        "registered_model": made
    }


def test_a_version_says_what_is_known_and_no_more(api: Api) -> None:
    _model(api, "one")
    made = _version(api, "one", run_id="any")
    times = {"creation_timestamp", "last_updated_timestamp"}
    assert {name: value for name, value in made.items() if name not in times} == {
        "name": "one",
        "version": "1",
        "description": "",
        "current_stage": "None",
        "source": "s3://bucket/model",
        "run_id": "any",
        "run_link": "",
        "status": "READY",
    }
    found = _ask(api, "GET", "model-versions/get", name="one", version="1").json
    assert found == {"model_version": made}
    whole = _ask(api, "GET", "registered-models/get", name="one").json["registered_model"]
    assert whole["latest_versions"] == [made]
    uri = _ask(api, "GET", "model-versions/get-download-uri", name="one", version="1").json
    assert uri == {"artifact_uri": "s3://bucket/model"}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "message"),
    [
        ("POST", "registered-models/create", {}, 400, "INVALID", "required parameter 'name'. See"),
        ("POST", "registered-models/create", {"name": " "}, 400, "INVALID", "parameter 'name'."),
        ("POST", "registered-models/create", {"name": "a:b"}, 400, "INVALID", "'/' or ':'"),
        ("POST", "registered-models/create", {"name": "..a"}, 400, "INVALID", "resolve to '..a'"),
        ("POST", "registered-models/create", {"name": "a" * 257}, 400, "INVALID", "maximum"),
        ("POST", "registered-models/create", {"name": 5}, 400, "INVALID", "type 'int'"),
        ("POST", "registered-models/create", {"name": "taken"}, 400, "EXISTS", "(name=taken)"),
        (
            "POST",
            "registered-models/create",
            {"name": "x", "tags": [{"key": "mlflow.prompt.is_prompt", "value": "true"}]},
            501,
            "NOT_IMPLEMENTED",
            "no prompts",
        ),
        ("GET", "registered-models/get", {"name": "gone"}, 404, "NOT_EXIST", "name=gone not found"),
        ("PATCH", "registered-models/update", {"name": "gone"}, 404, "NOT_EXIST", "not found"),
        ("DELETE", "registered-models/delete", {"name": "gone"}, 404, "NOT_EXIST", "not found"),
        (
            "POST",
            "registered-models/rename",
            {"name": "taken", "new_name": "a/b"},
            400,
            "INVALID",
            "Invalid model name 'a/b'",
        ),
        (
            "POST",
            "registered-models/set-tag",
            {"name": "taken", "key": "a", "value": "x" * 100_001},
            400,
            "INVALID",
            "'value' exceeds the maximum length of 100000 characters",
        ),
        (
            "POST",
            "registered-models/alias",
            {"name": "taken", "alias": "a b", "version": "1"},
            400,
            "INVALID",
            "Invalid alias name: 'a b'.",
        ),
        (
            "POST",
            "registered-models/alias",
            {"name": "taken", "alias": "Latest", "version": "1"},
            400,
            "INVALID",
            "reserved",
        ),
        (
            "POST",
            "registered-models/alias",
            {"name": "taken", "alias": "V12", "version": "1"},
            400,
            "INVALID",
            "Version alias name 'V12' is reserved.",
        ),
        (
            "GET",
            "registered-models/alias",
            {"name": "taken", "alias": "none"},
            400,
            "INVALID",
            "Registered model alias none not found.",
        ),
        (
            "GET",
            "model-versions/get",
            {"name": "taken", "version": "x"},
            400,
            "INVALID",
            "Parameter 'version' must be an integer, got 'x'.",
        ),
        (
            "GET",
            "model-versions/get",
            {"name": "taken", "version": "99999999999999999999"},
            404,
            "NOT_EXIST",
            "not found",
        ),
        (
            "POST",
            "model-versions/transition-stage",
            {"name": "taken", "version": "1", "stage": "none-such"},
            400,
            "INVALID",
            "Invalid Model Version stage: none-such.",
        ),
        (
            "POST",
            "model-versions/create",
            {"name": "gone", "source": "s3://a/b"},
            404,
            "NOT_EXIST",
            "Registered Model with name=gone not found",
        ),
    ],
)
def test_what_cannot_be_is_told_as_mlflow_tells_it(
    api: Api, method: str, path: str, body: dict[str, Any], status: int, code: str, message: str
) -> None:
    _ask(api, "POST", "registered-models/create", name="taken")
    told = _told(_ask(api, method, path, **body))
    assert told[0] == status
    assert code in told[1]
    assert message in told[2]


def test_stages_move_and_archive(api: Api) -> None:
    _model(api, "staged")
    for _ in range(3):
        _version(api, "staged")
    move = {"name": "staged", "stage": "production"}
    for version in ("1", "2"):
        answer = _ask(api, "POST", "model-versions/transition-stage", version=version, **move)
        assert answer.json["model_version"]["current_stage"] == "Production"
    answer = _ask(
        api,
        "POST",
        "model-versions/transition-stage",
        version="3",
        archive_existing_versions=True,
        **move,
    )
    assert answer.status == 200
    path = "registered-models/get-latest-versions"
    for method in ("GET", "POST"):
        found = _ask(api, method, path, name="staged").json["model_versions"]
        assert {(each["version"], each["current_stage"]) for each in found} == {
            ("2", "Archived"),
            ("3", "Production"),
        }
        one = _ask(api, method, path, name="staged", stages=["Archived"]).json["model_versions"]
        assert [each["version"] for each in one] == ["2"]


def test_words_tags_and_aliases_change(api: Api) -> None:
    _model(api, "busy")
    _version(api, "busy", description="d", tags=[{"key": "k", "value": "v"}])
    version = {"name": "busy", "version": "1"}
    for method, path, body in (
        ("POST", "registered-models/set-tag", {"name": "busy", "key": "t", "value": "1"}),
        ("POST", "registered-models/set-tag", {"name": "busy", "key": "u"}),
        ("DELETE", "registered-models/delete-tag", {"name": "busy", "key": "t"}),
        ("PATCH", "registered-models/update", {"name": "busy", "description": "new"}),
        ("PATCH", "model-versions/update", {**version, "description": "better"}),
        ("POST", "model-versions/set-tag", {**version, "key": "l", "value": "w"}),
        ("DELETE", "model-versions/delete-tag", {**version, "key": "k"}),
        ("POST", "registered-models/alias", {**version, "alias": "best"}),
        ("POST", "registered-models/rename", {"name": "busy", "new_name": "calm"}),
    ):
        answer = _ask(api, method, path, **body)
        assert answer.status == 200, (path, answer.content)
    found = _ask(api, "GET", "registered-models/get", name="calm").json["registered_model"]
    assert (found["description"], found["tags"]) == ("new", [{"key": "u", "value": ""}])
    assert found["aliases"] == [{"alias": "best", "version": "1"}]
    one = _ask(api, "GET", "registered-models/alias", name="calm", alias="best").json
    assert one["model_version"]["description"] == "better"
    assert one["model_version"]["tags"] == [{"key": "l", "value": "w"}]
    assert one["model_version"]["aliases"] == ["best"]
    assert _ask(api, "DELETE", "registered-models/alias", name="calm", alias="best").status == 200
    assert _ask(api, "GET", "registered-models/alias", name="calm", alias="best").status == 400


def test_a_deleted_version_leaves_its_number(api: Api) -> None:
    _model(api, "gap")
    for _ in range(2):
        _version(api, "gap")
    _ask(api, "POST", "registered-models/alias", name="gap", version="2", alias="best")
    assert _ask(api, "DELETE", "model-versions/delete", name="gap", version="2").status == 200
    assert _version(api, "gap")["version"] == "3"
    found = _ask(api, "GET", "registered-models/get", name="gap").json["registered_model"]
    assert "aliases" not in found
    assert _ask(api, "DELETE", "registered-models/delete", name="gap").status == 200
    _model(api, "gap")
    assert _version(api, "gap")["version"] == "1"


@pytest.mark.parametrize(
    "source",
    [
        "runs:/any/model",
        "mlflow-artifacts:/models///deep/",
        "mlflow-artifacts://host:9000/models/artifact/..../",
        "s3://bucket/model",
        "dbfs:/models/x",
    ],
)
def test_a_source_may_be_anywhere(api: Api, source: str) -> None:
    _ask(api, "POST", "registered-models/create", name="anywhere")
    made = _version(api, "anywhere", source)
    assert made["source"] == source
    asked = {"name": "anywhere", "version": made["version"]}
    uri = _ask(api, "GET", "model-versions/get-download-uri", **asked).json
    assert uri == {"artifact_uri": source}


@pytest.mark.parametrize(
    "source",
    [
        "mlflow-artifacts://host:9000/models/../../../",
        "https://host/api/2.0/mlflow-artifacts/artifacts/../../../",
        "mlflow-artifacts://host:9000/models/..%2f..%2fartifacts",
        "mlflow-artifacts://host:9000/models/artifact%00",
        "dbfs:/x/a%3f/../../..",
        "s3://bucket",
        "/etc/passwd",
        "file:///etc/passwd",
        "outputs/model",
        "file://elsewhere/model",
        "models:/",
        "models://host/name/1",
        "models:/a/b/c",
    ],
)
def test_a_source_does_not_lead_elsewhere(api: Api, source: str) -> None:
    _ask(api, "POST", "registered-models/create", name="anywhere")
    run_id = _run(api)["run_id"]
    answer = _ask(
        api, "POST", "model-versions/create", name="anywhere", source=source, run_id=run_id
    )
    assert _told(answer)[:2] == (400, "INVALID_PARAMETER_VALUE")


def test_a_local_source_is_in_the_folder_of_its_run(api: Api) -> None:
    made = _ask(api, "POST", "experiments/create", name="l", artifact_location="file:///data/x")
    run = _run(api, experiment_id=made.json["experiment_id"])
    folder = run["artifact_uri"].removeprefix("file://")
    _model(api, "local")
    for source in (folder, run["artifact_uri"], f"{folder}/model", f"{folder}/a/.."):
        _version(api, "local", source, run_id=run["run_id"])
    refused: list[tuple[str, dict[str, str]]] = [
        (folder, {}),
        (folder, {"run_id": "none"}),
        (f"{folder}/../other", {"run_id": run["run_id"]}),
        (f"{folder}-more", {"run_id": run["run_id"]}),
    ]
    for source, more in refused:
        body = {"name": "local", "source": source, **more}
        assert _ask(api, "POST", "model-versions/create", **body).status == 400


def test_a_logged_model_becomes_a_version(api: Api) -> None:
    run_id = _run(api)["run_id"]
    logged = _logged(api, name="net", source_run_id=run_id)
    _model(api, "from-logged")
    source = f"models:/{logged['model_id']}"
    made = _version(api, "from-logged", source, model_id=logged["model_id"])
    assert (made["source"], made["run_id"]) == (source, run_id)
    asked = {"name": "from-logged", "version": "1"}
    uri = _ask(api, "GET", "model-versions/get-download-uri", **asked).json["artifact_uri"]
    assert uri == logged["artifact_uri"]
    tags = _ask(api, "GET", f"logged-models/{logged['model_id']}").json["model"]["info"]["tags"]
    told = '[{"name": "from-logged", "version": 1}]'
    assert tags == [{"key": "mlflow.modelVersions", "value": told}]
    unknown = _ask(
        api, "POST", "model-versions/create", name="from-logged", source="models:/m-none"
    )
    assert unknown.status == 404


def test_a_version_is_copied_with_all_that_is_known(api: Api) -> None:
    run_id = _run(api)["run_id"]
    metric = {"key": "loss", "value": 0.25, "timestamp": 1}
    _ask(api, "POST", "runs/log-metric", run_id=run_id, **metric)
    for name in ("first", "second"):
        _model(api, name)
    _version(api, "first", "s3://bucket/first", run_id=run_id)
    _ask(api, "POST", "registered-models/alias", name="first", version="1", alias="best")
    for source in ("models:/first/1", "models:/first@best", "models:/first/latest"):
        made = _version(api, "second", source)
        assert (made["source"], made["run_id"]) == ("models:/first/1", run_id)
        asked = {"name": "second", "version": made["version"]}
        uri = _ask(api, "GET", "model-versions/get-download-uri", **asked).json["artifact_uri"]
        assert uri == "s3://bucket/first"
    shown = api.ask("GET", "/api/models/second/versions/latest").json
    assert shown["lineage"]["metrics"] == {"loss": 0.25}
    for source in ("models:/first/2", "models:/none/1", "models:/first/Production"):
        answer = _ask(api, "POST", "model-versions/create", name="second", source=source)
        assert answer.status == 404


def test_a_job_registers_and_does_not_delete(api: Api, holder: Holder) -> None:
    def ask(method: str, path: str, body: dict[str, Any]) -> Answer:
        return api.ask(method, f"/api/2.0/mlflow/{path}", body, token=holder.token)

    holder.post("runs/log-metric", run_id=holder.id, key="m", value="NaN", timestamp=1)
    source = f"runs:/{holder.id}/model"
    version = {"name": "jobs", "version": "1"}
    for path, body in {
        "registered-models/create": {"name": "jobs"},
        "model-versions/create": {"name": "jobs", "source": source, "run_id": holder.id},
        "registered-models/alias": {**version, "alias": "best"},
        "registered-models/set-tag": {"name": "jobs", "key": "k", "value": "v"},
        "model-versions/set-tag": {**version, "key": "k", "value": "v"},
        "model-versions/transition-stage": {**version, "stage": "Staging"},
    }.items():
        assert holder.post(path, **body).status == 200, path
    for path, body in (
        ("model-versions/delete", version),
        ("registered-models/delete", {"name": "jobs"}),
    ):
        assert _told(ask("DELETE", path, body))[:2] == (403, "PERMISSION_DENIED")
    shown = api.ask("GET", "/api/models/jobs/versions/1").json["lineage"]
    assert (shown["job_id"], shown["job_name"]) == (holder.id, "holder")
    assert shown["metrics"] == {"m": "NaN"}
    assert shown["environment"]
