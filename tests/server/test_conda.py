"""What happens at submit to a conda environment whose channels cannot be reached."""

from pathlib import Path
from typing import Any

import pytest

from tests.runner.harness import wheel
from tests.server.conftest import Api

pytest.importorskip("rattler")
_CHANNEL = "http://127.0.0.1:9/channel"


def _environment(*conda: str, **more: Any) -> dict[str, Any]:
    return {"kind": "system", "channels": [_CHANNEL], "conda": conda, **more}


def test_a_package_that_pypi_lacks_is_refused_at_submit(api: Api) -> None:
    body = {"command": ["true"], "environment": _environment("numpy", "ffmpeg>=6", "x264")}
    for path in ("/api/jobs", "/api/jobs/plan"):
        answer = api.ask("POST", path, body)
        assert (answer.status, answer.json["field"]) == (422, "environment")
        message = answer.json["message"]
        assert f"{_CHANNEL} cannot be reached: " in message
        assert "PyPI has no equivalent of ffmpeg>=6, x264; " in message
        assert "--conda-from-pypi" in message
    batch = api.ask("POST", "/api/jobs/batch", {"jobs": [body]})
    assert (batch.status, batch.json["field"]) == (422, "jobs.0.environment")
    body["environment"] = _environment("numpy", "ffmpeg>=6", "x264", conda_from_pypi=True)
    (notice,) = api.ask("POST", "/api/jobs/plan", body).json["notices"]
    assert "numpy; without ffmpeg>=6, x264" in notice


def test_a_job_says_that_its_packages_come_from_pypi(api: Api, tmp_path: Path) -> None:
    wheel(tmp_path / "wheels")
    pip = ["--no-index", f"--find-links {tmp_path / 'wheels'}"]
    environment = _environment("tinypkg", pip=pip)
    job = api.submit(
        "python", "-c", "import tinypkg", environment=environment, notices=["of the request"]
    )
    (notice,) = job["notices"]
    assert notice.startswith("built from PyPI instead of conda channels: tinypkg (the conda chan")
    assert api.wait(job["name"])["state"] == "succeeded"
    shown = api.job(job["name"])
    assert (shown["notices"], shown["lock"]["source"]) == ([notice], "pypi")
    (built,) = [
        known["built"]
        for known in api.ask("GET", "/api/environments").json
        if known["conda"] == ["tinypkg"]
    ]
    assert [build["how"] for build in built] == ["built from PyPI"]
