"""/api/models: files of jobs become versions, which outlive their jobs."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.server.conftest import Answer, Api

SCRIPT = """
import os
os.makedirs("outputs/net/data")
for path, text in (("net/MLmodel", "m"), ("net/data/w", "weights"), ("a.pkl", "pickle")):
    open(f"outputs/{path}", "w").write(text)
"""


def _job(api: Api, name: str, **fields: Any) -> dict[str, Any]:
    api.submit("python", "-c", SCRIPT, name=name, **fields)
    job = api.wait(name)
    assert job["state"] == "succeeded", job["reason"]
    return job


def _register(api: Api, name: str, job: str, path: str, **more: Any) -> Answer:
    return api.ask("POST", f"/api/models/{name}/versions", {"job": job, "path": path, **more})


def _files(api: Api, name: str, version: str = "latest") -> dict[str, bytes]:
    url_path = f"/api/models/{name}/versions/{version}/files"
    listed = api.ask("GET", url_path).json
    contents = {
        file["path"]: api.ask("GET", f"{url_path}/{file['path']}").content for file in listed
    }
    assert {path: len(content) for path, content in contents.items()} == {
        file["path"]: file["size"] for file in listed
    }
    return contents


def test_a_file_becomes_a_version_with_its_lineage(api: Api) -> None:
    job = _job(api, "file")
    metric = {"run_id": job["id"], "key": "loss", "value": 0.5, "timestamp": 1}
    assert api.ask("POST", "/api/2.0/mlflow/runs/log-metric", metric).status == 200
    answer = _register(api, "file", "file", "outputs/a.pkl", description="d", tags={"k": "v"})
    assert answer.status == 201, answer.content
    version = answer.json
    assert (version["version"], version["description"], version["tags"]) == (1, "d", {"k": "v"})
    assert (version["run_id"], version["source"]) == (job["id"], f"runs:/{job['id']}/outputs/a.pkl")
    lineage = version["lineage"]
    assert (lineage["job_id"], lineage["job_name"]) == (job["id"], "file")
    assert lineage["snapshot"] == job["snapshot"]
    assert len(lineage["environment"]) == 32
    assert lineage["metrics"] == {"loss": 0.5}
    assert _files(api, "file") == {"a.pkl": b"pickle"}


def test_a_folder_becomes_a_version_without_its_name(api: Api) -> None:
    _job(api, "folder")
    for number, path in enumerate(("outputs/net", "./outputs//net/", "outputs"), 1):
        version = _register(api, "folder", "folder", path).json
        assert version["version"] == number
    files = {"MLmodel": b"m", "data/w": b"weights"}
    assert _files(api, "folder", "1") == _files(api, "folder", "2") == files
    assert set(_files(api, "folder", "3")) == {"net/MLmodel", "net/data/w", "a.pkl"}


def test_logged_artifacts_become_a_version(api: Api) -> None:
    job = _job(api, "run")
    run = api.ask("GET", "/api/2.0/mlflow/runs/get", run_id=job["id"]).json["run"]["info"]
    body = {"experiment_id": "0", "name": "net", "source_run_id": job["id"]}
    logged = api.ask("POST", "/api/2.0/mlflow/logged-models", body).json["model"]["info"]
    for location, name in ((run["artifact_uri"], "deep/x"), (logged["artifact_uri"], "MLmodel")):
        path = f"{location.removeprefix('mlflow-artifacts:/')}/{name}"
        answer = api.ask("PUT", f"/api/2.0/mlflow-artifacts/artifacts/{path}", name.encode())
        assert answer.status == 200
    assert _register(api, "run", "run", "deep").json["model_id"] is None
    assert _files(api, "run") == {"x": b"deep/x"}
    version = _register(api, "run", job["id"], "net").json
    assert (version["model_id"], version["source"]) == (
        logged["model_id"],
        f"models:/{logged['model_id']}",
    )
    assert _files(api, "run") == {"MLmodel": b"MLmodel"}


def test_a_version_stays_when_its_job_goes(api: Api) -> None:
    _job(api, "gone")
    assert _register(api, "stays", "gone", "outputs/net").status == 201
    before = api.ask("GET", "/api/models/stays/versions/1").json
    assert api.ask("DELETE", "/api/jobs/gone").status == 204
    assert api.ask("POST", "/api/server/prune?keep_seconds=0").status == 200
    assert api.ask("GET", "/api/models/stays/versions/1").json == before
    assert _files(api, "stays") == {"MLmodel": b"m", "data/w": b"weights"}
    url_path = "/api/2.0/mlflow/model-versions/get-download-uri"
    uri = api.ask("GET", url_path, name="stays", version="1").json["artifact_uri"]
    path = uri.removeprefix("mlflow-artifacts:/")
    answer = api.ask("GET", f"/api/2.0/mlflow-artifacts/artifacts/{path}/data/w")
    assert answer.content == b"weights"


def test_missing_files_and_jobs_are_reported(api: Api) -> None:
    _job(api, "little")
    answer = _register(api, "little", "little", "outputs/x.pkl")
    paths = "outputs/a.pkl, outputs/net/MLmodel, outputs/net/data/w"
    assert (answer.status, answer.json["message"]) == (
        404,
        f"job 'little' has no 'outputs/x.pkl'; it has {paths}",
    )
    for path in ("", ".", "/etc/passwd", "outputs/../x"):
        answer = _register(api, "little", "little", path)
        assert (answer.status, answer.json["field"]) == (422, "path")
    assert _register(api, "little", "none", "outputs").status == 404
    assert _register(api, "a:b", "little", "outputs").status == 422
    assert api.ask("GET", "/api/models/little").status == 404
    assert _register(api, "little", "little", "outputs/a.pkl").status == 201
    answer = api.ask("GET", "/api/models/little/versions/1/files/x")
    assert (answer.status, answer.json["message"]) == (
        404,
        "version 1 of 'little' has no file 'x'; it has a.pkl",
    )


def test_registrations_at_the_same_moment_get_numbers_of_their_own(api: Api) -> None:
    _job(api, "raced")

    def register(_: int) -> Answer:
        return _register(api, "raced", "raced", "outputs/net")

    with ThreadPoolExecutor(6) as pool:
        versions = [answer.json["version"] for answer in pool.map(register, range(6))]
    assert sorted(versions) == [1, 2, 3, 4, 5, 6]
    for version in versions:
        assert _files(api, "raced", str(version)) == {"MLmodel": b"m", "data/w": b"weights"}


def test_models_are_listed_shown_and_deleted(api: Api) -> None:
    _job(api, "listed")
    for path in ("outputs/a.pkl", "outputs/net"):
        _register(api, "listed", "listed", path)
    named = api.ask("PUT", "/api/models/listed/aliases/best", {"version": 1})
    assert (named.status, named.json["aliases"]) == (200, ["best"])
    (shown,) = [model for model in api.ask("GET", "/api/models").json if model["name"] == "listed"]
    assert (shown["latest"]["version"], shown["aliases"]) == (2, {"best": 1})
    assert shown["versions"] is None
    details = api.ask("GET", "/api/models/listed").json
    assert [version["version"] for version in details["versions"]] == [2, 1]
    assert details["versions"][0] == shown["latest"]
    assert _files(api, "listed", "best") == {"a.pkl": b"pickle"}
    for wrong in ("v1", "3", "latest"):
        assert api.ask("PUT", f"/api/models/listed/aliases/{wrong}", {"version": 1}).status == 422
    assert api.ask("PUT", "/api/models/listed/aliases/best", {"version": 7}).status == 404
    assert api.ask("DELETE", "/api/models/listed/aliases/best").status == 204
    assert api.ask("DELETE", "/api/models/listed/versions/1").status == 204
    versions = api.ask("GET", "/api/models/listed").json["versions"]
    assert [version["version"] for version in versions] == [2]
    assert api.ask("DELETE", "/api/models/listed").status == 204
    assert api.ask("DELETE", "/api/models/listed").status == 404


def test_the_registry_needs_the_token_of_a_user(api: Api) -> None:
    for token, status in (("", 401), ("wrong", 401), ("rtj.x.y", 403)):
        assert api.ask("GET", "/api/models", token=token).status == status
    assert "/api/models/{name}/versions" in api.ask("GET", "/openapi.json").json["paths"]
