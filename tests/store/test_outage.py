"""A PostgreSQL that does not answer for a while, under a real server."""

import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.server.conftest import Api
from tests.store.conftest import Cluster


@pytest.fixture
def own_cluster(cluster: Cluster) -> Iterator[Cluster]:
    """A PostgreSQL that this test may stop: the others use another one."""
    folder = Path(tempfile.mkdtemp(prefix="rt-pg-", dir="/tmp"))
    own = Cluster(cluster.programs, folder)
    try:
        own.start()
        yield own
    finally:
        own.stop()
        shutil.rmtree(folder, ignore_errors=True)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_database_that_does_not_answer_is_503_and_two_lines_in_the_log(
    retarget: Cli, home: Path, own_cluster: Cluster
) -> None:
    own = {"RETARGET_DATABASE": own_cluster.url(own_cluster.create())}
    started = retarget("server", "start", "--json", env=own)
    assert started.returncode == 0, started.stderr
    api = Api(home, json.loads(started.stdout), (home / "token").read_text())
    job = api.submit("sh", "-c", "while test ! -e ended; do sleep 0.1; done", name="waiting")
    api.wait(job["name"], "running")
    (folder,) = (home / "targets/local/launches").iterdir()
    own_cluster.interrupt()
    try:
        threads = [threading.Thread(target=_check_refusals, args=(api,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (folder / "work/ended").touch()  # its runner reports to a server that cannot write
        refused = retarget("job", "list", env=own)
        assert (refused.returncode, "does not answer; check that it runs" in refused.stderr) == (
            1,
            True,
        )
    finally:
        own_cluster.resume()
    wait_until(lambda: api.ask("GET", "/api/jobs").status == 200)
    assert api.wait("waiting")["state"] == "succeeded"
    log = (home / "servers/main/server.log").read_text()
    assert "Traceback" not in log
    lines = [line for line in log.splitlines() if " ERROR " in line or " WARNING " in line]
    assert [line for line in lines if "requests get 503 until it does" in line] == lines[:1]
    assert [line for line in lines if "answers again" in line] == lines[1:]
    assert len(lines) == 2, log


def _check_refusals(api: Api) -> None:
    for _ in range(20):
        for answer in (
            api.ask("POST", "/api/jobs", {"command": ["true"]}),
            api.ask("GET", "/api/jobs"),
        ):
            assert (answer.status, answer.json["error"]) == (503, "DatabaseUnreachable")
            assert "does not answer; check that it runs, and try again" in answer.json["message"]
        tracking = api.ask("POST", "/api/2.0/mlflow/experiments/create", {"name": "x"})
        assert (tracking.status, tracking.json["error_code"]) == (503, "TEMPORARILY_UNAVAILABLE")
