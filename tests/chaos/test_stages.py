"""Kills the server, the runner and the script, alone and together, at every stage of a job."""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest

from retarget.runner.package import build_zipapp
from tests.chaos.chaos_server import ChaosServer, Part, Submitted, eventually
from tests.chaos.invariants import KILLED, LOST, check
from tests.chaos.packages import SlowPackage
from tests.chaos.processes import Process, kill_together

pytestmark = pytest.mark.chaos

KILLS: list[tuple[Part, ...]] = [
    ("server",),
    ("runner",),
    ("script",),
    ("server", "runner"),
    ("server", "script"),
    ("runner", "script"),
    ("server", "runner", "script"),
]
kills = pytest.mark.parametrize("parts", KILLS, ids="+".join)


@kills
def test_queued(chaos_server: ChaosServer, parts: tuple[Part, ...]) -> None:
    """A queued job has no process, so the job ahead of it is killed."""
    ahead = chaos_server.submit("hold", cpus=_all_cpus())
    chaos_server.wait_for(ahead, "running")
    job = chaos_server.submit("quick", cpus=_all_cpus())
    eventually(lambda: f"held by {ahead.name}" in chaos_server.show(job)["reason"], "it waits")
    _kill(chaos_server, parts, ahead)
    _open_gate_of_a_survivor(chaos_server, parts, ahead)
    _ends(chaos_server, ahead, *_killed_while_running(parts))
    _ends(chaos_server, job, "succeeded")
    chaos_server.settle()


@kills
def test_launching(chaos_server: ChaosServer, parts: tuple[Part, ...]) -> None:
    """Its runner has started and reported nothing; the script has not started."""
    with _waiting_runners(chaos_server) as release:
        job = chaos_server.submit("quick")
        eventually(lambda: chaos_server.runners(job), "a runner has started")
        assert chaos_server.show(job)["state"] == "launching"
        _kill(chaos_server, parts, job, scripts=[])
        release()
        _ends(chaos_server, job, "succeeded")
    chaos_server.settle()


@kills
def test_preparing(chaos_server: ChaosServer, parts: tuple[Part, ...]) -> None:
    """Its environment is being built: the build is killed instead of the script."""
    slow = SlowPackage(chaos_server.root / "packages")
    job = chaos_server.submit("quick", environment=slow.environment)
    eventually(lambda: slow.is_building, "its environment is being built")
    chaos_server.wait_for(job, "preparing")
    builders = chaos_server.builders(job)
    _kill(chaos_server, parts, job, scripts=builders)
    if parts != ("server",):
        eventually(lambda: not chaos_server.alive(builders), "no build outlives its runner")
    slow.open_gate()
    if "script" in parts and "runner" not in parts:
        view = chaos_server.wait(job)
        assert (view["state"], view["exit_code"]) == ("failed", None)
        assert view["reason"].startswith("environment: ")
        assert KILLED in view["reason"]
    else:
        _ends(chaos_server, job, "succeeded")
    chaos_server.settle()


@kills
def test_running(chaos_server: ChaosServer, parts: tuple[Part, ...]) -> None:
    job = chaos_server.submit("hold")
    chaos_server.wait_for(job, "running")
    _kill(chaos_server, parts, job)
    _open_gate_of_a_survivor(chaos_server, parts, job)
    _ends(chaos_server, job, *_killed_while_running(parts))
    chaos_server.settle()


@kills
def test_running_with_a_retry_left(chaos_server: ChaosServer, parts: tuple[Part, ...]) -> None:
    job = chaos_server.submit("hold", retries=1)
    chaos_server.wait_for(job, "running")
    eventually(lambda: chaos_server.starts(job) == 1, "the script has started")
    _kill(chaos_server, parts, job)
    tries = 1 if parts == ("server",) else 2
    eventually(lambda: chaos_server.starts(job) == tries, "the script has started, perhaps again")
    chaos_server.open_gate(job)
    _ends(chaos_server, job, "succeeded")
    assert len(chaos_server.show(job)["attempts"]) == tries
    chaos_server.settle()


@kills
def test_finalizing(chaos_server: ChaosServer, parts: tuple[Part, ...]) -> None:
    """The script has ended, and its runner cannot send the results."""
    job = chaos_server.submit("late")
    chaos_server.wait_for(job, "running")
    chaos_server.pause_server()
    chaos_server.open_gate(job)
    eventually(lambda: chaos_server.has_event(job, "exited"), "the script has ended")
    _kill(chaos_server, parts, job, scripts=[])
    chaos_server.continue_server()
    _ends(chaos_server, job, "succeeded")
    chaos_server.settle()


def _kill(
    chaos_server: ChaosServer,
    parts: tuple[Part, ...],
    job: Submitted,
    *,
    scripts: list[Process] | None = None,
) -> None:
    """Kill these parts at once, all of which must be alive, and start a server again."""
    killed = chaos_server.kill(parts, job, scripts=scripts)
    expected = [part for part in parts if part != "script" or scripts != []]
    assert {kill.part for kill in killed} == set(expected)
    if "server" in parts:
        chaos_server.start()


def _open_gate_of_a_survivor(
    chaos_server: ChaosServer, parts: tuple[Part, ...], job: Submitted
) -> None:
    """Let a script end if it survives; a killed or lost one must end without this."""
    if parts == ("server",):
        chaos_server.open_gate(job)


def _ends(
    chaos_server: ChaosServer, job: Submitted, state: str, reason: str = "", code: int | None = 0
) -> None:
    view = chaos_server.wait(job)
    check(chaos_server, job)
    assert (view["state"], view["exit_code"]) == (state, code), view["reason"]
    assert reason in view["reason"]


def _killed_while_running(parts: tuple[Part, ...]) -> tuple[str, str, int | None]:
    if "runner" in parts:
        return "failed", LOST, None
    if "script" in parts:
        return "failed", KILLED, 137
    return "succeeded", "exit code 0", 0


@contextmanager
def _waiting_runners(chaos_server: ChaosServer) -> Generator[Callable[[], object]]:
    """Make every new runner wait before its first step, until it is released."""
    zipapp = build_zipapp(chaos_server.home.target("local") / "runners")
    real, gate = chaos_server.root / "real.pyz", chaos_server.root / "release"
    gate.unlink(missing_ok=True)
    zipapp.rename(real)
    zipapp.write_text(_WAITING.format(gate=str(gate), real=str(real)))
    kill_together(chaos_server.fork_servers())  # it has loaded the real one
    try:
        yield gate.touch
    finally:
        real.rename(zipapp)
        kill_together(chaos_server.fork_servers())  # they would import from a file that is gone


_WAITING = """
import os, sys, time
sys.path.insert(0, {real!r})
from retarget.runner import __main__, supervise
real = supervise.supervise
def waiting(folder, lock=None):
    while not os.path.exists({gate!r}):
        time.sleep(0.01)
    return real(folder, lock)
supervise.supervise = waiting
sys.exit(__main__.main(sys.argv[1:]))
"""


def _all_cpus() -> int:
    return len(os.sched_getaffinity(0))
