"""`retarget.track` from the call in a script to the answers of the server."""

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest

from retarget.control.track import parse_lines
from retarget.runner.sealing import unseal
from tests.server.conftest import Api


class AttemptClient:
    """Sends requests as the runner of an attempt does."""

    def __init__(self, api: Api, key: str) -> None:
        self._api = api
        self._key = key
        self.token = api.script_token(key)
        self._runner_key = api.runner_key(key)

    def ask(self, method: str, resource: str, *, key: str | None = None) -> Any:
        path = f"/api/attempts/{key or self._key}/{resource}"
        return self._api.ask(method, path, proven_by=self._runner_key)

    def secrets(self) -> dict[str, str]:
        """Return the values of the attempt's secrets."""
        return json.loads(unseal(self._runner_key, self.ask("POST", "secrets").json["sealed"]))

    def put(self, content: bytes, offset: int = 0, name: str = "9-test.jsonl") -> Any:
        path = f"/api/attempts/{self._key}/track/{name}"
        return self._api.ask("PUT", path, content, proven_by=self._runner_key, offset=offset)

    def send(self, path: str, content: bytes) -> Any:
        """Send a file as a runner does."""
        header = json.dumps({"path": path, "size": len(content)}).encode()
        body = len(header).to_bytes(4, "big") + header + content
        return self._api.ask(
            "POST", f"/api/attempts/{self._key}/outputs", body, proven_by=self._runner_key
        ).json


@pytest.fixture
def job(api: Api) -> dict[str, Any]:
    view = api.submit("sleep", "60", cpus=0.1)
    return api.wait(view["name"], "running")


@pytest.fixture
def attempt_client(api: Api, job: dict[str, Any]) -> AttemptClient:
    folders = (api.home / "targets/local/launches").iterdir()
    launches = [json.loads((folder / "launch.json").read_text())["launch"] for folder in folders]
    return AttemptClient(
        api, next(launch["key"] for launch in launches if launch["job"] == job["id"])
    )


def run_of(api: Api, job: dict[str, Any]) -> dict[str, Any]:
    return api.ask("GET", "/api/2.0/mlflow/runs/get", run_id=job["id"]).json["run"]


def history(api: Api, job: dict[str, Any], key: str) -> list[tuple[int, Any]]:
    query = {"run_id": job["id"], "metric_key": key}
    answer = api.ask("GET", "/api/2.0/mlflow/metrics/get-history", **query).json
    return [(int(point.get("step", 0)), point["value"]) for point in answer.get("metrics", [])]


