"""Kills during heavy logging: once a call has returned, its data is stored exactly once."""

import pytest

from tests.chaos.chaos_server import ChaosServer, Part, Submitted, eventually
from tests.chaos.invariants import check, points_of
from tests.chaos.test_random import PARTS

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("parts", PARTS, ids="+".join)
def test_nothing_that_was_logged_is_lost_or_stored_twice(
    chaos_server: ChaosServer, parts: tuple[Part, ...]
) -> None:
    job = chaos_server.submit("tracking", retries=1)
    for _ in range(2):  # the first attempt, and the retry
        _wait_for_points(chaos_server, job)
        chaos_server.kill(parts, job)
        if "server" in parts:
            chaos_server.start()
    _wait_for_points(chaos_server, job)
    chaos_server.open_gate(job)
    chaos_server.wait(job)
    check(chaos_server, job)
    chaos_server.settle()


def test_what_is_logged_while_no_server_runs_arrives_later(chaos_server: ChaosServer) -> None:
    job = chaos_server.submit("tracking")
    _wait_for_points(chaos_server, job)
    launch = chaos_server.launch_of(job)
    assert launch is not None
    record = chaos_server.records / f"track.{launch.name}.0"
    chaos_server.kill_server()
    before = record.stat().st_size
    eventually(lambda: record.stat().st_size > before + 2000, "it logs more")
    chaos_server.open_gate(job)
    eventually(lambda: chaos_server.has_event(job, "exited"), "the script has ended")
    chaos_server.start()
    assert chaos_server.wait(job)["state"] == "succeeded"
    check(chaos_server, job)
    chaos_server.settle()


def _wait_for_points(chaos_server: ChaosServer, job: Submitted) -> None:
    """Wait until more points of the current attempt have arrived, unless the job has ended."""

    def have_arrived() -> bool:
        if chaos_server.show(job)["ended_at"]:
            return True
        launch = chaos_server.launch_of(job)
        metric = f"{launch.name}/0" if launch else ""
        seen.setdefault(metric, len(points_of(chaos_server, metric)))
        return bool(metric) and len(points_of(chaos_server, metric)) > seen[metric]

    seen: dict[str, int] = {}
    eventually(have_arrived, "its points arrive")
