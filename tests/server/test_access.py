"""Authentication, /openapi.json, validation of requests, and permissions of files."""

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import Api

METHODS = {"get", "post", "put", "delete", "patch"}


def operations(api: Api) -> list[tuple[str, str, dict[str, Any]]]:
    described = api.ask("GET", "/openapi.json", token="").json
    return [
        (method.upper(), path, operation)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
        if method in METHODS
    ]


def test_only_health_and_the_description_are_open(api: Api) -> None:
    assert api.ask("GET", "/health", token="").json["status"] == "ok"
    for method, path, _ in operations(api):
        if path == "/health":
            continue
        concrete_path = path.replace("{", "").replace("}", "")
        for token in ("", "wrong", "ünicode".encode().decode("latin-1")):
            answer = api.ask(method, concrete_path, {} if method != "GET" else None, token=token)
            assert answer.status == 401, (method, path)
            assert answer.json["error"] == "Unauthorized"


def test_a_runners_key_opens_its_own_attempt_and_no_other(api: Api) -> None:
    api.submit("sleep", "60", name="mine")
    api.wait("mine", "running")
    (folder,) = (api.home / "targets/local/launches").iterdir()
    key = api.runner_key(folder.name)
    events_path = f"/api/attempts/{folder.name}/events"
    assert api.ask("POST", events_path, {"events": []}, proven_by=key).status == 200
    assert api.ask("POST", events_path, {"events": [], "now": 1}, proven_by=key).status == 200
    for wrong in (False, "1", -1, 1e12, float("nan")):
        body: dict[str, Any] = {"events": [], "now": wrong}
        assert api.ask("POST", events_path, body, proven_by=key).status == 422
    assert (
        api.ask("POST", "/api/attempts/other/events", {"events": []}, proven_by=key).status == 401
    )
    api.ask("POST", "/api/jobs/mine/cancel")
    api.wait("mine")
    over = api.ask("POST", events_path, {"events": []}, proven_by=key)
    assert (over.status, over.json["error"]) == (410, "Gone")


def test_everything_is_described_and_typed(api: Api) -> None:
    for method, path, operation in operations(api):
        good = {code: answer for code, answer in operation["responses"].items() if code < "300"}
        for code, answer in good.items():
            content = answer.get("content", {})
            assert code == "204" or content, f"{method} {path} answers {code} with nothing"
            assert all(media_type.get("schema") for media_type in content.values()), (
                f"{method} {path}"
            )
        if path != "/health":
            assert operation["security"], f"{method} {path} names no security"
            assert "401" in operation["responses"], f"{method} {path}"


def test_everything_on_disk_is_private(api: Api) -> None:
    api.wait(api.submit("sh", "-c", "echo x > outputs/x")["name"])
    api.cleared()
    assert (api.home / "blobs").exists()
    paths = (path for path in api.home.rglob("*") if not path.is_symlink())  # links have no mode
    for path in (api.home, *paths):
        mode = stat.S_IMODE(path.lstat().st_mode)
        assert not mode & 0o077, f"{path} is {mode:o}"


def test_no_token_is_in_a_process_list_or_an_answer(api: Api) -> None:
    api.submit("sleep", "60", name="quiet")
    api.wait("quiet", "running")
    secrets = {api.token, (api.home / "secret").read_text()}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_text()
            except OSError:
                continue
            assert not any(secret in line for secret in secrets)
            assert "rtj." not in line
    answers = json.dumps([api.job("quiet"), api.ask("GET", "/api/targets").json])
    assert "rtj." not in answers
    assert not any(secret in answers for secret in secrets)
    plan = api.ask("POST", "/api/jobs/plan", {"command": ["true"]})
    assert plan.status == 200
    assert b"rtj." not in plan.content
    api.ask("POST", "/api/jobs/quiet/cancel")


