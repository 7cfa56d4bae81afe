"""Kills at random moments: `make chaos N=200`. A seed tells all of a round's choices."""

import random
import time
from typing import Any

import pytest

from tests.chaos.arena import Arena, Part, Submitted
from tests.chaos.places import OnHosts
from tests.chaos.test_hosts import BREAKS
from tests.chaos.truth import check

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
    ("family", {}),
    ("family", {"retries": 1}),
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


PLACES = ["arena"] * 5 + ["on_hosts"] * 2 + ["on_docker"]


def test_a_round(seed: int, request: pytest.FixtureRequest) -> None:
    chance = random.Random(seed)
    arena: Arena = request.getfixturevalue(chance.choice(PLACES))
    count = 1 if isinstance(arena, OnHosts) else chance.choice([1, 1, 1, 2, 3])
    jobs = [_submit(arena, chance) for _ in range(count)]
    for _ in range(chance.choice([1, 1, 2])):
        job = chance.choice(jobs)
        _await_moment(arena, chance, job)
        _disturb(arena, chance, job)
    for job in jobs:
        arena.wait(job)
    for job in jobs:
        check(arena, job)
    arena.settle()


def _submit(arena: Arena, chance: random.Random) -> Submitted:
    kind, options = chance.choice(JOBS)
    return arena.submit(kind, files=chance.choice([0, 0, 0, 3000]), **options)


def _await_moment(arena: Arena, chance: random.Random, job: Submitted) -> None:
    """Let some time pass: any, or a little more than up to a step of the job's runner."""
    step = chance.choice(["", "preparing", "starting", "started", "clearing", "exited", "finished"])
    pause = chance.expovariate(1 / (0.01 if step else chance.choice([0.05, 0.3])))
    deadline = time.monotonic() + 2
    while step and not arena.has_event(job, step) and time.monotonic() < deadline:
        if arena.show(job)["ended"]:
            break
        time.sleep(0.002)
    time.sleep(pause)


def _disturb(arena: Arena, chance: random.Random, job: Submitted) -> None:
    parts = chance.choice(PARTS)
    away = chance.choice([0.0, 0.0, chance.random() * 2])
    if chance.random() < 0.2:
        arena.cancel(job)
        time.sleep(chance.random() * 0.3)
    if isinstance(arena, OnHosts) and chance.random() < 0.7:
        chance.choice(list(BREAKS.values()))(arena, job)
        return
    arena.kill(parts, job)
    if "server" in parts:
        time.sleep(away)
        arena.start()
