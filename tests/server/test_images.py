"""Image environments: which blobs the server requires, keeps and serves."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.conftest import Api, serving
from tests.server.test_jobs import send
from tests.testbeds.engines import IMAGE, Engine

FILES = {"Dockerfile": f"FROM {IMAGE}\nRUN sleep 300\n".encode(), "note.txt": b"of a context"}


@pytest.fixture(scope="module")
def api_with_engine(
    worker_docker: Engine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Api]:
    with serving(tmp_path_factory.mktemp("home"), DOCKER_HOST=worker_docker.url) as api:
        yield api
        api.cleared()


def built(context: str) -> dict[str, str]:
    return {"kind": "image", "dockerfile": "Dockerfile", "context": context}


def test_a_context_that_was_never_sent_is_refused(api: Api) -> None:
    answer = api.ask("PUT", "/api/environments/mine", built("a" * 64))
    assert (answer.status, answer.json["field"]) == (422, "context")
    assert "upload it first" in answer.json["message"]


def test_a_context_is_kept_as_long_as_an_environment_needs_it(api: Api) -> None:
    context = send(api, FILES)
    shown = api.ask("PUT", "/api/environments/mine", built(context)).json
    assert (shown["kind"], shown["dockerfile"], shown["context"]) == (
        "image", "Dockerfile", context,
    )  # fmt: skip
    api.ask("POST", "/api/server/prune", keep_seconds=0)
    query = {"digests": [context]}
    assert api.ask("POST", "/api/blobs/missing", query).json == {"missing": []}
    api.ask("DELETE", "/api/environments/mine")
    api.ask("POST", "/api/server/prune", keep_seconds=0)
    assert api.ask("POST", "/api/blobs/missing", query).json == {"missing": [context]}


def test_an_attempt_may_fetch_its_context_and_nothing_else(api_with_engine: Api) -> None:
    api = api_with_engine
    context, other = send(api, FILES), send(api, {"secret": b"of somebody else"})
    api.submit("true", name="mine", environment=built(context))
    api.wait("mine", "preparing")
    (folder,) = (api.home / "targets/local/launches").iterdir()
    key = api.runner_key(folder.name)
    blobs_path = f"/api/attempts/{folder.name}/blobs"
    assert api.ask("GET", f"{blobs_path}/{context}", proven_by=key).status == 200
    assert api.ask("GET", f"{blobs_path}/{other}", proven_by=key).status == 403
    api.ask("DELETE", f"/api/environments/{digest(api)}")
    api.ask("POST", "/api/server/prune", keep_seconds=0)
    query = {"digests": [context]}
    assert api.ask("POST", "/api/blobs/missing", query).json == {"missing": []}, "its job needs it"
    api.ask("POST", "/api/jobs/mine/cancel")
    api.wait("mine")


def digest(api: Api) -> str:
    deadline = time.monotonic() + 200
    while not (environments := api.ask("GET", "/api/environments").json):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return str(environments[0]["digest"])


def test_the_inventory_of_a_target_names_the_engine(api_with_engine: Api) -> None:
    inventory = api_with_engine.ask("POST", "/api/targets/local/check").json["inventory"]
    assert inventory["details"]["engine"].startswith("docker ")


def test_without_an_engine_an_image_is_refused_at_submit(tmp_path: Path) -> None:
    with serving(tmp_path / "home", PATH="/nowhere") as api:
        inventory = api.ask("POST", "/api/targets/local/check").json["inventory"]
        assert inventory["details"]["engine"] == "none"
        body = {"command": ["true"], "environment": {"kind": "image", "image": IMAGE}}
        answer = api.ask("POST", "/api/jobs", body)
    assert (answer.status, answer.json["field"]) == (422, "environment")
    assert "needs a container engine" in answer.json["message"]
    assert "install Docker or Podman" in answer.json["message"]
