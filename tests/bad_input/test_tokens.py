"""The two credentials of an attempt open what they are for and nothing else.

The script's token opens tracking. The runner's key proves requests to the API of its attempt.
"""

import json
import re
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from retarget.runner.proof import (
    DIGEST_HEADER,
    NONCE_HEADER,
    PROOF_HEADER,
    TRAILER,
    Trailer,
    new_nonce,
    prove_request,
)
from tests.bad_input.conftest import refusal, unchanged
from tests.server.conftest import Answer, Api, proof_headers

METHODS = {"get", "post", "put", "delete", "patch"}
ATTEMPT_PATH = "/api/attempts/{key}"


class Attempt:
    """A live attempt of a job, and its credentials."""

    def __init__(self, api: Api, name: str) -> None:
        self.name = name
        self.key = _key(api, name)
        self.token = api.script_token(self.key)
        self.runner_key = api.runner_key(self.key)


@pytest.fixture(scope="module")
def attempts(api: Api) -> Iterator[tuple[Attempt, Attempt]]:
    names = ("token-a", "token-b")
    for name in names:
        api.submit("sleep", "600", name=name, cpus=0.1)
        api.wait(name, "running")
    yield Attempt(api, names[0]), Attempt(api, names[1])
    for name in names:
        api.ask("POST", f"/api/jobs/{name}/cancel")
        api.wait(name)


@pytest.mark.parametrize("own", [True, False])
def test_the_scripts_token_opens_no_route_at_all(
    api: Api, attempts: tuple[Attempt, Attempt], own: bool
) -> None:
    """So a script cannot end, refuse or confirm an attempt, not even its own."""
    attempt, other = attempts
    named = attempt if own else other
    requests = 0
    with unchanged(api):
        for method, path in _operations(api):
            if path == "/health":
                continue
            answer = _ask(api, method, path, named.key, name=named.name, token=attempt.token)
            status = 401 if path.startswith(ATTEMPT_PATH) else 403
            assert answer.status == status, (method, path, answer.content[:200])
            assert refusal(answer, status)
            requests += 1
    assert requests > 30
    assert api.job(named.name)["state"] == "running"


def test_the_runners_key_is_refused_by_another_attempt(
    api: Api, attempts: tuple[Attempt, Attempt]
) -> None:
    attempt, other = attempts
    with unchanged(api):
        for method, path in _attempt_operations(api):
            answer = _ask(
                api, method, path, other.key, name=other.name, proven_by=attempt.runner_key
            )
            assert refusal(answer, 401), (method, path, answer.content[:200])


def test_every_request_that_differs_from_its_proof_is_refused(
    api: Api, attempts: tuple[Attempt, Attempt]
) -> None:
    attempt, other = attempts
    path, body = f"/api/attempts/{attempt.key}/events", b'{"events": []}'
    headers = proof_headers(attempt.runner_key, "POST", path, body)
    altered: list[tuple[str, str, bytes, dict[str, str]]] = [
        ("PUT", path, body, headers),
        ("POST", path.replace("events", "secrets"), body, headers),
        ("POST", path.replace(attempt.key, other.key), body, headers),
        ("POST", f"{path}?now=1", body, headers),
        ("POST", path, b'{"events": [] }', headers),
        ("POST", path, b"", headers),
        ("POST", path, body, {**headers, NONCE_HEADER: "0" * 32}),
        ("POST", path, body, {**headers, DIGEST_HEADER: "0" * 64}),
        ("POST", path, body, {**headers, DIGEST_HEADER: TRAILER}),
        ("POST", path, body, {**headers, PROOF_HEADER: "0" * 64}),
        ("POST", path, body, {**headers, PROOF_HEADER: "\u00e9"}),
    ]
    with unchanged(api):
        for method, target, content, sent in altered:
            answer = _send(api, method, target, content, sent)
            assert answer.status == 401, (method, target, sent)
            assert PROOF_HEADER not in answer.headers, "only answers to proven requests are proven"
    assert _send(api, "POST", path, body, headers).status == 200


