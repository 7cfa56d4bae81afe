"""A failed build is shown with its reason until a later job succeeds."""

import json
import time
from pathlib import Path
from typing import Any

from tests.runner.harness import wheel
from tests.server.conftest import Api


def test_a_failed_build_is_shown_and_built_again_by_the_next_job(api: Api, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    lines = ["--no-index", f"--find-links {wheels}", "tinypkg"]
    environment = {"kind": "system", "pip": lines}
    failed = api.wait(api.submit("true", environment=environment)["name"])
    assert failed["state"] == "failed"
    (build,) = _builds(api, lines)
    assert (build["target"], build["how"]) == ("local", "failed")
    assert build["failed"] == failed["reason"]
    wheel(wheels)
    assert api.wait(api.submit("true", environment=environment)["name"])["state"] == "succeeded"
    (build,) = _builds(api, lines)
    assert (build["how"], build["failed"]) == ("pip", None)


def test_a_failed_build_expires_and_is_deleted_with_its_environment(
    api: Api, tmp_path: Path
) -> None:
    lines = ["--no-index", f"--find-links {tmp_path}", "nopkg"]
    environment = {"kind": "system", "pip": lines}
    assert api.wait(api.submit("true", environment=environment)["name"])["state"] == "failed"
    (record,) = (
        path
        for path in (api.home / "targets/local/failed_builds").iterdir()
        if "nopkg" in path.read_text()
    )
    content = json.loads(record.read_text())
    record.write_text(json.dumps(content | {"at": time.time() - 100_000}))
    assert _builds(api, lines) == []
    api.ask("DELETE", f"/api/environments/{content['digest']}")
    assert not record.exists()


def _builds(api: Api, lines: list[str]) -> list[dict[str, Any]]:
    (known,) = [
        known for known in api.ask("GET", "/api/environments").json if known["pip"] == lines
    ]
    return known["built"]
