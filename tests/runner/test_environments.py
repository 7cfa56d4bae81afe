"""Environments are built once and shared. Errors are reported in uv's words."""

import fcntl
import os
import sys
import time
from pathlib import Path

import pytest

from retarget.core.environments import Environment
from retarget.runner.built import take_lock
from retarget.runner.installed_pythons import search_path
from retarget.testing import ContractHarness
from tests.runner.harness import PATIENCE, HarnessLaunch, RunnerHarness, packages, wheel

_SHOW = "import tinypkg; print(tinypkg.VERSION, tinypkg.__file__)"


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    wheel(tmp_path / "wheels")
    return tmp_path / "wheels"


@pytest.fixture
def slow_uv(harness: RunnerHarness, tmp_path: Path) -> Path:
    """A uv that hangs, with a child, as long as the returned file exists."""
    stop = tmp_path / "slow"
    stop.touch()
    script = f'#!/bin/sh\nif [ -e {stop} ] && [ "$1" = pip ]; then\n'
    script += '  sleep 60 &\n  echo "BUSY $$ $!."\n  wait\nfi\n'
    script += f'exec {harness.node["uv"]} "$@"\n'
    (tmp_path / "uv").write_text(script)
    (tmp_path / "uv").chmod(0o755)
    harness.node["uv"] = str(tmp_path / "uv")
    return stop


