"""What a runner knows of the memory it has, seen from within a real cgroup."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from retarget.runner import memory
from tests.runner.workshop import Workshop

_ROOT = Path("/sys/fs/cgroup")
_LIMIT = 96 * 2**20


@pytest.fixture
def confined() -> Iterator[Callable[[int], None]]:
    """A cgroup with little memory, and a call that puts a process there."""
    is_new = (_ROOT / "cgroup.controllers").exists()
    folder = (_ROOT if is_new else _ROOT / "memory") / f"retarget-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / ("memory.max" if is_new else "memory.limit_in_bytes")).write_text(str(_LIMIT))
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error.strerror}")

    def put(pid: int) -> None:
        (folder / "cgroup.procs").write_text(str(pid))

    yield put
    deadline = time.monotonic() + 10
    while (folder / "cgroup.procs").read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    folder.rmdir()


def test_a_script_that_takes_too_much_is_told_with_the_limit(
    workshop: Workshop, confined: Callable[[int], None]
) -> None:
    code = (
        "import time; time.sleep(1)\nheld = []\n"
        "while True: held.append(bytearray(b'x' * 5_000_000))"
    )
    work = workshop.launch("python", "-c", code).start()
    assert work.runner is not None
    confined(work.runner.pid)
    last = work.finish().finished
    assert (last["outcome"], last["exit_code"]) == ("failed", 137)
    assert last["reason"] == "out of memory: limit 96 MiB"


@pytest.mark.parametrize(
    ("size", "text"),
    [(2 << 30, "2 GiB"), (1536 << 20, "1.5 GiB"), (64 << 20, "64 MiB"), (512, "512 B")],
)
def test_amounts_are_shown_as_people_write_them(size: int, text: str) -> None:
    assert memory.sentence(size) == f"out of memory: limit {text}"


def test_without_a_limit_there_is_none_to_tell() -> None:
    assert memory.sentence(None) == "out of memory"
