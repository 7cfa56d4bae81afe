"""The versions that a job ran with are known, and another run of it gets the same."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.runner.harness import wheel
from tests.server.conftest import Api

_SHOW = "import tinypkg; print(tinypkg.VERSION); open('outputs/model.pkl', 'w').close()"


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    wheel(tmp_path / "wheels", version="1.0")
    return tmp_path / "wheels"


def _environment(wheels: Path) -> dict[str, Any]:
    lines = ["--no-index", f"--find-links {wheels}", "tinypkg"]
    return {"kind": "system", "pip": lines}


def _run(api: Api, environment: dict[str, Any]) -> dict[str, Any]:
    job = api.submit("python", "-c", _SHOW, environment=environment)
    return _ended(api, job["name"])


def _ended(api: Api, name: str) -> dict[str, Any]:
    job = api.wait(name, timeout=120)
    assert job["state"] == "succeeded", job["reason"]
    return api.job(name)


def _output(api: Api, job: dict[str, Any]) -> bytes:
    return api.ask("GET", f"/api/jobs/{job['name']}/logs", stream="output").content


def test_a_job_and_its_environment_show_the_versions(api: Api, wheels: Path) -> None:
    job = _run(api, _environment(wheels))
    assert job["lock"]["packages"] == ["tinypkg==1.0"]
    assert (job["lock"]["source"], job["lock"]["conda"]) == ("pip", [])
    known = [env["digest"] for env in api.ask("GET", "/api/environments").json]
    shown = [api.ask("GET", f"/api/environments/{digest}").json for digest in known]
    assert [job["lock"]] in [environment["locks"] for environment in shown]
    assert api.job(api.submit("true")["name"])["lock"] is None


def test_a_rerun_on_another_day_and_machine_gets_the_same_versions(api: Api, wheels: Path) -> None:
    first = _run(api, _environment(wheels))
    wheel(wheels, version="2.0")
    shutil.rmtree(api.home / "targets/local/environments")  # as on another machine
    answer = api.ask("POST", f"/api/jobs/{first['name']}/rerun", {})
    again = _ended(api, answer.json["name"])
    assert _output(api, again) == _output(api, first) == b"1.0\n"
    assert again["lock"] == first["lock"]
    other = _environment(wheels) | {"pip": [*_environment(wheels)["pip"], "tinypkg>=1"]}
    assert _run(api, other)["lock"]["packages"] == ["tinypkg==2.0"]


def test_a_model_shows_the_versions_even_without_its_job(api: Api, wheels: Path) -> None:
    job = _run(api, _environment(wheels))
    body = {"job": job["name"], "path": "outputs/model.pkl"}
    assert api.ask("POST", "/api/models/locked/versions", body).status == 201
    assert api.ask("DELETE", f"/api/jobs/{job['name']}").status == 204
    version = api.ask("GET", "/api/models/locked/versions/1").json
    assert version["lock"] == job["lock"]
