"""The memory limit of a runner, in a real cgroup."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from retarget.runner import memory
from tests.runner.harness import RunnerHarness

_ROOT = Path("/sys/fs/cgroup")
_LIMIT = 96 * 2**20


@pytest.fixture
def confined() -> Iterator[tuple[str, ...]]:
    """A command that runs what follows it in a cgroup with little memory."""
    is_new = (_ROOT / "cgroup.controllers").exists()
    folder = (_ROOT if is_new else _ROOT / "memory") / f"retarget-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / ("memory.max" if is_new else "memory.limit_in_bytes")).write_text(str(_LIMIT))
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error.strerror}")
    yield "sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "sh"
    deadline = time.monotonic() + 200
    while (folder / "cgroup.procs").read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    folder.rmdir()


def test_a_script_that_runs_out_of_memory_is_reported_with_the_limit(
    harness: RunnerHarness, confined: tuple[str, ...]
) -> None:
    code = "held = []\nwhile True: held.append(bytearray(b'x' * 5_000_000))"
    last = harness.launch("python", "-c", code).start(*confined).finish().finished
    assert (last["outcome"], last["exit_code"]) == ("failed", 137)
    assert last["reason"] == "out of memory: limit 96 MiB"


@pytest.mark.parametrize(
    ("size", "text"),
    [(2 << 30, "2 GiB"), (1536 << 20, "1.5 GiB"), (64 << 20, "64 MiB"), (512, "512 B")],
)
def test_the_limit_is_shown_with_a_unit(size: int, text: str) -> None:
    assert memory.out_of_memory_message(size) == f"out of memory: limit {text}"


def test_without_a_limit_none_is_shown() -> None:
    assert memory.out_of_memory_message(None) == "out of memory"
