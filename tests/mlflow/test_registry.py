"""MLflow's API over plain HTTP: the model registry, sources of versions, and rights of a job."""

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


def _error(answer: Answer) -> tuple[int, str, str]:
    return (answer.status, answer.json["error_code"], answer.json["message"])


def _model(api: Api, name: str, **body: Any) -> Any:
    answer = _ask(api, "POST", "registered-models/create", name=name, **body)
    assert answer.status == 200, answer.content
    return answer.json["registered_model"]


def _version(api: Api, name: str, source: str = "s3://bucket/model", **body: Any) -> Any:
    answer = _ask(api, "POST", "model-versions/create", name=name, source=source, **body)
    assert answer.status == 200, answer.content
    return answer.json["model_version"]


def _run(api: Api, **fields: Any) -> Any:
    answer = _ask(api, "POST", "runs/create", start_time=5, **fields)
    return answer.json["run"]["info"]


def _logged(api: Api, **fields: Any) -> Any:
    answer = _ask(api, "POST", "logged-models", experiment_id="0", **fields)
    return answer.json["model"]["info"]


def test_a_new_model_has_only_the_known_fields(api: Api) -> None:
    model = _model(api, "plain")
    assert set(model) == {"name", "creation_timestamp", "last_updated_timestamp"}
    tags = [{"key": "a", "value": "1"}]
    model = _model(api, "tagged", description="some text", tags=tags)
    assert (model["description"], model["tags"]) == ("some text", tags)
    assert _ask(api, "GET", "registered-models/get", name="tagged").json == {
        "registered_model": model
    }


def test_a_new_version_has_only_the_known_fields(api: Api) -> None:
    _model(api, "one")
    version = _version(api, "one", run_id="any")
    times = {"creation_timestamp", "last_updated_timestamp"}
    assert {name: value for name, value in version.items() if name not in times} == {
        "name": "one",
        "version": "1",
        "description": "",
        "current_stage": "None",
        "source": "s3://bucket/model",
        "run_id": "any",
        "run_link": "",
        "status": "READY",
    }
    answer = _ask(api, "GET", "model-versions/get", name="one", version="1").json
    assert answer == {"model_version": version}
    model = _ask(api, "GET", "registered-models/get", name="one").json["registered_model"]
    assert model["latest_versions"] == [version]
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
            "does not store prompts",
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
def test_errors_are_those_of_mlflow(
    api: Api, method: str, path: str, body: dict[str, Any], status: int, code: str, message: str
) -> None:
    _ask(api, "POST", "registered-models/create", name="taken")
    error = _error(_ask(api, method, path, **body))
    assert error[0] == status
    assert code in error[1]
    assert message in error[2]


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
        latest = _ask(api, method, path, name="staged").json["model_versions"]
        assert {
            (version_info["version"], version_info["current_stage"]) for version_info in latest
        } == {
            ("2", "Archived"),
            ("3", "Production"),
        }
        one = _ask(api, method, path, name="staged", stages=["Archived"]).json["model_versions"]
        assert [version_info["version"] for version_info in one] == ["2"]


def test_descriptions_tags_and_aliases_change(api: Api) -> None:
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
    model = _ask(api, "GET", "registered-models/get", name="calm").json["registered_model"]
    assert (model["description"], model["tags"]) == ("new", [{"key": "u", "value": ""}])
    assert model["aliases"] == [{"alias": "best", "version": "1"}]
    one = _ask(api, "GET", "registered-models/alias", name="calm", alias="best").json
    assert one["model_version"]["description"] == "better"
    assert one["model_version"]["tags"] == [{"key": "l", "value": "w"}]
    assert one["model_version"]["aliases"] == ["best"]
    assert _ask(api, "DELETE", "registered-models/alias", name="calm", alias="best").status == 200
    assert _ask(api, "GET", "registered-models/alias", name="calm", alias="best").status == 400


def test_the_number_of_a_deleted_version_is_not_reused(api: Api) -> None:
    _model(api, "gap")
    for _ in range(2):
        _version(api, "gap")
    _ask(api, "POST", "registered-models/alias", name="gap", version="2", alias="best")
    assert _ask(api, "DELETE", "model-versions/delete", name="gap", version="2").status == 200
    assert _version(api, "gap")["version"] == "3"
    model = _ask(api, "GET", "registered-models/get", name="gap").json["registered_model"]
    assert "aliases" not in model
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
    version = _version(api, "anywhere", source)
    assert version["source"] == source
    query = {"name": "anywhere", "version": version["version"]}
    uri = _ask(api, "GET", "model-versions/get-download-uri", **query).json
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
    assert _error(answer)[:2] == (400, "INVALID_PARAMETER_VALUE")


def test_a_local_source_is_in_the_folder_of_its_run(api: Api) -> None:
    experiment = _ask(
        api, "POST", "experiments/create", name="l", artifact_location="file:///data/x"
    )
    run = _run(api, experiment_id=experiment.json["experiment_id"])
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
    version = _version(api, "from-logged", source, model_id=logged["model_id"])
    assert (version["source"], version["run_id"]) == (source, run_id)
    query = {"name": "from-logged", "version": "1"}
    uri = _ask(api, "GET", "model-versions/get-download-uri", **query).json["artifact_uri"]
    assert uri == logged["artifact_uri"]
    tags = _ask(api, "GET", f"logged-models/{logged['model_id']}").json["model"]["info"]["tags"]
    versions_tag = '[{"name": "from-logged", "version": 1}]'
    assert tags == [{"key": "mlflow.modelVersions", "value": versions_tag}]
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
        version = _version(api, "second", source)
        assert (version["source"], version["run_id"]) == ("models:/first/1", run_id)
        query = {"name": "second", "version": version["version"]}
        uri = _ask(api, "GET", "model-versions/get-download-uri", **query).json["artifact_uri"]
        assert uri == "s3://bucket/first"
    shown = api.ask("GET", "/api/models/second/versions/latest").json
    assert shown["lineage"]["metrics"] == {"loss": 0.25}
    for source in ("models:/first/2", "models:/none/1", "models:/first/Production"):
        answer = _ask(api, "POST", "model-versions/create", name="second", source=source)
        assert answer.status == 404


def test_a_job_deletes_only_what_it_registered_itself(api: Api, holder: Holder) -> None:
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
    api.ask("POST", "/api/2.0/mlflow/registered-models/create", {"name": "users"})
    foreign = {"name": "users", "source": source}
    api.ask("POST", "/api/2.0/mlflow/model-versions/create", foreign)
    for path, body in (
        ("model-versions/delete", {"name": "users", "version": "1"}),
        ("registered-models/delete", {"name": "users"}),
    ):
        assert _error(ask("DELETE", path, body))[:2] == (403, "PERMISSION_DENIED")
    shown = api.ask("GET", "/api/models/jobs/versions/1").json["lineage"]
    assert (shown["job_id"], shown["job_name"]) == (holder.id, "holder")
    assert shown["metrics"] == {"m": "NaN"}
    assert shown["environment"]
    for path, body in (
        ("model-versions/delete", version),
        ("registered-models/delete", {"name": "jobs"}),
    ):
        assert ask("DELETE", path, body).status == 200, path
