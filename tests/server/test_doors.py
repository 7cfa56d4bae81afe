"""Who gets in, what the API says of itself, and what is on disk."""

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from retarget.core.tokens import attempt_token
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
        where = path.replace("{", "").replace("}", "")
        for token in ("", "wrong", "ünicode".encode().decode("latin-1")):
            answer = api.ask(method, where, {} if method != "GET" else None, token=token)
            assert answer.status == 401, (method, path)
            assert answer.json["error"] == "Unauthorized"


def test_a_jobs_token_opens_its_own_door_and_no_other(api: Api) -> None:
    secret = (api.home / "secret").read_text().encode()
    api.submit("sleep", "60", name="mine")
    api.wait("mine", "running")
    (folder,) = (api.home / "targets/local/launches").iterdir()
    token = attempt_token(secret, folder.name)
    own = f"/api/attempts/{folder.name}/events"
    assert api.ask("POST", own, {"events": []}, token=token).status == 200
    assert api.ask("POST", own, {"events": [], "now": 1}, token=token).status == 200
    for wrong in (False, "1", -1, 1e12, float("nan")):
        assert api.ask("POST", own, {"events": [], "now": wrong}, token=token).status == 422
    assert api.ask("GET", "/api/jobs", token=token).status == 403
    assert api.ask("POST", "/api/attempts/other/events", {"events": []}, token=token).status == 401
    api.ask("POST", "/api/jobs/mine/cancel")
    api.wait("mine")
    over = api.ask("POST", own, {"events": []}, token=token)
    assert (over.status, over.json["error"]) == (410, "Gone")


def test_everything_is_described_and_typed(api: Api) -> None:
    for method, path, operation in operations(api):
        good = {code: answer for code, answer in operation["responses"].items() if code < "300"}
        for code, answer in good.items():
            content = answer.get("content", {})
            assert code == "204" or content, f"{method} {path} answers {code} with nothing"
            assert all(each.get("schema") for each in content.values()), f"{method} {path}"
        if path != "/health":
            assert operation["security"], f"{method} {path} names no security"
            assert "401" in operation["responses"], f"{method} {path}"


def test_everything_on_disk_is_private(api: Api) -> None:
    api.wait(api.submit("sh", "-c", "echo x > outputs/x")["name"])
    api.cleared()
    assert (api.home / "blobs").exists()
    for path in (api.home, *api.home.rglob("*")):
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
    told = json.dumps([api.job("quiet"), api.ask("GET", "/api/targets").json])
    assert "rtj." not in told
    assert not any(secret in told for secret in secrets)
    plan = api.ask("POST", "/api/jobs/plan", {"command": ["true"]})
    assert plan.status == 200
    assert b"rtj." not in plan.content
    api.ask("POST", "/api/jobs/quiet/cancel")


