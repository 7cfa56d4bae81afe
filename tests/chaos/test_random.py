"""Kills at random moments: `make chaos N=200`. The seed determines all choices of a round."""

import random
import time
from typing import Any

import pytest

from tests.chaos.chaos_server import ChaosServer, Part, Submitted
from tests.chaos.invariants import check
from tests.chaos.remote_targets import OnHosts
from tests.chaos.test_hosts import BREAKS

pytestmark = pytest.mark.chaos

JOBS: list[tuple[str, dict[str, Any]]] = [
    ("quick", {}),
    ("fails", {}),
    ("fails", {"retries": 1}),
    ("burst", {}),
    ("bar", {}),
    ("bar", {"retries": 2}),
    ("binary", {}),
    ("quick", {"processes_per_node": 3}),
    ("bar", {"processes_per_node": 2, "retries": 1}),
    ("children", {}),
    ("children", {"retries": 1}),
    ("outputs", {}),
    ("outputs", {"retries": 1}),
    ("flaky", {"retries": 2}),
    ("tracks", {}),
    ("tracks", {"processes_per_node": 2, "retries": 1}),
]
PARTS: list[tuple[Part, ...]] = [
    ("server",),
    ("runner",),
    ("script",),
    ("server", "runner"),
    ("server", "script"),
    ("runner", "script"),
    ("server", "runner", "script"),
]


SERVERS = ["chaos_server"] * 5 + ["on_hosts"] * 2 + ["on_docker"]


def test_a_round(seed: int, request: pytest.FixtureRequest) -> None:
    rng = random.Random(seed)
    chaos_server: ChaosServer = request.getfixturevalue(rng.choice(SERVERS))
    count = 1 if isinstance(chaos_server, OnHosts) else rng.choice([1, 1, 1, 2, 3])
    jobs = [_submit(chaos_server, rng) for _ in range(count)]
    for _ in range(rng.choice([1, 1, 2])):
        job = rng.choice(jobs)
        _await_moment(chaos_server, rng, job)
        _disturb(chaos_server, rng, job)
    for job in jobs:
        chaos_server.wait(job)
    for job in jobs:
        check(chaos_server, job)
    chaos_server.settle()


def _submit(chaos_server: ChaosServer, rng: random.Random) -> Submitted:
    kind, options = rng.choice(JOBS)
    return chaos_server.submit(kind, files=rng.choice([0, 0, 0, 3000]), **options)


def _await_moment(chaos_server: ChaosServer, rng: random.Random, job: Submitted) -> None:
    """Wait for a random time, or until a step of the job's runner and a little longer."""
    step = rng.choice(["", "preparing", "starting", "started", "clearing", "exited", "finished"])
    pause = rng.expovariate(1 / (0.01 if step else rng.choice([0.05, 0.3])))
    deadline = time.monotonic() + 2
    while step and not chaos_server.has_event(job, step) and time.monotonic() < deadline:
        if chaos_server.show(job)["ended_at"]:
            break
        time.sleep(0.002)
    time.sleep(pause)


def _disturb(chaos_server: ChaosServer, rng: random.Random, job: Submitted) -> None:
    parts = rng.choice(PARTS)
    down_seconds = rng.choice([0.0, 0.0, rng.random() * 2])
    if rng.random() < 0.2:
        chaos_server.cancel(job)
        time.sleep(rng.random() * 0.3)
    if isinstance(chaos_server, OnHosts) and rng.random() < 0.7:
        rng.choice(list(BREAKS.values()))(chaos_server, job)
        return
    chaos_server.kill(parts, job)
    if "server" in parts:
        time.sleep(down_seconds)
        chaos_server.start()
