"""Secrets on a real server: stored encrypted, given to jobs, and never shown."""

import json
import sqlite3
import time
from contextlib import closing
from typing import Any

import pytest

from tests.server.conftest import Answer, Api, serving
from tests.server.test_track import AttemptClient

VALUE = "correct-horse"
MASKED = "*" * len(VALUE)
PRINT = ("sh", "-c", 'echo "it is $HF_TOKEN"')


def put(api: Api, name: str, value: Any) -> Answer:
    return api.ask("PUT", f"/api/secrets/{name}", {"value": value})


def log(api: Api, name: str) -> str:
    return api.ask("GET", f"/api/jobs/{name}/logs").content.decode()


def database(api: Api) -> str:
    with closing(sqlite3.connect(api.home / "retarget.db")) as db:
        return "\n".join(db.iterdump())


def refused(answer: Answer, status: int, message: str) -> None:
    assert (answer.status, answer.json["message"]) == (status, message)


def key_of(api: Api, job: dict[str, Any]) -> str:
    """Return the key of the current attempt of a running job."""
    folders = (api.home / "targets/local/launches").iterdir()
    launches = [json.loads((folder / "launch.json").read_text())["launch"] for folder in folders]
    return next(launch["key"] for launch in launches if launch["job"] == job["id"])


def test_names_are_listed_and_values_are_not(api: Api) -> None:
    stored = put(api, "LISTED", "first-value")
    assert (stored.status, stored.json["name"]) == (200, "LISTED")
    changed = put(api, "LISTED", "second-value").json
    assert changed["created_at"] == stored.json["created_at"] < changed["updated_at"]
    listed = api.ask("GET", "/api/secrets")
    assert changed in listed.json
    assert b"-value" not in listed.content
    assert "-value" not in database(api)
    assert api.ask("DELETE", "/api/secrets/LISTED").status == 204
    assert api.ask("DELETE", "/api/secrets/LISTED").status == 404


def test_a_bad_secret_is_refused_without_repeating_it(api: Api) -> None:
    size = "value: a secret must have 6 to 65,536 bytes, this one has"
    refused(put(api, "SHORT", "12345"), 422, f"{size} 5")
    refused(put(api, "LONG", "x" * 65_537), 422, f"{size} 65,537")
    refused(put(api, "NUMBER", 123456789), 422, "value: must be a string")
    refused(put(api, "NUL", "123456\0"), 422, "value: must not contain a NUL character")
    assert "is not a valid name for a secret" in put(api, "a-b", VALUE).json["message"]
    refused(
        put(api, "RETARGET_JOB", VALUE),
        422,
        "name: RETARGET_JOB is set by Retarget; choose another name",
    )


def test_only_a_user_may_touch_secrets(api: Api) -> None:
    for token in ("", "wrong"):
        assert api.ask("GET", "/api/secrets", token=token).status == 401
        assert api.ask("PUT", "/api/secrets/X", {"value": VALUE}, token=token).status == 401


def test_a_job_gets_a_secret_and_its_log_is_masked(api: Api) -> None:
    put(api, "HF_TOKEN", VALUE)
    job = api.submit(*PRINT, secrets=["HF_TOKEN", "HF_TOKEN"], name="masked")
    assert job["secrets"] == ["HF_TOKEN"]
    assert api.wait("masked")["state"] == "succeeded"
    assert log(api, "masked") == f"it is {MASKED}\n"
    assert VALUE not in database(api)


def test_an_unknown_secret_is_refused_at_submit(api: Api) -> None:
    answer = api.ask("POST", "/api/jobs", {"command": ["true"], "secrets": ["NOWHERE"]})
    sentence = "no secret named 'NOWHERE'; store it with `retarget secret set NOWHERE`"
    refused(answer, 422, f"secrets: {sentence}")
    assert answer.json["field"] == "secrets"
    batch = {"jobs": [{"command": ["true"]}, {"command": ["true"], "secrets": ["NOWHERE"]}]}
    refused(api.ask("POST", "/api/jobs/batch", batch), 422, f"jobs.1.secrets: {sentence}")
    both = {"command": ["true"], "secrets": ["A"], "variables": {"A": "b"}}
    refused(
        api.ask("POST", "/api/jobs", both), 422, "secrets: A is also set as a variable; choose one"
    )


def test_a_secret_deleted_meanwhile_fails_the_job_with_a_sentence(api: Api, all_cpus: Any) -> None:
    put(api, "GONE_SOON", VALUE)
    all_cpus("holds-all")
    api.submit("true", secrets=["GONE_SOON"], name="late")
    api.ask("DELETE", "/api/secrets/GONE_SOON")
    api.ask("POST", "/api/jobs/holds-all/cancel")
    job = api.wait("late")
    assert (job["state"], job["reason"]) == (
        "failed",
        "secret GONE_SOON was deleted after the job was submitted; store it again with "
        "`retarget secret set GONE_SOON`, then rerun the job",
    )


