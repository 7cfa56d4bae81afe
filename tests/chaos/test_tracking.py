"""Kills in the middle of heavy logging: what a call has returned for is there in the end, once."""

import pytest

from tests.chaos.arena import Arena, Part, Submitted, eventually
from tests.chaos.test_random import PARTS
from tests.chaos.truth import check, points_of

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("parts", PARTS, ids="+".join)
def test_nothing_that_was_logged_is_lost_or_comes_twice(
    arena: Arena, parts: tuple[Part, ...]
) -> None:
    job = arena.submit("tracking", retries=1)
    for _ in range(2):  # the first attempt, and what follows on it
        _points_come(arena, job)
        arena.kill(parts, job)
        if "server" in parts:
            arena.start()
    _points_come(arena, job)
    arena.open_gate(job)
    arena.wait(job)
    check(arena, job)
    arena.settle()


def test_what_is_logged_while_no_server_is_there_comes_later(arena: Arena) -> None:
    job = arena.submit("tracking")
    _points_come(arena, job)
    launch = arena.launch_of(job)
    assert launch is not None
    record = arena.records / f"track.{launch.name}.0"
    arena.kill_server()
    before = record.stat().st_size
    eventually(lambda: record.stat().st_size > before + 2000, "it logs on")
    arena.open_gate(job)
    eventually(lambda: arena.has_event(job, "exited"), "the script has ended")
    arena.start()
    assert arena.wait(job)["state"] == "succeeded"
    check(arena, job)
    arena.settle()


def _points_come(arena: Arena, job: Submitted) -> None:
    """Wait until some more of the present attempt are there, unless the job has ended."""

    def come() -> bool:
        if arena.show(job)["ended"]:
            return True
        launch = arena.launch_of(job)
        metric = f"{launch.name}/0" if launch else ""
        seen.setdefault(metric, len(points_of(arena, metric)))
        return bool(metric) and len(points_of(arena, metric)) > seen[metric]

    seen: dict[str, int] = {}
    eventually(come, "its points come")
