"""Raw requests that our clients never send: one sentence each, and nothing changes."""

import gzip
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.bad_input.conftest import ask_raw, refusal, unchanged
from tests.server.conftest import Api

LONG = "x" * 300_000
HUGE = 10**400


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "the body"),
        (b"null", "the body: must be a JSON object"),
        (b"[]", "the body: must be a JSON object"),
        (b'"command"', "the body: must be a JSON object"),
        (b"{", "the body is not JSON: Expecting property name"),
        (b"\xff\xfe", "JSON"),
        (b'{"command": ["\xff"]}', "JSON"),
        (nested(100_000), "JSON"),
        (b'{"command": ' + nested(900) + b"}", "command.0: must be a valid string"),
        (b'{"command": ["true"], "cpus": ' + b"9" * 5000 + b"}", "JSON"),
        (b'{"command": ["true"], "cpus": NaN}', "cpus: must be a finite number, not nan"),
        (b'{"command": ["true"], "cpus": -Infinity}', "cpus: must be a finite number"),
        (b'{"command": ["true"], "cpus": 1e999}', "cpus: must be a finite number"),
        (b"{}", "command: is required"),
        (gzip.compress(b'{"command": ["true"]}', mtime=0), "JSON"),
    ],
)
def test_an_invalid_body_is_refused(api: Api, body: bytes, sentence: str) -> None:
    with unchanged(api):
        for path in ("/api/jobs", "/api/jobs/plan"):  # the fast path and the usual route
            assert sentence in refusal(ask_raw(api, "POST", path, body), 400, 422)


WRONG: dict[str, list[Any]] = {
    "command": [None, "true", 3, {}, [], [1], [None], ["a\0b"], ["\ud800"], ["x" * 10_000_000]],
    "name": [3, [], "", " ", "a/b", "a\nb", "\x1b[31m", "x" * 300, "ü", "..", "-x", "a\0", LONG],
    "experiment": [3, None, "", "  ", "a\nb", "\x1b[31m", "x" * 501, "a\0b", "\ud800"],
    "display_name": [3, [], "", " ", "a\nb", "\x1b[31m", "x" * 501, "a\0b", "\ud800"],
    "description": [3, None, [], "x" * 8001, "a\0b", "\ud800"],
    "tags": [
        3,
        "a=b",
        ["a"],
        {"a": 1},
        {"a": None},
        {"": "x"},
        {"a=b": "x"},
        {LONG: "x"},
        {"mlflow.user": "x"},
        {"a": "x" * 8001},
        {f"k{n}": "x" for n in range(10_000)},
    ],
    "properties": [3, {"a": 1}, {"a//b": "x"}, {f"k{n}": "x" for n in range(10_000)}],
    "target": [3, None, "", "mars", "a/b", "\x1b[31m", LONG],
    "snapshot": [3, "x", "../x", "A" * 64, "a" * 64, [], LONG],
    "variables": [
        3,
        "A=1",
        ["A"],
        {"A": 1},
        {"A": None},
        {"A=B": "x"},
        {"": "x"},
        {"A\0": "x"},
        {"A": "x\0"},
        {"A": "\ud800"},
        {LONG: "x"},
        {f"V{number}": "x" * 60 for number in range(10_000)},
    ],
    "cpus": [0, -1, 10_000, HUGE, "2", "two", True, None, [], float("nan")],
    "memory": [
        0,
        -1,
        1000,
        "1k",
        "3x",
        "-1",
        "",
        True,
        [],
        {},
        HUGE,
        "9" * 400,
        float("inf"),
        "900t",
    ],
    "gpus": [-1, 1.5, "1", True, None, 10**30, HUGE],
    "nodes": [0, -1, 1.5, "1", True, None, 2, 10**30],
    "processes_per_node": [0, -1, 1025, 1.5, "1", True, 10**30],
    "retries": [-1, 101, 1.5, "1", True, 10**30],
    "timeout": [0, -1, "soon", "", True, [], HUGE, "9" * 400, float("nan"), "1h-5m"],
    "grace_seconds": [-1, 3601, "1", True, None, float("nan")],
    "priority": [-1001, 1001, 1.5, "1", True],
    "environment": [3, None, [], "x", {"kind": "usr"}, {"pip": "numpy"}, {"zzz": 1}],
    "environment.python": [
        {"python": 3},
        {"python": ""},
        {"python": "\x1b[31m"},
        {"kind": "system", "python": LONG},
    ],
    "environment.prefer": [{"prefer": 3}, {"prefer": "\ud800"}, {"prefer": "a\0b"}],
    "environment.name": [{"name": "a/b"}, {"name": "\x1b"}, {"name": LONG}, {"name": ""}],
    "environment.pip": [{"kind": "system", "pip": [text]} for text in ("", " ", "a\nb", LONG)],
    "python": [{"python": path} for path in ("/nope", "python3", "/etc/passwd", "/tmp")],
    "wishes": [1],
    LONG[:5000]: [1],
}