def test_headers_that_are_not_proven_change_nothing(
    api: Api, attempts: tuple[Attempt, Attempt]
) -> None:
    attempt, _ = attempts
    key, path = attempt.runner_key, f"/api/attempts/{attempt.key}/blobs"
    for added in ({"Content-Type": "text/plain"}, {"Range": "bytes=0-9", "If-Range": "x"}):
        headers = proof_headers(key, "POST", path, b'{"digests": []}')
        answer = _send(api, "POST", path, b'{"digests": []}', {**headers, **added})
        assert answer.status == 200, answer.content


@pytest.mark.parametrize("damage", [b"\xff\xff\xff\xff", b'\0\0\0%{"path": "../../up", "size": 1}'])
def test_an_answer_is_proven_only_if_the_whole_body_is(
    api: Api, attempts: tuple[Attempt, Attempt], damage: bytes
) -> None:
    attempt, _ = attempts
    path, key, nonce = f"/api/attempts/{attempt.key}/outputs", attempt.runner_key, new_nonce()
    headers = {
        NONCE_HEADER: nonce,
        DIGEST_HEADER: TRAILER,
        PROOF_HEADER: prove_request(key, nonce, "POST", path, TRAILER),
    }
    body = damage + bytes(6_000_000)  # the route refuses the first bytes and reads no further
    answer = _send(api, "POST", path, body, headers)
    assert (answer.status, PROOF_HEADER in answer.headers) == (401, False)
    trailer = Trailer(key, "request", nonce)
    answer = _send(api, "POST", path, trailer.add(body) + trailer.value(), headers)
    assert answer.status == 422, "the runner itself has sent this"


def test_outputs_are_recorded_only_if_their_trailer_is_right(
    api: Api, attempts: tuple[Attempt, Attempt]
) -> None:
    attempt, _ = attempts
    path, key = f"/api/attempts/{attempt.key}/outputs", attempt.runner_key
    header = b'{"path": "outputs/proven", "size": 5}'
    frame = len(header).to_bytes(4, "big") + header + b"12345"
    nonce = new_nonce()
    headers = {
        NONCE_HEADER: nonce,
        DIGEST_HEADER: TRAILER,
        PROOF_HEADER: prove_request(key, nonce, "POST", path, TRAILER),
    }
    trailer = Trailer(key, "request", nonce)
    trailer.add(frame)
    bodies = [
        frame,
        frame + bytes(32),
        frame + trailer.value()[:-1],
        frame.replace(b"12345", b"12346") + trailer.value(),
        trailer.value(),
        b"",
    ]
    with unchanged(api):
        for body in bodies:
            assert _send(api, "POST", path, body, headers).status == 401, body
    answer = _send(api, "POST", path, frame + trailer.value(), headers)
    assert (answer.status, json.loads(answer.content)["kept"]) == (200, 1)


def test_the_runners_key_is_accepted_by_every_route_of_its_attempt(
    api: Api, attempts: tuple[Attempt, Attempt]
) -> None:
    attempt, _ = attempts
    routes = _attempt_operations(api)
    assert len(routes) >= 6
    for method, path in routes:
        answer = _ask(api, method, path, attempt.key, name="x", proven_by=attempt.runner_key)
        assert answer.status not in (401, 404, 500), (method, path, answer.content)
        assert answer.status != 403 or b"not part of this job's code" in answer.content


@pytest.mark.parametrize(
    "token",
    [
        "rtj.{key}.{zeros}",
        "rtj.{key}.",
        "rtj.{key}",
        "rtj..{proof}",
        "rtj.{other}.{proof}",
        "RTJ.{key}.{proof}",
        "{proof}",
        "rtj.{key}.{proof}x",
    ],
)
def test_a_forged_token_is_refused(api: Api, attempts: tuple[Attempt, Attempt], token: str) -> None:
    attempt, other = attempts
    proof = attempt.token.rpartition(".")[2]
    forged = token.format(key=attempt.key, other=other.key, proof=proof, zeros="0" * 64)
    for key in (attempt.key, other.key):
        answer = _ask(api, "POST", f"{ATTEMPT_PATH}/events", key, name="x", token=forged)
        assert "no valid proof" in refusal(answer, 401)
    assert _ask(api, "GET", "/api/jobs", "", name="x", token=forged).status in (401, 403)
    tracking = api.ask("POST", "/api/2.0/mlflow/runs/create", {}, token=forged)
    assert tracking.status == 401