def test_a_running_attempt_keeps_the_value_that_it_took(api: Api) -> None:
    put(api, "ROTATED", VALUE)
    script = 'while [ ! -e go ]; do sleep 0.05; done; echo "it is $ROTATED"'
    job = api.submit("sh", "-c", script, secrets=["ROTATED"], name="rotating", cpus=0.1)
    api.wait("rotating", "running")
    put(api, "ROTATED", "another-value")
    key = key_of(api, job)
    client = AttemptClient(api, key)
    assert client.secrets() == {"ROTATED": VALUE}
    api.ask("DELETE", "/api/secrets/ROTATED")
    assert client.secrets() == {"ROTATED": VALUE}
    answer = client.ask("POST", "secrets")
    assert answer.json["count"] == 1
    assert VALUE.encode() not in answer.content
    assert answer.headers["cache-control"] == "no-store"
    (api.home / f"targets/local/launches/{key}/work/go").touch()
    assert api.wait("rotating")["state"] == "succeeded"
    assert log(api, "rotating") == f"it is {MASKED}\n"
    assert client.ask("POST", "secrets").status == 410
    api.cleared()
    deadline = time.monotonic() + 20
    while key in database(api).partition("job_secrets")[2].partition("CREATE")[0]:
        assert time.monotonic() < deadline, "the values were not removed"
        time.sleep(0.05)


def test_only_its_own_attempt_may_fetch_secrets(api: Api) -> None:
    put(api, "HF_TOKEN", VALUE)
    jobs = [api.submit("sleep", "60", secrets=["HF_TOKEN"], cpus=0.1) for _ in range(2)]
    keys = [key_of(api, api.wait(job["name"], "running")) for job in jobs]
    path = f"/api/attempts/{keys[0]}/secrets"
    assert api.ask("POST", path).status == 401  # not even a user
    assert AttemptClient(api, keys[1]).ask("POST", "secrets", key=keys[0]).status == 401
    assert AttemptClient(api, keys[0]).ask("POST", "secrets").status == 200
    for job in jobs:
        api.ask("POST", f"/api/jobs/{job['name']}/cancel")


def test_a_variable_with_a_secret_name_becomes_a_secret_of_the_job(api: Api) -> None:
    variables = {"HF_TOKEN": VALUE, "LEVEL": "3", "api_key": "lower-case", "EMPTY_KEY": ""}
    spec = {"command": PRINT, "variables": variables, "name": "own"}
    planned = api.ask("POST", "/api/jobs/plan", spec)
    assert planned.json["launch"]["secrets"] == ["HF_TOKEN", "api_key"]
    job = api.submit(*PRINT, variables=variables, name="own")
    assert job["variables"] == {"LEVEL": "3", "EMPTY_KEY": ""}
    assert job["secrets"] == ["HF_TOKEN", "api_key"]
    assert api.wait("own")["state"] == "succeeded"
    assert api.ask("POST", "/api/jobs/own/rerun", {"name": "own-again"}).json["secrets"] == [
        "HF_TOKEN",
        "api_key",
    ]
    assert api.wait("own-again")["state"] == "succeeded"
    assert log(api, "own") == log(api, "own-again") == f"it is {MASKED}\n"
    for text in (planned.content.decode(), json.dumps(api.job("own")), database(api)):
        assert VALUE not in text
        assert "lower-case" not in text


def test_too_many_variables_with_secret_names_are_refused_and_harm_no_other_job(api: Api) -> None:
    variables = {f"V{number}_KEY": "a value" for number in range(1001)}
    spec = {"command": PRINT, "variables": variables, "name": "many"}
    refused = api.ask("POST", "/api/jobs", spec)
    assert refused.status == 422
    assert "a job may have 1,000, this one has 1,001" in refused.content.decode()
    api.submit(*PRINT, variables={"HF_TOKEN": VALUE}, name="next")
    assert api.wait("next")["state"] == "succeeded"


def test_the_own_secrets_of_a_job_are_deleted_with_it(api: Api) -> None:
    job = api.submit("true", variables={"SOME_TOKEN": VALUE})
    api.wait(job["name"])
    assert f"'{job['id']}','','SOME_TOKEN'" in database(api)
    assert api.ask("DELETE", f"/api/jobs/{job['name']}").status == 204
    assert job["id"] not in database(api)


def test_what_a_script_logs_with_mlflow_is_masked(api: Api) -> None:
    put(api, "HF_TOKEN", VALUE)
    job = api.submit("sleep", "60", secrets=["HF_TOKEN"], cpus=0.1)
    client = AttemptClient(api, key_of(api, api.wait(job["name"], "running")))
    rows = [{"key": "where", "value": f"at {VALUE}!"}]
    batch = {"run_id": job["id"], "params": rows, "tags": rows}
    answer = api.ask("POST", "/api/2.0/mlflow/runs/log-batch", batch, token=client.token)
    assert answer.status == 200, answer.content
    data = api.ask("GET", "/api/2.0/mlflow/runs/get", run_id=job["id"]).json["run"]["data"]
    masked = {"key": "where", "value": f"at {MASKED}!"}
    assert masked in data["params"]
    assert masked in data["tags"]
    api.ask("POST", f"/api/jobs/{job['name']}/cancel")


def test_a_server_that_lost_its_key_says_so(tmp_path: Any) -> None:
    home = tmp_path / "home"
    with serving(home) as api:
        put(api, "HF_TOKEN", VALUE)
    (home / "secret").write_text("another key of this server, long enough")
    (home / "servers/main/server.json").unlink(missing_ok=True)
    with serving(home) as api:
        job = api.submit("true", secrets=["HF_TOKEN"])
        assert "secret HF_TOKEN cannot be decrypted" in api.wait(job["name"])["reason"]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_no_route_returns_a_value(api: Api, method: str) -> None:
    put(api, "HF_TOKEN", VALUE)
    assert api.ask(method, "/api/secrets/HF_TOKEN").status == 405