def test_a_program_of_another_python_is_named(
    harness: RunnerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = {
        "othertest": "#!/opt/other/bin/python3.9\n",
        "shimtest": "#!/bin/sh\n# a shim of pyenv\n",
        "plain": "#!/usr/bin/env python3\nprint()\n",
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in ("othertest", "shimtest"):
        line = f"environment: {name} is not in the job's environment; using {tmp_path / name}\n"
        assert harness.run(name).stream("prepare").decode() == line
    for command in (["plain"], ["python", "-c", ""], [str(tmp_path / "othertest")]):
        assert b"is not in" not in harness.run(*command).stream("prepare")


def test_packages_are_installed_and_python_is_the_environments(
    harness: RunnerHarness, wheels: Path
) -> None:
    reports = harness.run("python", "-c", _SHOW, environment=packages(wheels, "tinypkg==1.0"))
    assert reports.finished["outcome"] == "succeeded", reports.finished
    version, path = reports.stream().decode().split()
    assert version == "1.0"
    assert path.startswith(str(harness.root / "environments"))
    assert b"tinypkg==1.0" in reports.stream("prepare")


def test_programs_in_a_shell_are_the_environments_too(harness: RunnerHarness, wheels: Path) -> None:
    environment = packages(wheels, "tinypkg")
    script = 'python -c "import tinypkg, sys; print(sys.prefix)"; echo $VIRTUAL_ENV'
    prefix, virtual_env = harness.run("sh", "-c", script, environment=environment).stream().split()
    assert prefix == virtual_env


def test_the_next_job_uses_what_the_first_built(harness: RunnerHarness, wheels: Path) -> None:
    environment = packages(wheels, "tinypkg")
    first = harness.run("python", "-c", _SHOW, environment=environment)
    second = harness.run("python", "-c", _SHOW, environment=environment)
    assert first.stream() == second.stream() != b""
    assert [_reused(reports.events) for reports in (first, second)] == [[False], [True]]
    assert second.stream("prepare") == b""


def test_two_jobs_at_once_build_it_once(harness: RunnerHarness, wheels: Path) -> None:
    environment = packages(wheels, "tinypkg")
    launches = [
        harness.launch("python", "-c", _SHOW, environment=environment).start() for _ in range(3)
    ]
    all_reports = [launch.finish() for launch in launches]
    assert len({reports.stream() for reports in all_reports}) == 1
    logs = [reports.stream("prepare") for reports in all_reports]
    assert [b": building\n" in log for log in logs].count(True) == 1


def test_a_job_that_waits_for_a_build_logs_that_and_can_be_canceled(
    harness: RunnerHarness, wheels: Path, slow_uv: Path
) -> None:
    environment = packages(wheels, "tinypkg")
    builder = harness.launch("python", "-c", _SHOW, environment=environment).start()
    builder.wait_for_output("prepare", b"BUSY")
    waiting = harness.launch("python", "-c", _SHOW, environment=environment).start()
    waiting.wait_for_output("prepare", b"another job is building it")
    waiting.cancel()
    assert waiting.finish().finished["outcome"] == "canceled"
    builder.cancel()
    builder.finish()


def test_cancel_ends_a_build_with_its_children_and_leaves_nothing(
    harness: RunnerHarness, wheels: Path, slow_uv: Path
) -> None:
    launch = harness.launch("true", environment=packages(wheels, "tinypkg")).start()
    pids = _busy(launch)
    assert all(ContractHarness().alive(pid) for pid in pids)
    launch.cancel()
    reports = launch.finish()
    assert reports.finished["outcome"] == "canceled"
    assert "starting" not in reports.kinds
    assert not any(ContractHarness().alive(pid) for pid in pids)
    assert harness.environments() == []


def test_a_killed_build_is_done_again(harness: RunnerHarness, wheels: Path, slow_uv: Path) -> None:
    """The build goes on without its runner and keeps the lock until another runner takes over."""
    environment = packages(wheels, "tinypkg")
    launch = harness.launch("python", "-c", _SHOW, environment=environment).start()
    pids = _busy(launch)
    launch.kill()
    slow_uv.unlink()
    other = harness.launch("python", "-c", _SHOW, environment=environment).start()
    other.wait_for_output("prepare", b"another job is building it")
    time.sleep(0.3)
    assert b": building\n" not in other.reports.stream("prepare")
    assert launch.start().finish().finished["outcome"] == "succeeded"
    assert other.finish().finished["outcome"] == "succeeded"
    assert not any(ContractHarness().alive(pid) for pid in pids)
    assert launch.reports.stream() == other.reports.stream()


def test_unresolvable_requirements_fail_the_job_with_uvs_message(
    harness: RunnerHarness, wheels: Path
) -> None:
    reports = harness.run("true", environment=packages(wheels, "tinypkg==2.0"))
    assert reports.finished["outcome"] == "failed"
    reason = reports.finished["reason"]
    assert reason.startswith("environment: Because there is no version of tinypkg==2.0 and you")
    assert reason.endswith("we can conclude that your requirements are unsatisfiable.")
    assert b"No solution found" in reports.stream("prepare")
    assert "starting" not in reports.kinds
    assert harness.environments() == []


def test_a_failed_build_does_not_block_other_jobs(harness: RunnerHarness, wheels: Path) -> None:
    """Even when its runner has to wait for the server to come back."""
    environment = packages(wheels, "tinypkg==2.0")
    harness.receiver.refused.add("streams")
    first = harness.launch("true", environment=environment).start()
    _wait_for_exit(first)
    second = harness.launch("true", environment=environment).start()
    _wait_for_exit(second)
    harness.receiver.refused.clear()
    assert first.finish().finished["reason"] == second.finish().finished["reason"]


def _wait_for_exit(launch: HarnessLaunch) -> None:
    """Wait until the journal has the outcome, whether it could be reported or not."""
    journal, deadline = launch.folder / "events.jsonl", time.monotonic() + PATIENCE
    while not journal.exists() or '"exited"' not in journal.read_text():
        assert time.monotonic() < deadline, (launch.folder / "runner.log").read_text()
        time.sleep(0.05)


def test_a_python_that_is_installed_is_not_downloaded(
    harness: RunnerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even if it is not on the PATH, which has a shim of pyenv instead."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    programs = tmp_path / "pyenv/versions/3.99.1/bin"
    programs.mkdir(parents=True)
    for name in ("python3", f"python{version}"):
        (programs / name).symlink_to(Path(sys.executable).resolve())
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("PATH", str(_broken_shims(tmp_path, version)))
    folders = search_path(os.environ).split(os.pathsep)
    assert folders.index(str(programs)) > 0  # after the PATH
    environment = Environment(kind="system", python=version)
    reports = harness.run("/bin/true", environment=environment)
    assert reports.finished["outcome"] == "succeeded", reports.finished


def _broken_shims(folder: Path, version: str) -> Path:
    """Return a folder with a program that fails, as the shims of pyenv do for other versions."""
    shims = folder / "shims"
    shims.mkdir()
    shim = shims / f"python{version}"
    shim.write_text("#!/bin/sh\necho pyenv: command not found >&2\nexit 127\n")
    shim.chmod(0o755)
    return shims


def test_a_missing_version_of_python_is_named(harness: RunnerHarness) -> None:
    reports = harness.run("true", environment=Environment(kind="system", python="3.99"))
    assert reports.finished["outcome"] == "failed"
    assert "3.99" in reports.finished["reason"]


def test_a_missing_uv_is_reported(harness: RunnerHarness) -> None:
    harness.node["uv"] = None
    reports = harness.run("true", environment=Environment(kind="system"))
    assert "uv was not found on this machine" in reports.finished["reason"]


def test_a_lock_that_is_removed_while_it_is_taken_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removing an environment removes its lock, which another job may have just opened."""
    path = tmp_path / "a.lock"
    flock, calls = fcntl.flock, list[int]()

    def flock_and_lose(descriptor: int, kind: int) -> None:
        flock(descriptor, kind)
        if not calls:
            path.unlink()
        calls.append(kind)

    monkeypatch.setattr(fcntl, "flock", flock_and_lose)
    lock = take_lock(str(path), fcntl.LOCK_EX)
    assert lock is not None
    assert os.path.samestat(os.fstat(lock), path.stat())
    os.close(lock)


def _busy(launch: HarnessLaunch) -> list[int]:
    """Wait until the slow uv runs, and return its pid and that of its child."""
    launch.wait_for_output("prepare", b".\n")
    log = launch.reports.stream("prepare").decode()
    return [int(pid) for pid in log.partition("BUSY ")[2].partition(".")[0].split()]


def _reused(events: list[dict[str, object]]) -> list[object]:
    return [event["reused"] for event in events if event["kind"] == "environment"]
