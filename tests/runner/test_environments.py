"""Environments are built for real, once, and shared; what goes wrong is said in uv's words."""

import fcntl
import os
import time
from pathlib import Path

import pytest

from retarget.core.environments import Environment
from retarget.runner import environments
from retarget.testing import Bench
from tests.runner.workshop import PATIENCE, Work, Workshop, packages, wheel

_SHOW = "import sys, tinypkg; print(tinypkg.VERSION, sys.prefix)"


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    wheel(tmp_path / "wheels")
    return tmp_path / "wheels"


@pytest.fixture
def slow_uv(workshop: Workshop, tmp_path: Path) -> Path:
    """A uv that does nothing for long, with a child, while the file it returns is there."""
    stop = tmp_path / "slow"
    stop.touch()
    script = f'#!/bin/sh\nif [ -e {stop} ] && [ "$1" = pip ]; then\n'
    script += '  sleep 60 &\n  echo "BUSY $$ $!."\n  wait\nfi\n'
    script += f'exec {workshop.node["uv"]} "$@"\n'
    (tmp_path / "uv").write_text(script)
    (tmp_path / "uv").chmod(0o755)
    workshop.node["uv"] = str(tmp_path / "uv")
    return stop


def test_packages_are_there_and_the_interpreter_is_the_environments(
    workshop: Workshop, wheels: Path
) -> None:
    heard = workshop.run("python", "-c", _SHOW, environment=packages(wheels, "tinypkg==1.0"))
    assert heard.finished["outcome"] == "succeeded", heard.finished
    version, prefix = heard.stream().decode().split()
    assert version == "1.0"
    assert prefix.startswith(str(workshop.root / "environments"))
    assert b"tinypkg==1.0" in heard.stream("prepare")


def test_programs_in_a_shell_are_the_environments_too(workshop: Workshop, wheels: Path) -> None:
    wanted = packages(wheels, "tinypkg")
    script = 'python -c "import tinypkg, sys; print(sys.prefix)"; echo $VIRTUAL_ENV'
    inside, named = workshop.run("sh", "-c", script, environment=wanted).stream().split()
    assert inside == named


def test_the_next_job_uses_what_the_first_built(workshop: Workshop, wheels: Path) -> None:
    wanted = packages(wheels, "tinypkg")
    first = workshop.run("python", "-c", _SHOW, environment=wanted)
    second = workshop.run("python", "-c", _SHOW, environment=wanted)
    assert first.stream() == second.stream() != b""
    assert [_reused(heard.events) for heard in (first, second)] == [[False], [True]]
    assert second.stream("prepare") == b""


def test_two_jobs_at_once_build_it_once(workshop: Workshop, wheels: Path) -> None:
    wanted = packages(wheels, "tinypkg")
    works = [workshop.launch("python", "-c", _SHOW, environment=wanted).start() for _ in range(3)]
    heard = [work.finish() for work in works]
    assert len({each.stream() for each in heard}) == 1
    built = [each for each in heard if b": building\n" in each.stream("prepare")]
    assert len(built) == 1


def test_one_that_waits_for_another_says_so_and_can_be_canceled(
    workshop: Workshop, wheels: Path, slow_uv: Path
) -> None:
    wanted = packages(wheels, "tinypkg")
    builder = workshop.launch("python", "-c", _SHOW, environment=wanted).start()
    builder.hear("prepare", b"BUSY")
    waiting = workshop.launch("python", "-c", _SHOW, environment=wanted).start()
    waiting.hear("prepare", b"another job is building it")
    waiting.cancel()
    assert waiting.finish().finished["outcome"] == "canceled"
    builder.cancel()
    builder.finish()


def test_cancel_ends_a_build_with_its_children_and_leaves_nothing(
    workshop: Workshop, wheels: Path, slow_uv: Path
) -> None:
    work = workshop.launch("true", environment=packages(wheels, "tinypkg")).start()
    pids = _busy(work)
    assert all(Bench().alive(pid) for pid in pids)
    work.cancel()
    heard = work.finish()
    assert heard.finished["outcome"] == "canceled"
    assert "starting" not in heard.kinds
    assert not any(Bench().alive(pid) for pid in pids)
    assert workshop.environments() == []


