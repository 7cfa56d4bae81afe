"""Another program has the server's port while the server is away: the job must not notice."""

import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.runner.impostor import impostor
from tests.server.conftest import Api, serving

_SCRIPT = """
import json, os, time, urllib.request
from retarget import track
def log_metric(value):
    uri, token = os.environ["MLFLOW_TRACKING_URI"], os.environ["MLFLOW_TRACKING_TOKEN"]
    row = {"run_id": os.environ["MLFLOW_RUN_ID"], "key": "direct", "value": value, "timestamp": 1}
    head = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    path = f"{uri}/api/2.0/mlflow/runs/log-metric"
    urllib.request.urlopen(urllib.request.Request(path, json.dumps(row).encode(), head)).read()
log_metric(1)
number = 0
while not os.path.exists("go"):
    print("line", number, flush=True)
    track.log(loss=number, step=number)
    number += 1
    if os.path.exists("away"):
        os.rename("away", "asking")
        log_metric(2)  # the server is away: this waits for it
    time.sleep(0.02)
print(number, "lines")
"""


@pytest.mark.parametrize("kind", ["json404", "json403", "json410", "acked"])
def test_a_job_survives_another_program_on_the_servers_port(tmp_path: Path, kind: str) -> None:
    home = tmp_path / "home"
    with serving(home) as api:
        name = api.submit("python", "-c", _SCRIPT)["name"]
        api.wait(name, "running")
        wait_for_log(api, name)
        port = urlsplit(api.url).port or 0
    (home / "servers/main/server.json").unlink(
        missing_ok=True
    )  # a signal may end a server before it does this
    (folder,) = (home / "targets/local/launches").iterdir()
    contact = json.loads((folder / "launch.json").read_text())["contact"]
    with impostor(port, kind, tmp_path / "received") as other:
        (folder / "work/away").touch()
        other.wait_for_requests(8)
    for credential in ("runner_key", "script_token"):
        assert contact.get(credential, "rtj.").encode() not in other.received
    assert b"line" not in other.received
    with serving(home) as api:
        assert urlsplit(api.url).port == port
        (folder / "work/go").touch()
        job = api.wait(name)
        assert (job["state"], job["reason"]) == ("succeeded", "the script ended with exit code 0")
        *lines, last = api.ask("GET", f"/api/jobs/{name}/logs").content.decode().splitlines()
        assert lines == [f"line {number}" for number in range(int(last.split()[0]))]
        assert len(history(api, job["id"], "loss")) == len(lines)
        assert history(api, job["id"], "direct") == [1, 2]
        api.cleared()


def wait_for_log(api: Api, name: str) -> None:
    while b"line 3\n" not in api.ask("GET", f"/api/jobs/{name}/logs").content:
        assert api.job(name)["state"] == "running"


def history(api: Api, run: str, key: str) -> list[float]:
    query = {"run_id": run, "metric_key": key}
    answer = api.ask("GET", "/api/2.0/mlflow/metrics/get-history", **query).json
    return [point["value"] for point in answer.get("metrics", [])]