def test_nothing_is_accepted_after_the_attempt_has_ended(api: Api) -> None:
    api.submit("sleep", "600", name="token-over", cpus=0.1)
    api.wait("token-over", "running")
    ended = Attempt(api, "token-over")
    api.ask("POST", "/api/jobs/token-over/cancel")
    api.wait("token-over")
    with unchanged(api):
        for method, path in _attempt_operations(api):
            answer = _ask(api, method, path, ended.key, name="x", proven_by=ended.runner_key)
            status = 204 if path.endswith("/proof") else 410
            assert answer.status == status, (method, path, answer.content[:200])


def test_the_token_cannot_write_runs_and_artifacts_of_others(
    api: Api, attempts: tuple[Attempt, Attempt]
) -> None:
    attempt, other = attempts
    other_id = api.job(other.name)["id"]
    requests: list[tuple[str, str, Any]] = [
        (
            "POST",
            "mlflow/runs/log-metric",
            {"run_id": other_id, "key": "a", "value": 1, "timestamp": 1},
        ),
        ("POST", "mlflow/runs/set-tag", {"run_id": other_id, "key": "a", "value": "b"}),
        ("POST", "mlflow/runs/delete", {"run_id": other_id}),
        ("POST", "mlflow/experiments/delete", {"experiment_id": "0"}),
        ("PUT", f"mlflow-artifacts/artifacts/0/{other_id}/artifacts/x", b"x"),
    ]
    with unchanged(api):
        for method, path, body in requests:
            answer = api.ask(method, f"/api/2.0/{path}", body, token=attempt.token)
            assert answer.status == 403, (path, answer.content[:200])


def _operations(api: Api) -> list[tuple[str, str]]:
    paths = api.ask("GET", "/openapi.json", token="").json["paths"]
    return [
        (method.upper(), path)
        for path, methods in paths.items()
        for method in methods
        if method in METHODS
    ]


def _attempt_operations(api: Api) -> list[tuple[str, str]]:
    return [(method, path) for method, path in _operations(api) if path.startswith(ATTEMPT_PATH)]


def _send(api: Api, method: str, target: str, body: bytes, headers: dict[str, str]) -> Answer:
    """Send a request with these headers and no others."""
    connection = HTTPConnection(api.url.removeprefix("http://"), timeout=200)
    try:
        connection.request(method, target, body, headers)
        response = connection.getresponse()
        return Answer(response.status, response.read(), dict(response.headers))
    finally:
        connection.close()


def _ask(
    api: Api, method: str, path: str, key: str, *, name: str, token: str = "", proven_by: str = ""
) -> Answer:
    """Send a request that is valid except for its credentials."""
    filled = path.replace("{key}", key).replace("{job}", name).replace("{target}", "local")
    url_path = re.sub(r"{\w+(:\w+)?}", "a" * 64, filled)
    if method == "GET":
        return api.ask(method, url_path, token=token, proven_by=proven_by)
    body: Any = b"" if _takes_bytes(path) else {"events": [], "digests": [], "command": ["true"]}
    return api.ask(method, url_path, body, token=token, proven_by=proven_by, offset=0)


def _takes_bytes(path: str) -> bool:
    return path.endswith(("/outputs", "{stream}", "/track/{name}"))


def _key(api: Api, name: str) -> str:
    """Return the key of a job's only attempt: the name of its launch folder."""
    job = api.job(name)["id"]
    for folder in (api.home / "targets/local/launches").iterdir():
        if job in Path(folder / "launch.json").read_text():
            return folder.name
    raise AssertionError(f"{name} has no launch")
