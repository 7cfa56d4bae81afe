"""The processes of a launch are found whatever they do to escape, and no others are."""

import os
import pty
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from retarget.runner import processes, supervise
from tests.runner.harness import RunnerHarness


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    yield child
    child.kill()
    child.wait()


def test_a_process_that_forks_and_exits_during_the_listing_is_still_found(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that does so at the wrong instant is in no listing."""
    listings = iter([list[processes.Process](), _only(child)])
    monkeypatch.setattr(supervise, "descendants", lambda: next(listings))
    listed = supervise._all_descendants()  # pyright: ignore[reportPrivateUsage]
    assert [process.pid for process in listed] == [child.pid]


def test_a_process_is_identified_by_its_start_time_too(child: subprocess.Popen[bytes]) -> None:
    [process] = _only(child)
    assert process.session == child.pid
    leftovers = processes.leftovers("no-such-key", [(child.pid, process.started)])
    assert [process.pid for process in leftovers] == [child.pid]
    assert processes.leftovers("no-such-key", [(child.pid, process.started + "1")]) == []


@pytest.mark.parametrize("pid", [-1, 0, 1])
def test_what_belongs_to_the_system_is_never_a_leftover(pid: int) -> None:
    """Sessions 0 and 1 are the system's own, whatever a journal says."""
    assert processes.leftovers("no-such-key", [(pid, "")]) == []


def test_a_zombie_is_not_a_process(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    deadline = time.monotonic() + 200
    while _only(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(("grace_seconds", "end"), [(5, signal.SIGTERM), (0, signal.SIGKILL)])
def test_a_process_gets_term_and_after_the_grace_kill(
    child: subprocess.Popen[bytes], grace_seconds: float, end: int
) -> None:
    processes.end(lambda: _only(child), grace_seconds, child.poll)
    assert child.wait(200) == -end


def _only(child: subprocess.Popen[bytes]) -> list[processes.Process]:
    process = processes.read_process(child.pid)
    return [process] if process else []


ESCAPES = {
    "it writes to the log": "env -i setsid sleep 600 &",
    "it works in the folder": "env -i setsid sleep 600 < /dev/null > /dev/null 2>&1 &",
    "it writes an output": "cd /; env -i setsid sleep 600 > $OLDPWD/outputs/x 2>/dev/null &",
}


@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES.keys())
def test_a_daemon_with_a_cleared_environment_is_found_by_the_files_it_uses(
    harness: RunnerHarness, escape: str
) -> None:
    launch = harness.launch("sh", "-c", f"{escape} echo $!; exec sleep 600").start()
    pid = int(launch.wait_for_output("output", b"\n").stream())
    launch.kill()
    launch.start().finish()
    assert processes.read_process(pid) is None


def test_who_looks_at_the_files_of_a_launch_is_no_leftover(tmp_path: Path) -> None:
    (tmp_path / "streams").mkdir()
    log = tmp_path / "streams" / "output"
    log.write_text("a line\n")
    reader = subprocess.Popen(["tail", "-f", log], stdout=subprocess.DEVNULL)
    shell, terminal = pty.fork()
    if shell == 0:
        os.chdir(tmp_path / "streams")
        os.execvp("cat", ["cat"])
    try:
        while os.readlink(f"/proc/{shell}/cwd") != str(tmp_path / "streams"):
            time.sleep(0.01)
        assert processes.leftovers("no-such-key", [], str(tmp_path)) == []
    finally:
        os.close(terminal)
        os.kill(shell, signal.SIGKILL)
        os.waitpid(shell, 0)
        reader.kill()
        reader.wait()
