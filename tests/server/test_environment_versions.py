"""Named environments have versions: a job records its own, and an update resolves again."""

from pathlib import Path
from typing import Any

import pytest

from tests.runner.harness import wheel
from tests.server.conftest import Api

_SHOW = "import tinypkg; print(tinypkg.VERSION)"


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    wheel(tmp_path / "wheels", version="1.0")
    return tmp_path / "wheels"


def _register(
    api: Api, wheels: Path, requirement: str = "tinypkg", *, name: str = "tiny"
) -> dict[str, Any]:
    lines = ["--no-index", f"--find-links {wheels}", requirement]
    answer = api.ask("PUT", f"/api/environments/{name}", {"kind": "system", "pip": lines})
    assert answer.status == 200, answer.content
    return answer.json


def _run(api: Api, environment: str) -> dict[str, Any]:
    shown = api.ask("GET", f"/api/environments/{environment}").json
    fields = ("kind", "python", "pip", "name", "version", "resolution")
    definition = {name: shown[name] for name in fields}
    job = api.submit("python", "-c", _SHOW, environment=definition)
    assert api.wait(job["name"], timeout=200)["state"] == "succeeded"
    return api.job(job["name"])


def test_an_update_resolves_again_and_leaves_earlier_versions_alone(api: Api, wheels: Path) -> None:
    assert _register(api, wheels)["version"] == 1
    first = _run(api, "tiny")
    wheel(wheels, version="2.0")
    assert _run(api, "tiny:1")["lock"] == first["lock"]
    updated = api.ask("POST", "/api/environments/tiny/update")
    assert (updated.status, updated.json["version"], updated.json["resolution"]) == (201, 2, 1)
    second = _run(api, "tiny@latest")
    assert second["lock"]["packages"] == ["tinypkg==2.0"]
    assert second["environment"]["version"] == 2
    again = api.ask("POST", f"/api/jobs/{first['name']}/rerun", {}).json
    api.wait(again["name"])
    assert api.job(again["name"])["lock"] == first["lock"]
    versions = api.ask("GET", "/api/environments/tiny/versions").json
    packages = [version["locks"][0]["packages"] for version in versions]
    assert packages == [["tinypkg==2.0"], ["tinypkg==1.0"]]
    assert _register(api, wheels)["version"] == 2
    assert _register(api, wheels, "tinypkg>=1")["version"] == 3


def test_one_version_is_deleted_or_the_whole_name(api: Api, wheels: Path) -> None:
    _register(api, wheels, name="brief")
    digest = _register(api, wheels, "tinypkg>=1", name="brief")["digest"]
    _register(api, wheels, name="brief")
    assert api.ask("DELETE", "/api/environments/brief:2").json == {"removed": []}
    assert api.ask("GET", f"/api/environments/{digest}").status == 404
    versions = api.ask("GET", "/api/environments/brief/versions").json
    assert [version["version"] for version in versions] == [3, 1]
    assert api.ask("GET", "/api/environments/brief:2").status == 404
    assert api.ask("DELETE", "/api/environments/brief").status == 200
    names = [shown["name"] for shown in api.ask("GET", "/api/environments").json]
    assert "brief" not in names


def test_an_image_without_packages_cannot_be_updated(api: Api) -> None:
    api.ask("PUT", "/api/environments/slim", {"kind": "image", "image": "python:3.12-slim"})
    answer = api.ask("POST", "/api/environments/slim/update")
    assert (answer.status, answer.json["error"]) == (422, "Invalid")
    assert "nothing to resolve" in answer.json["message"]
    for path in ("none/update", "none:1/update"):
        assert api.ask("POST", f"/api/environments/{path}").status == 404
    assert api.ask("GET", "/api/environments/none/versions").status == 404