@pytest.mark.parametrize(
    ("asked", "field", "sentence"),
    [
        ({}, "command", "is needed"),
        ({"command": []}, "command", "at least 1"),
        ({"command": ["true"], "cpus": -1}, "cpus", "greater than 0"),
        ({"command": ["true"], "cpus": 10000}, "cpus", "asks for 10000 .* has"),
        ({"command": ["true"], "memory": "3x"}, "memory", "'3x' is not an amount of memory"),
        ({"command": ["true"], "memory": "900t"}, "memory", "asks for 900.0 TiB"),
        ({"command": ["true"], "gpus": 64}, "gpus", "asks for 64"),
        ({"command": ["true"], "nodes": 2}, "nodes", "asks for 2; target 'local' has 1"),
        ({"command": ["true"], "timeout": "soon"}, "timeout", "is not a duration"),
        ({"command": ["true"], "timeout": "99999999999999h"}, "timeout", "is not a duration"),
        (
            {"command": ["true"], "environment": {"kind": "system", "pip": ["a\nb"]}},
            "environment.pip",
            "is not one line of text",
        ),
        ({"command": ["true"], "name": "a/b"}, "name", "is not a name"),
        ({"command": ["true"], "name": "x" * 300}, "name", "is not a name"),
        ({"command": ["true"], "target": "moon"}, "target", "no target named 'moon'.* local"),
        ({"command": ["true"], "env": {"A=B": "c"}}, "env", "not the name of an environment"),
        ({"command": ["a\0b"]}, "command", "NUL"),
        ({"command": ["\ud800"]}, "command", "UTF-8"),
        ({"command": ["x" * 140_000]}, "command", "131,000 bytes"),
        ({"command": ["true"], "wishes": 1}, "wishes", "there is no such field"),
        ({"command": ["true"], "snapshot": "a" * 64}, "snapshot", "send it first"),
        ({"command": ["true"], "retries": 101}, "retries", "less than or equal to 100"),
        (
            {"command": ["true"], "environment": {"kind": "user", "python": "/nope"}},
            "python",
            "there is no /nope",
        ),
    ],
)
def test_a_bad_job_is_refused_with_one_sentence_naming_the_field(
    api: Api, asked: dict[str, Any], field: str, sentence: str
) -> None:
    before = len(api.ask("GET", "/api/jobs", limit=1000).json)
    answer = api.ask("POST", "/api/jobs", asked)
    assert (answer.status, answer.json["error"]) == (422, "Invalid")
    assert answer.json["field"].startswith(field)
    assert field in answer.json["message"]
    assert "\n" not in answer.json["message"]
    assert re.search(sentence, answer.json["message"]), answer.json["message"]
    assert len(api.ask("GET", "/api/jobs", limit=1000).json) == before


def test_too_much_for_any_process_is_refused_at_submit(api: Api) -> None:
    many = {f"V{number}": "x" * 1000 for number in range(10_000)}
    answer = api.ask("POST", "/api/jobs", {"command": ["true"], "env": many})
    assert (answer.status, answer.json["field"]) == (422, "env")


def test_what_is_not_json_is_refused(api: Api) -> None:
    for body in (b"", b"{", b"[]", b"\xff"):
        answer = api.ask("POST", "/api/jobs", body)
        assert answer.status == 422
        assert answer.json["message"]


@pytest.mark.parametrize("path", ["/api/jobs/none", "/api/targets/none", "/api/environments/none"])
def test_what_is_not_there_is_said_by_name(api: Api, path: str) -> None:
    answer = api.ask("GET", path)
    assert (answer.status, answer.json["error"]) == (404, "NotFound")
    assert "none" in answer.json["message"]


def test_another_method_is_answered_with_those_there_are(api: Api) -> None:
    answer = api.ask("PATCH", "/api/jobs/any")
    assert (answer.status, answer.headers["allow"]) == (405, "DELETE, GET")


def test_links_lead_to_operations_that_there_are(api: Api) -> None:
    paths = api.ask("GET", "/openapi.json").json["paths"]
    operations = [each for methods in paths.values() for each in methods.values()]
    names = [each["operationId"] for each in operations]
    answers = [answer for each in operations for answer in each["responses"].values()]
    links = [link for answer in answers for link in answer.get("links", {}).values()]
    assert len(set(names)) == len(names)
    assert links
    assert {link["operationId"] for link in links} <= set(names)


@pytest.mark.parametrize("field", ["cpus", "gpus", "nodes", "retries", "priority", "grace"])
def test_what_only_looks_like_a_number_is_refused(api: Api, field: str) -> None:
    for value in (True, "1"):
        answer = api.ask("POST", "/api/jobs/plan", {"command": ["true"], field: value})
        assert (answer.status, answer.json["field"]) == (422, field)


def test_a_log_can_be_asked_for_from_where_no_disk_reaches(api: Api) -> None:
    name = api.submit("true")["name"]
    api.wait(name)
    answer = api.ask("GET", f"/api/jobs/{name}/logs", offset=2**60)
    assert (answer.status, answer.content) == (200, b"")