def lines(*rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def test_a_job_that_logs_has_it_all_in_its_run(api: Api) -> None:
    code = (
        "from retarget import track\n"
        "for step in range(50): track.log(loss=1 / (step + 1), step=step)\n"
        "track.log(bad=float('nan')); track.param(lr=0.1); track.tag(stage='dev')\n"
        "track.table('eval', [{'a': 1}]); open('m', 'w').write('model'); track.artifact('m')"
    )
    job = api.wait(api.submit("python", "-c", code)["name"])
    assert job["state"] == "succeeded"
    run = run_of(api, job)
    assert history(api, job, "loss") == [(step, 1 / (step + 1)) for step in range(50)]
    assert math.isnan(float(history(api, job, "bad")[0][1]))
    assert run["data"]["params"] == [{"key": "lr", "value": "0.1"}]
    tags = {tag["key"]: tag["value"] for tag in run["data"]["tags"]}
    assert tags["stage"] == "dev"
    assert json.loads(tags["mlflow.loggedArtifacts"]) == [{"path": "eval.json", "type": "table"}]
    listed = api.ask("GET", "/api/2.0/mlflow/artifacts/list", run_id=job["id"]).json["files"]
    assert [(file["path"], int(file["file_size"])) for file in listed if not file["is_dir"]] == [
        ("eval.json", 33),
        ("m", 5),
    ]


def test_points_are_there_while_the_script_runs(api: Api, tmp_path: Path) -> None:
    code = "from retarget import track; import time; track.log(loss=0.5, step=1); time.sleep(60)"
    job = api.submit("python", "-c", code, cpus=0.1)
    deadline = time.monotonic() + 200
    while history(api, job, "loss") != [(1, 0.5)]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert api.job(job["name"])["state"] == "running"


def test_lines_are_taken_in_once_whatever_is_sent_again(
    api: Api, attempt_client: AttemptClient, job: dict[str, Any]
) -> None:
    content = lines(*({"m": {"a": n}, "s": n, "t": 1000 + n} for n in range(10)))
    cut = content.index(b"\n", 100) + 1
    assert attempt_client.put(content[:cut]).json == {"size": cut, "refused": []}
    assert attempt_client.put(content[: cut // 2]).json["size"] == cut
    assert attempt_client.put(content[cut + 5 :], offset=cut + 5).json["size"] == cut, "a gap"
    assert attempt_client.put(content + b'{"m": {"a"').json["size"] == len(content), "a torn line"
    assert attempt_client.put(content).json["size"] == len(content)
    assert history(api, job, "a") == [(n, float(n)) for n in range(10)]


def test_refused_lines_are_reported_and_block_nothing_else(
    api: Api, attempt_client: AttemptClient, job: dict[str, Any]
) -> None:
    good = {"m": {"a": 1}, "s": 1, "t": 1}
    content = lines(
        {"m": {"b*": 1}, "s": 1, "t": 1}, {"new": 1}, {"m": {"a": None}, "s": 1, "t": 1}
    )
    content += b"\xff\xfe no JSON\n[]\n3\n" + lines({"m": {"a": 1}, "s": 2**70, "t": 1}, good)
    answer = attempt_client.put(content).json
    assert answer["size"] == len(content)
    refused = " ".join(answer["refused"])
    assert "b*" in refused
    assert "a newer version" in refused
    assert refused.count("no JSON") == 1
    assert history(api, job, "a") == [(1, 1.0)]


def test_text_that_no_database_stores_is_cleaned(
    api: Api, attempt_client: AttemptClient, job: dict[str, Any]
) -> None:
    attempt_client.put(
        lines({"p": {"odd": "a\0b"}}, {"g": {"tag": "\udcff"}}, {"p": {"long": "x" * 9000}})
    )
    params = {param["key"]: param["value"] for param in run_of(api, job)["data"]["params"]}
    assert "\0" not in params["odd"]
    assert len(params["long"]) == 6000


def test_only_the_runner_of_the_attempt_may_write_and_only_plain_names(
    api: Api, attempt_client: AttemptClient
) -> None:
    assert attempt_client.put(b"", name="..%2Fup").status in (404, 422)
    assert attempt_client.put(b"", name="a" * 101).status == 422
    assert api.ask("PUT", "/api/attempts/x/track/a.jsonl", b"", offset=0).status == 401


def test_an_artifact_named_like_a_folder_is_refused_and_blocks_nothing(
    attempt_client: AttemptClient, api: Api, job: dict[str, Any]
) -> None:
    assert attempt_client.send("artifacts/a/b", b"x") == {"kept": 1, "refused": []}
    answer = attempt_client.send("artifacts/a", b"y")
    assert answer["kept"] == 0
    assert "it is a folder" in answer["refused"][0]
    assert attempt_client.send("artifacts/c", b"z")["kept"] == 1


def test_artifacts_that_go_elsewhere_are_outputs_here(api: Api) -> None:
    location = "s3://bucket/elsewhere"
    body = {"name": "elsewhere", "artifact_location": location}
    assert api.ask("POST", "/api/2.0/mlflow/experiments/create", body).status == 200
    code = "from retarget import track; track.table('t', {'a': [1]})"
    job = api.submit("python", "-c", code, experiment="elsewhere")
    assert api.wait(job["name"])["state"] == "succeeded"
    outputs = api.ask("GET", f"/api/jobs/{job['name']}/outputs").json
    assert [output["path"] for output in outputs] == ["artifacts/t.json"]


def test_the_reason_of_a_refusal_is_in_the_log_of_the_job(api: Api) -> None:
    code = "from retarget import track; track.param(lr=1); track.param(lr=2)"
    job = api.wait(api.submit("python", "-c", code)["name"])
    prepare_log = api.ask("GET", f"/api/jobs/{job['name']}/logs", stream="prepare").content.decode()
    assert (
        prepare_log.count(
            "retarget: track: param 'lr' keeps its value '1'; the later '2' is ignored"
        )
        == 1
    )


def test_runs_a_script_makes_go_to_the_experiment_of_its_job(api: Api) -> None:
    code = "import os; print(os.environ['MLFLOW_EXPERIMENT_ID'], os.environ['MLFLOW_RUN_ID'])"
    job = api.wait(api.submit("python", "-c", code, experiment="mine")["name"])
    printed = api.ask("GET", f"/api/jobs/{job['name']}/logs").content.decode().split()
    assert printed == [run_of(api, job)["info"]["experiment_id"], job["id"]]


def test_reading_many_lines_keeps_their_order() -> None:
    content = lines({"p": {"a": "1"}}, {"g": {"t": "x"}}, {"p": {"a": "2"}}, {"g": {"t": "y"}})
    logged, refused = parse_lines(content)
    assert (logged.params, logged.tags, refused) == ([("a", "1"), ("a", "2")], {"t": "y"}, [])


@pytest.mark.parametrize(
    "line",
    [
        b'{"m":{"a":1' + b"0" * 400 + b'},"s":0,"t":0}',
        b'{"m":{"a":1},"s":' + b"9" * 5000 + b',"t":0}',
        b'{"m":{"a":[1]},"s":0,"t":0}',
        b'{"m":' + b"[" * 5000,
        b"\xff\xfe",
        b"5",
        b'{"a":{"type":"table"}}',
    ],
)
def test_a_damaged_line_is_ignored_and_the_others_are_stored(line: bytes) -> None:
    good = b'{"m":{"a":1},"s":0,"t":0}'
    logged, refused = parse_lines(b"\n".join([good, line, good, b""]))
    assert len(logged.metrics) == 2
    assert len(refused) == 1
    assert refused[0].startswith("a damaged line is ignored: ")