@pytest.mark.parametrize(
    ("body", "field", "sentence"),
    [
        ({}, "command", "is required"),
        ({"command": []}, "command", "at least 1"),
        ({"command": ["true"], "cpus": -1}, "cpus", "greater than 0"),
        ({"command": ["true"], "cpus": 10000}, "cpus", "requests 10000 .* has"),
        ({"command": ["true"], "memory": "3x"}, "memory", "'3x' is not an amount of memory"),
        ({"command": ["true"], "memory": "900t"}, "memory", "requests 900.0 TiB"),
        ({"command": ["true"], "gpus": 64}, "gpus", "requests 64"),
        ({"command": ["true"], "nodes": 2}, "nodes", "requests 2; target 'local' has 1"),
        ({"command": ["true"], "timeout": "soon"}, "timeout", "is not a duration"),
        ({"command": ["true"], "timeout": "99999999999999h"}, "timeout", "is not a duration"),
        (
            {"command": ["true"], "environment": {"kind": "system", "pip": ["a\nb"]}},
            "environment.pip",
            "is not a single line",
        ),
        ({"command": ["true"], "name": "a/b"}, "name", "is not a valid name"),
        ({"command": ["true"], "name": "x" * 300}, "name", "is not a valid name"),
        ({"command": ["true"], "target": "moon"}, "target", "no target named 'moon'.* local"),
        (
            {"command": ["true"], "variables": {"A=B": "c"}},
            "variables",
            "not a valid name for an environment variable",
        ),
        ({"command": ["a\0b"]}, "command", "NUL"),
        ({"command": ["\ud800"]}, "command", "UTF-8"),
        ({"command": ["x" * 140_000]}, "command", "at most 131,000 are allowed"),
        ({"command": ["true"], "wishes": 1}, "wishes", "unknown field"),
        ({"command": ["true"], "snapshot": "a" * 64}, "snapshot", "upload it first"),
        ({"command": ["true"], "retries": 101}, "retries", "less than or equal to 100"),
        (
            {"command": ["true"], "environment": {"kind": "user", "python": "/nope"}},
            "python",
            "/nope does not exist",
        ),
    ],
)
def test_a_bad_job_is_refused_with_one_sentence_naming_the_field(
    api: Api, body: dict[str, Any], field: str, sentence: str
) -> None:
    before = len(api.ask("GET", "/api/jobs", limit=1000).json)
    answer = api.ask("POST", "/api/jobs", body)
    assert (answer.status, answer.json["error"]) == (422, "Invalid")
    assert answer.json["field"].startswith(field)
    assert field in answer.json["message"]
    assert "\n" not in answer.json["message"]
    assert re.search(sentence, answer.json["message"]), answer.json["message"]
    assert len(api.ask("GET", "/api/jobs", limit=1000).json) == before


def test_too_much_for_any_process_is_refused_at_submit(api: Api) -> None:
    many = {f"V{number}": "x" * 1000 for number in range(10_000)}
    answer = api.ask("POST", "/api/jobs", {"command": ["true"], "variables": many})
    assert (answer.status, answer.json["field"]) == (422, "variables")


def test_a_body_that_is_not_json_is_refused(api: Api) -> None:
    for body in (b"", b"{", b"[]", b"\xff"):
        answer = api.ask("POST", "/api/jobs", body)
        assert answer.status == 422
        assert answer.json["message"]


@pytest.mark.parametrize("path", ["/api/jobs/none", "/api/targets/none", "/api/environments/none"])
def test_a_missing_resource_is_named(api: Api, path: str) -> None:
    answer = api.ask("GET", path)
    assert (answer.status, answer.json["error"]) == (404, "NotFound")
    assert "none" in answer.json["message"]


def test_a_wrong_method_is_answered_with_the_allowed_ones(api: Api) -> None:
    answer = api.ask("PUT", "/api/jobs/any")
    assert (answer.status, answer.headers["allow"]) == (405, "DELETE, GET, PATCH")


def test_links_lead_to_existing_operations(api: Api) -> None:
    paths = api.ask("GET", "/openapi.json").json["paths"]
    operations = [operation for methods in paths.values() for operation in methods.values()]
    names = [operation["operationId"] for operation in operations]
    answers = [answer for operation in operations for answer in operation["responses"].values()]
    links = [link for answer in answers for link in answer.get("links", {}).values()]
    assert len(set(names)) == len(names)
    assert links
    assert {link["operationId"] for link in links} <= set(names)


@pytest.mark.parametrize("field", ["cpus", "gpus", "nodes", "retries", "priority", "grace_seconds"])
def test_what_only_looks_like_a_number_is_refused(api: Api, field: str) -> None:
    for value in (True, "1"):
        answer = api.ask("POST", "/api/jobs/plan", {"command": ["true"], field: value})
        assert (answer.status, answer.json["field"]) == (422, field)


def test_a_log_can_be_read_from_an_offset_beyond_any_disk(api: Api) -> None:
    name = api.submit("true")["name"]
    api.wait(name)
    answer = api.ask("GET", f"/api/jobs/{name}/logs", offset=2**60)
    assert (answer.status, answer.content) == (200, b"")
