"""Log streams and output files: their order, their names, and what is never uploaded."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.server.conftest import Api


def test_the_build_log_is_complete_when_the_script_starts(api: Api, tmp_path: Path) -> None:
    """The whole build log of the environment precedes the first byte of the script."""
    for number in range(3):  # different digests, so that every environment is built
        environment: dict[str, Any] = {
            "kind": "system",
            "pip": ["--no-index", f"--find-links {tmp_path / str(number)}"],
        }
        (tmp_path / str(number)).mkdir()
        name = api.submit("true", environment=environment)["name"]
        build_log = api.ask(
            "GET", f"/api/jobs/{name}/logs", stream="prepare", follow="true"
        ).content
        assert b": ready after" in build_log.splitlines()[-1]
        assert api.wait(name)["state"] == "succeeded"


def test_a_missing_stream_is_reported_with_the_existing_ones(api: Api) -> None:
    name = api.submit("true")["name"]
    api.wait(name)
    answer = api.ask("GET", f"/api/jobs/{name}/logs", stream="rank-7")
    assert answer.status == 404
    assert answer.json["message"].endswith("it has output, prepare")
    assert api.ask("GET", f"/api/jobs/{name}/logs", stream="x" * 3000).status == 422
    assert api.ask("GET", f"/api/jobs/{name}/logs", stream="../../token").status == 404


def test_an_output_with_any_name_can_be_read(api: Api) -> None:
    code = "open('outputs/a\\nb', 'w').write('1'); open('outputs/\\x1b?#%', 'w').write('2')"
    name = api.submit("python", "-c", code)["name"]
    api.wait(name)
    paths = [output["path"] for output in api.ask("GET", f"/api/jobs/{name}/outputs").json]
    assert sorted(paths) == ["outputs/\x1b?#%", "outputs/a\nb"]
    contents = [api.ask("GET", f"/api/jobs/{name}/outputs/{quote(path)}").content for path in paths]
    assert sorted(contents) == [b"1", b"2"]


def test_a_linked_folder_is_never_uploaded(api: Api, tmp_path: Path) -> None:
    (tmp_path / "private").write_text("not yours")
    code = f"import os; os.rmdir('outputs'); os.symlink({str(tmp_path)!r}, 'outputs')"
    name = api.submit("python", "-c", code)["name"]
    assert api.wait(name)["state"] == "succeeded"
    assert api.ask("GET", f"/api/jobs/{name}/outputs").json == []
    prepare_log = api.ask("GET", f"/api/jobs/{name}/logs", stream="prepare").content
    assert b"outputs is not kept: the script has made it a link" in prepare_log


def test_a_name_that_looks_like_an_id_is_refused(api: Api) -> None:
    victim = api.submit("true")
    answer = api.ask("POST", "/api/jobs", {"command": ["true"], "name": victim["id"]})
    assert (answer.status, answer.json["field"]) == (422, "name")