def test_a_killed_build_is_done_again(workshop: Workshop, wheels: Path, slow_uv: Path) -> None:
    """The build goes on without its runner, and keeps others out, until that is taken up."""
    wanted = packages(wheels, "tinypkg")
    work = workshop.launch("python", "-c", _SHOW, environment=wanted).start()
    pids = _busy(work)
    work.kill()
    slow_uv.unlink()
    other = workshop.launch("python", "-c", _SHOW, environment=wanted).start()
    other.hear("prepare", b"another job is building it")
    time.sleep(0.3)
    assert b": building\n" not in other.heard.stream("prepare")
    assert work.start().finish().finished["outcome"] == "succeeded"
    assert other.finish().finished["outcome"] == "succeeded"
    assert not any(Bench().alive(pid) for pid in pids)
    assert work.heard.stream() == other.heard.stream()


def test_what_cannot_be_resolved_fails_the_job_with_uvs_own_sentence(
    workshop: Workshop, wheels: Path
) -> None:
    heard = workshop.run("true", environment=packages(wheels, "tinypkg==2.0"))
    assert heard.finished["outcome"] == "failed"
    reason = heard.finished["reason"]
    assert reason.startswith("environment: Because there is no version of tinypkg==2.0 and you")
    assert reason.endswith("we can conclude that your requirements are unsatisfiable.")
    assert b"No solution found" in heard.stream("prepare")
    assert "starting" not in heard.kinds
    assert workshop.environments() == []


def test_a_failed_build_holds_up_no_other_job(workshop: Workshop, wheels: Path) -> None:
    """Even when its runner has to wait for the server to come back."""
    wanted = packages(wheels, "tinypkg==2.0")
    workshop.receiver.refuses.add("streams")
    first = workshop.launch("true", environment=wanted).start()
    has_exited(first)
    second = workshop.launch("true", environment=wanted).start()
    has_exited(second)
    workshop.receiver.refuses.clear()
    assert first.finish().finished["reason"] == second.finish().finished["reason"]


def has_exited(work: Work) -> None:
    """Wait until it is decided, whether anybody could be told or not."""
    journal, deadline = work.folder / "events.jsonl", time.monotonic() + PATIENCE
    while not journal.exists() or '"exited"' not in journal.read_text():
        assert time.monotonic() < deadline, (work.folder / "runner.log").read_text()
        time.sleep(0.05)


def test_a_version_of_python_that_is_not_there_is_said(workshop: Workshop) -> None:
    heard = workshop.run("true", environment=Environment(kind="system", python="3.99"))
    assert heard.finished["outcome"] == "failed"
    assert "3.99" in heard.finished["reason"]


def test_a_machine_without_uv_says_so(workshop: Workshop) -> None:
    workshop.node["uv"] = None
    heard = workshop.run("true", environment=Environment(kind="system"))
    assert "no uv on this machine" in heard.finished["reason"]


def test_a_lock_that_vanishes_while_it_is_taken_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever removes an environment removes its lock, and another may have opened it just then."""
    path = tmp_path / "a.lock"
    flock, calls = fcntl.flock, list[int]()

    def flock_and_lose(descriptor: int, kind: int) -> None:
        flock(descriptor, kind)
        if not calls:
            path.unlink()
        calls.append(kind)

    monkeypatch.setattr(fcntl, "flock", flock_and_lose)
    lock = environments._lock(str(path), fcntl.LOCK_EX)  # pyright: ignore[reportPrivateUsage]
    assert lock is not None
    assert os.path.samestat(os.fstat(lock), path.stat())
    os.close(lock)


def _busy(work: Work) -> list[int]:
    """Wait until the slow uv is at it, and return its pid and its child's."""
    work.hear("prepare", b".\n")
    said = work.heard.stream("prepare").decode()
    return [int(word) for word in said.partition("BUSY ")[2].partition(".")[0].split()]


def _reused(events: list[dict[str, object]]) -> list[object]:
    return [event["reused"] for event in events if event["kind"] == "environment"]
