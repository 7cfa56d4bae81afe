"""What has been started is found, whatever it does to get away; and nothing else is."""

import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from retarget.runner import processes, supervise


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    yield child
    child.kill()
    child.wait()


def test_one_that_hops_away_while_it_is_looked_for_is_still_found(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that forks and leaves at the wrong instant is in no list of processes."""
    looks = iter([list[processes.Process](), _only(child)])
    monkeypatch.setattr(supervise, "descendants", lambda: next(looks))
    found = supervise._everything_below()  # pyright: ignore[reportPrivateUsage]
    assert [process.pid for process in found] == [child.pid]


def test_a_process_is_known_by_its_start_too(child: subprocess.Popen[bytes]) -> None:
    [seen] = _only(child)
    assert seen.session == child.pid
    ours = processes.leftovers("no-such-key", [(child.pid, seen.started)])
    assert [process.pid for process in ours] == [child.pid]
    assert processes.leftovers("no-such-key", [(child.pid, seen.started + "1")]) == []


@pytest.mark.parametrize("pid", [-1, 0, 1])
def test_what_belongs_to_the_system_is_never_a_leftover(pid: int) -> None:
    """Sessions 0 and 1 are the system's own, whatever a journal says."""
    assert processes.leftovers("no-such-key", [(pid, "")]) == []


def test_a_zombie_is_nobody(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    deadline = time.monotonic() + 10
    while _only(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(("grace", "end"), [(5, signal.SIGTERM), (0, signal.SIGKILL)])
def test_ending_is_asked_for_first_and_then_made(
    child: subprocess.Popen[bytes], grace: float, end: int
) -> None:
    processes.end(lambda: _only(child), grace, child.poll)
    assert child.wait(5) == -end


def _only(child: subprocess.Popen[bytes]) -> list[processes.Process]:
    seen = processes.look(child.pid)
    return [seen] if seen else []
