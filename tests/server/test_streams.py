"""What a follower gets, and in which order."""

from pathlib import Path
from typing import Any

from tests.server.conftest import Api


def test_who_hears_of_the_start_has_all_that_was_said_before(api: Api, tmp_path: Path) -> None:
    """The environment's whole build log comes before the first byte of the script."""
    for number in range(3):  # each another digest, so each is built
        environment: dict[str, Any] = {
            "kind": "system",
            "pip": ["--no-index", f"--find-links {tmp_path / str(number)}"],
        }
        (tmp_path / str(number)).mkdir()
        name = api.submit("true", environment=environment)["name"]
        said = api.ask("GET", f"/api/jobs/{name}/logs", stream="prepare", follow="true").content
        assert b": ready after" in said.splitlines()[-1]
        assert api.wait(name)["state"] == "succeeded"