@pytest.mark.parametrize(
    ("field", "value"),
    [pytest.param(field, value, id=f"{field[:20]}-{at}") for field, values in WRONG.items()
     for at, value in enumerate(values)],
)  # fmt: skip
def test_a_refusal_names_the_field_with_the_wrong_value(api: Api, field: str, value: Any) -> None:
    key = "environment" if field == "python" else field.partition(".")[0]
    body = json.dumps({"command": ["true"], key: value}).encode()
    with unchanged(api):
        for path in ("/api/jobs", "/api/jobs/plan"):
            answer = ask_raw(api, "POST", path, body)
            assert refusal(answer).startswith(field[:100])
            assert answer.json["field"].startswith(field[:100])


NAMES = ["\0", " ", "..", "a\nb", "\x1b[31m", "x" * 5000, "ü", "\ufffd", "?", "#", "%2e%2e", "\\"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("noun", ["jobs", "targets", "environments", "models", "experiments"])
def test_an_unknown_name_is_not_found(api: Api, noun: str, name: str) -> None:
    answer = api.ask("GET", f"/api/{noun}/{quote(name, safe='')}")
    assert refusal(answer, 404)


@pytest.mark.parametrize(
    ("method", "path", "status", "sentence"),
    [
        ("GET", "/api/zzz", 404, "this server has no GET /api/zzz"),
        ("DELETE", "/api/jobs", 405, "this server has no DELETE /api/jobs"),
        ("GET", "/api/jobs/a%2Fb", 404, "this server has no GET /api/jobs/a/b"),
        ("GET", "/api/jobs?limit=0", 422, "limit: must be greater than or equal to 1, not '0'"),
        ("GET", f"/api/jobs?limit={'9' * 5000}", 422, "limit: "),
        ("GET", "/api/jobs?state=zzz", 422, "state.0: must be 'queued', "),
        ("GET", "/api/jobs/x?wait=nan", 422, "wait: "),
        ("GET", "/api/jobs/x/logs?offset=-1", 422, "offset: "),
        ("GET", "/api/blobs/%2e%2e%2ftoken", 404, "this server has no GET"),
        ("GET", f"/api/blobs/{'A' * 64}", 422, "is not 64 hex digits"),
        ("GET", "/api/models/x/versions/" + "9" * 5000, 422, "must be an integer"),
        ("POST", "/api/server/prune?keep_seconds=nan", 422, "keep_seconds: "),
        ("POST", "/api/server/prune?keep_seconds=-1", 422, "keep_seconds: "),
    ],
)
def test_a_wrong_address_is_refused(
    api: Api, method: str, path: str, status: int, sentence: str
) -> None:
    with unchanged(api):
        assert sentence in refusal(api.ask(method, path), status)


SYSTEM = {"kind": "system", "pip": ["numpy"]}


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("PUT", "environments/%1b", SYSTEM, "name"),
        ("PUT", f"environments/{'x' * 300}", SYSTEM, "name"),
        ("PUT", "environments/%20", SYSTEM, "name"),
        ("PUT", "environments/fine", {"kind": "user"}, "kind"),
        ("PUT", "environments/fine", {**SYSTEM, "name": "a/b"}, "name"),
        ("PUT", "environments/fine", {**SYSTEM, "python": "\x1b"}, "python"),
        ("PUT", "environments/fine", {**SYSTEM, "pip": ["\x1b[31m"]}, "pip"),
        ("PUT", "environments/fine", {**SYSTEM, "pip": "numpy"}, "pip"),
        ("PUT", "models/m/aliases/%1b", {"version": 1}, "alias"),
        ("PUT", "models/m/aliases/a", {"version": "x"}, "version"),
        ("PUT", "models/m/aliases/a", {"version": True}, "version"),
        ("PUT", "models/m/aliases/a", {"version": 2**31}, "version"),
        ("POST", "models/%1b%5b31m/versions", {"job": "x", "path": "y"}, "name"),
        ("POST", f"models/{'x' * 300}/versions", {"job": "x", "path": "y"}, "name"),
        ("POST", "models/%20/versions", {"job": "x", "path": "y"}, "name"),
        ("POST", "models/m/versions", {"job": 1, "path": "y"}, "job"),
        ("POST", "models/m/versions", {"job": "x", "path": 3}, "path"),
        ("POST", "models/m/versions", {"job": "x", "path": "y", "tags": {"a": 1}}, "tags.a"),
        ("POST", "jobs/x/rerun", {"name": "a/b"}, "name"),
        ("POST", "jobs/x/rerun", {"wish": 1}, "wish"),
        ("POST", "jobs/x/rerun", {"cpus": 0}, "cpus"),
        ("POST", "jobs/x/rerun", {"arguments": "--lr 2"}, "arguments"),
        ("POST", "blobs/missing", {"digests": [1]}, "digests.0"),
        ("POST", "blobs/missing", {"digests": ["../x"]}, "digest"),
        ("POST", "blobs/missing", {"digests": ["a" * 64] * 50_001}, "digests"),
        ("POST", "blobs/complete", {"snapshot": "x"}, "snapshot"),
    ],
)
def test_other_requests_name_the_wrong_field_too(
    api: Api, method: str, path: str, body: dict[str, Any], field: str
) -> None:
    with unchanged(api):
        answer = api.ask(method, f"/api/{path}", body)
        assert refusal(answer)
        assert answer.json["field"] == field


