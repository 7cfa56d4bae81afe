"""Power cuts at random moments: no script starts twice, nothing is unreadable, all jobs end."""

import json
import os
import random
import shutil
import time
import urllib.error
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

import pytest

from retarget.core.snapshots import digest_bytes
from tests.chaos.chaos_server import ChaosServer, Submitted, eventually
from tests.chaos.conftest import ChaosServers
from tests.chaos.power_cut import PowerServer, can_build
from tests.chaos.processes import kill_together

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(  # CI must have one
        not can_build() and not os.environ.get("CI"),
        reason="no C compiler to build the recorder with",
    ),
]

KINDS = ["quick", "quick", "quick", "outputs", "bar", "fails"]
JOBS = 3
_FINAL = {"succeeded", "failed", "canceled"}


@pytest.fixture
def power_server(
    chaos_servers: ChaosServers, request: pytest.FixtureRequest
) -> Iterator[PowerServer]:
    yield from chaos_servers.used("power", PowerServer, request)


def test_a_power_cut(power_server: PowerServer, seed: int) -> None:
    rng = random.Random(seed)
    jobs = [_submit(power_server, rng) for _ in range(JOBS)]
    time.sleep(rng.choice([0, 0.05, 0.2, 0.5, 1, 2]) * rng.random())
    lost = power_server.cut_power(rng)
    power_server.start()
    for job in jobs:
        _check(power_server, job, "\n".join(lost))
    assert not (errors := power_server.logged_errors()), errors


def test_a_journal_that_lost_everything_starts_nothing(fresh: ChaosServer) -> None:
    """The server knows that the script had started, so its runner learns that."""
    fresh.start()
    job = fresh.submit("hold")
    fresh.wait_for(job, "running")
    folder = fresh.launch_of(job)
    assert folder is not None
    kill_together(fresh.processes())
    fresh.reap()
    (folder / "events.jsonl").write_bytes(b"")
    fresh.start()
    view = fresh.wait(job)
    assert "the host lost part of the journal of this attempt" in view["reason"]
    assert (view["state"], fresh.starts(job)) == ("failed", 1)


def test_a_result_that_the_database_lost_is_reported_again(fresh: ChaosServer) -> None:
    fresh.start(RETARGET_POLL_SECONDS="60")  # so that it does not remove the folder at once
    job = fresh.submit("hold")
    fresh.wait_for(job, "running")
    before = {path: path.read_bytes() for path in fresh.home.root.glob("retarget.db*")}
    folder = fresh.launch_of(job)
    assert folder is not None
    kept = fresh.root / "kept"
    fresh.open_gate(job)
    eventually(lambda: _copy_done(folder, kept), "the runner is done")
    assert fresh.wait(job)["state"] == "succeeded"
    kill_together(fresh.processes())
    fresh.reap()
    for path, content in before.items():
        path.write_bytes(content)
    if not folder.exists():  # it was synced, and removed: a power cut would not have come between
        shutil.copytree(kept, folder)
    fresh.start()
    view = fresh.wait(job)
    assert (view["state"], fresh.starts(job)) == ("succeeded", 1), view


def _copy_done(folder: Path, kept: Path) -> bool:
    """Copy the folder of a launch once its runner is done."""
    if (folder / "done").exists() and not kept.exists():
        with suppress(OSError):
            shutil.copytree(folder, kept, ignore=shutil.ignore_patterns("stop"))
            return True
        shutil.rmtree(kept, ignore_errors=True)
    return kept.exists()


def _submit(power_server: PowerServer, rng: random.Random) -> Submitted:
    return power_server.submit(
        rng.choice(KINDS), retries=rng.choice([0, 0, 1]), allow_pip=True, cpus=0.1
    )


def _check(power_server: PowerServer, job: Submitted, lost: str) -> None:
    launches = power_server.started_launches(job)
    assert len(launches) == len(set(launches)), f"{job.name} started a launch twice\n{lost}"
    if not _is_known(power_server, job):  # it was submitted a moment before the cut
        assert len(launches) <= job.retries + 1, f"{job.name} started too often\n{lost}"
        return
    view = power_server.wait(job)
    story = f"{json.dumps(view, indent=1)}\n{lost}"
    history = power_server.call("GET", f"/api/jobs/{job.id}/history")
    assert [row["state"] for row in history if row["state"] in _FINAL] == [view["state"]], story
    assert power_server.starts(job) <= len(view["attempts"]) <= job.retries + 1, story
    assert "\n" not in view["reason"], story
    for attempt in view["attempts"]:
        power_server.log(job, attempt["number"])
    if view["state"] == "succeeded":
        _check_outputs(power_server, job, story)


def _is_known(power_server: PowerServer, job: Submitted) -> bool:
    try:
        power_server.show(job)
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.NOT_FOUND:
            raise
        return False
    return True


def _check_outputs(power_server: PowerServer, job: Submitted, story: str) -> None:
    for output in power_server.call("GET", f"/api/jobs/{job.id}/outputs"):
        path = f"/api/jobs/{job.id}/outputs/{quote(output['path'])}"
        content = power_server.fetch("GET", path)
        assert digest_bytes(content) == output["digest"], f"{output['path']}\n{story}"
