"""The token of a job's attempt: it opens that attempt's own door, and no other there is."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retarget.core.tokens import attempt_token
from tests.bad_input.conftest import refusal, unchanged
from tests.server.conftest import Answer, Api

METHODS = {"get", "post", "put", "delete", "patch"}
OWN = "/api/attempts/{key}"


class Attempt:
    """A live attempt of a job, and its token."""

    def __init__(self, api: Api, name: str) -> None:
        self.name = name
        self.key = _key(api, name)
        self.token = attempt_token((api.home / "secret").read_text().encode(), self.key)


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


def test_it_is_refused_everywhere_but_at_its_own_door(
    api: Api, attempts: tuple[Attempt, Attempt]
) -> None:
    mine, other = attempts
    asked = 0
    with unchanged(api):
        for method, path in _operations(api):
            if path == "/health":
                continue
            answer = _ask(api, method, path, other.key, mine.token, name=other.name)
            status = 401 if path.startswith(OWN) else 403
            assert answer.status == status, (method, path, answer.content[:200])
            assert refusal(answer, status)
            asked += 1
    assert asked > 30
    assert api.job(other.name)["state"] == "running"


def test_it_opens_every_route_of_its_own_door(api: Api, attempts: tuple[Attempt, Attempt]) -> None:
    mine, _ = attempts
    own = [(method, path) for method, path in _operations(api) if path.startswith(OWN)]
    assert len(own) >= 6
    for method, path in own:
        answer = _ask(api, method, path, mine.key, mine.token, name="x")
        assert answer.status not in (401, 404, 500), (method, path, answer.content)
        assert answer.status != 403 or b"not a part of this job's code" in answer.content


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
def test_a_token_that_is_made_up_opens_nothing(
    api: Api, attempts: tuple[Attempt, Attempt], token: str
) -> None:
    mine, other = attempts
    proof = mine.token.rpartition(".")[2]
    made_up = token.format(key=mine.key, other=other.key, proof=proof, zeros="0" * 64)
    for key in (mine.key, other.key):
        answer = _ask(api, "POST", f"{OWN}/events", key, made_up, name="x")
        assert refusal(answer, 401) == "that token does not open this attempt"
    assert _ask(api, "GET", "/api/jobs", "", made_up, name="x").status in (401, 403)
    tracking = api.ask("POST", "/api/2.0/mlflow/runs/create", {}, token=made_up)
    assert tracking.status == 401


def test_it_is_of_no_use_when_its_attempt_is_over(api: Api) -> None:
    api.submit("sleep", "600", name="token-over", cpus=0.1)
    api.wait("token-over", "running")
    ended = Attempt(api, "token-over")
    api.ask("POST", "/api/jobs/token-over/cancel")
    api.wait("token-over")
    with unchanged(api):
        for method, path in _operations(api):
            if path.startswith(OWN):
                answer = _ask(api, method, path, ended.key, ended.token, name="x")
                assert answer.status == 410, (method, path, answer.content[:200])


def test_it_writes_no_artifacts_and_runs_of_others(
    api: Api, attempts: tuple[Attempt, Attempt]
) -> None:
    mine, other = attempts
    its = api.job(other.name)["id"]
    tries: list[tuple[str, str, Any]] = [
        ("POST", "mlflow/runs/log-metric", {"run_id": its, "key": "a", "value": 1, "timestamp": 1}),
        ("POST", "mlflow/runs/set-tag", {"run_id": its, "key": "a", "value": "b"}),
        ("POST", "mlflow/runs/delete", {"run_id": its}),
        ("POST", "mlflow/experiments/delete", {"experiment_id": "0"}),
        ("PUT", f"mlflow-artifacts/artifacts/0/{its}/artifacts/x", b"x"),
    ]
    with unchanged(api):
        for method, path, body in tries:
            answer = api.ask(method, f"/api/2.0/{path}", body, token=mine.token)
            assert answer.status == 403, (path, answer.content[:200])


def _operations(api: Api) -> list[tuple[str, str]]:
    paths = api.ask("GET", "/openapi.json", token="").json["paths"]
    return [
        (method.upper(), path)
        for path, methods in paths.items()
        for method in methods
        if method in METHODS
    ]


def _ask(api: Api, method: str, path: str, key: str, token: str, *, name: str) -> Answer:
    """Ask as a request would be that is right but for its token."""
    filled = path.replace("{key}", key).replace("{job}", name).replace("{target}", "local")
    where = re.sub(r"{\w+(:\w+)?}", "a" * 64, filled)
    if method == "GET":
        return api.ask(method, where, token=token)
    body: Any = b"" if _takes_bytes(path) else {"events": [], "digests": [], "command": ["true"]}
    return api.ask(method, where, body, token=token, offset=0)


def _takes_bytes(path: str) -> bool:
    return path.endswith(("/outputs", "{stream}", "/track/{name}"))


def _key(api: Api, name: str) -> str:
    """Return the key of the one attempt of a job: its launch folder has it."""
    job = api.job(name)["id"]
    for folder in (api.home / "targets/local/launches").iterdir():
        if job in Path(folder / "launch.json").read_text():
            return folder.name
    raise AssertionError(f"{name} has no launch")