def test_a_too_large_body_is_refused_before_it_is_in_memory(api: Api) -> None:
    before = _memory(api)
    body = b'{"command": ["' + b"x" * 100_000_000 + b'"]}'
    for path in ("/api/jobs", "/api/jobs/plan", "/api/2.0/mlflow/runs/create"):
        answer = ask_raw(api, "POST", path, body)
        assert answer.status == 413
        assert "at most 67,108,864" in answer.json["message"]
    assert _memory(api) - before < 300_000


@pytest.mark.parametrize("length", ["99999999999999999999", "-5", "x"])
def test_an_invalid_content_length_is_refused(api: Api, length: str) -> None:
    assert ask_raw(api, "POST", "/api/jobs", b"x", **{"Content-Length": length}).status == 400


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"x" * 20, "the body ends in the middle of a frame"),
        (bytes(32) + (2**63).to_bytes(8, "big") + b"hi", "ends in the middle of a frame"),
        (bytes(32) + (2).to_bytes(8, "big") + b"hi", "has the digest"),
    ],
)
def test_blobs_with_a_wrong_digest_are_not_stored(api: Api, body: bytes, sentence: str) -> None:
    with unchanged(api):
        assert sentence in refusal(api.ask("POST", "/api/blobs", body))
        assert "has the digest" in refusal(api.ask("PUT", "/api/blobs/zzz", b"x"))


def _memory(api: Api) -> int:
    """Return the peak memory of the server in KiB."""
    lines = Path(f"/proc/{api.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
