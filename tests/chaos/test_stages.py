"""The server, the runner and the script, killed at every stage of a job, singly and together."""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest

from retarget.runner.package import build_zipapp
from tests.chaos.arena import Arena, Part, Submitted, eventually
from tests.chaos.packages import Slow
from tests.chaos.processes import Process, kill_together
from tests.chaos.truth import KILLED, LOST, check

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
def test_queued(arena: Arena, parts: tuple[Part, ...]) -> None:
    """There is nothing of it yet but its row: what it waits behind is killed."""
    ahead = arena.submit("hold", cpus=_all_cpus())
    arena.wait_for(ahead, "running")
    job = arena.submit("quick", cpus=_all_cpus())
    eventually(lambda: f"held by {ahead.name}" in arena.show(job)["reason"], "it waits")
    _kill(arena, parts, ahead)
    _open_gate_of_a_survivor(arena, parts, ahead)
    _ends(arena, ahead, *_killed_while_running(parts))
    _ends(arena, job, "succeeded")
    arena.settle()


@kills
def test_launching(arena: Arena, parts: tuple[Part, ...]) -> None:
    """Its runner is there and has not said a word; the script is not."""
    with _mute_runners(arena) as let_go:
        job = arena.submit("quick")
        eventually(lambda: arena.runners(job), "a runner is there")
        assert arena.show(job)["state"] == "launching"
        _kill(arena, parts, job, scripts=[])
        let_go()
        _ends(arena, job, "succeeded")
    arena.settle()


@kills
def test_preparing(arena: Arena, parts: tuple[Part, ...]) -> None:
    """Its environment is being built: in the script's place, the build is killed."""
    slow = Slow(arena.root / "packages")
    job = arena.submit("quick", environment=slow.environment)
    eventually(lambda: slow.is_building, "its environment is being built")
    arena.wait_for(job, "preparing")
    builders = arena.builders(job)
    _kill(arena, parts, job, scripts=builders)
    if parts != ("server",):
        eventually(lambda: not arena.alive(builders), "nobody builds behind a dead runner's back")
    slow.open_gate()
    if "script" in parts and "runner" not in parts:
        view = arena.wait(job)
        assert (view["state"], view["exit_code"]) == ("failed", None)
        assert view["reason"].startswith("environment: ")
        assert KILLED in view["reason"]
    else:
        _ends(arena, job, "succeeded")
    arena.settle()


@kills
def test_running(arena: Arena, parts: tuple[Part, ...]) -> None:
    job = arena.submit("hold")
    arena.wait_for(job, "running")
    _kill(arena, parts, job)
    _open_gate_of_a_survivor(arena, parts, job)
    _ends(arena, job, *_killed_while_running(parts))
    arena.settle()


@kills
def test_running_with_a_retry_left(arena: Arena, parts: tuple[Part, ...]) -> None:
    job = arena.submit("hold", retries=1)
    arena.wait_for(job, "running")
    eventually(lambda: arena.starts(job) == 1, "the script is there")
    _kill(arena, parts, job)
    tries = 1 if parts == ("server",) else 2
    eventually(lambda: arena.starts(job) == tries, "the script is there, perhaps again")
    arena.open_gate(job)
    _ends(arena, job, "succeeded")
    assert len(arena.show(job)["attempts"]) == tries
    arena.settle()


@kills
def test_finalizing(arena: Arena, parts: tuple[Part, ...]) -> None:
    """The script has ended, and its runner cannot deliver what it left."""
    job = arena.submit("late")
    arena.wait_for(job, "running")
    arena.pause_server()
    arena.open_gate(job)
    eventually(lambda: arena.has_event(job, "exited"), "the script has ended")
    _kill(arena, parts, job, scripts=[])
    arena.continue_server()
    _ends(arena, job, "succeeded")
    arena.settle()


def _kill(
    arena: Arena,
    parts: tuple[Part, ...],
    job: Submitted,
    *,
    scripts: list[Process] | None = None,
) -> None:
    """Kill these parts at once, all of which are there, and start a server again."""
    killed = arena.kill(parts, job, scripts=scripts)
    there = [part for part in parts if part != "script" or scripts != []]
    assert {kill.part for kill in killed} == set(there)
    if "server" in parts:
        arena.start()


def _open_gate_of_a_survivor(arena: Arena, parts: tuple[Part, ...], job: Submitted) -> None:
    """Let a script go on to its end that should; one that was killed, or lost, must not need it."""
    if parts == ("server",):
        arena.open_gate(job)


def _ends(arena: Arena, job: Submitted, state: str, reason: str = "", code: int | None = 0) -> None:
    view = arena.wait(job)
    check(arena, job)
    assert (view["state"], view["exit_code"]) == (state, code), view["reason"]
    assert reason in view["reason"]


def _killed_while_running(parts: tuple[Part, ...]) -> tuple[str, str, int | None]:
    if "runner" in parts:
        return "failed", LOST, None
    if "script" in parts:
        return "failed", KILLED, 137
    return "succeeded", "exit code 0", 0


@contextmanager
def _mute_runners(arena: Arena) -> Generator[Callable[[], object]]:
    """Have every runner that is started wait before its first step, until they are let go."""
    zipapp = build_zipapp(arena.home.target("local") / "runners")
    real, gate = arena.root / "real.pyz", arena.root / "let-go"
    gate.unlink(missing_ok=True)
    zipapp.rename(real)
    zipapp.write_text(_WAITING.format(gate=str(gate), real=str(real)))
    kill_together(arena.nurseries())  # it has loaded the real one
    try:
        yield gate.touch
    finally:
        real.rename(zipapp)


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
