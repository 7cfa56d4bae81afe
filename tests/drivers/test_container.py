"""The container target keeps the contract, on Docker and on Podman."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retarget.core.driver import Handle, Launch
from retarget.drivers import connect as connect_to
from retarget.drivers import container
from retarget.testing import Connect, DriverContract
from tests.testbeds.engines import IMAGE, Engine


class InContainers:
    """Where the launches of these tests live, and how they are found there."""

    engine: Engine
    patience = 60.0  # engines take their time when all processors are busy
    scripts_outlive_runners = False  # the runner is the first process of its container

    def connected(self, engine: Engine) -> Iterator[Connect]:
        self.engine = engine
        config = {"engine": engine.url, "image": IMAGE, "linger": 30}
        yield lambda: connect_to("container", config)
        _release(config)

    @pytest.fixture
    def connect_nowhere(self) -> Connect:
        return lambda: connect_to("container", {"engine": "unix:///nowhere.sock", "image": IMAGE})

    def runner_pids(self, handle: Handle) -> list[int]:
        return [
            pid
            for pid, words in self._processes()
            if "run" in words and f"/retarget/launches/{handle}" in words
        ]

    def processes_of(self, launch: Launch) -> list[int]:
        mark = f"RETARGET_LAUNCH={launch.key}".encode()
        return [
            pid
            for pid, _ in self._processes()
            if mark in _read(Path(f"/proc/{pid}/environ")).split(b"\0")
        ]

    def alive(self, pid: int) -> bool:
        """Tell whether a process of a container is there; `pid` is what that calls it."""
        return any(_pids(each)[-1:] == [pid] for each, _ in self._processes())

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def traces(self, handle: Handle) -> list[Path]:
        names = self.engine.cli("ps", "-a", "--format", "{{.Names}}").split()
        return [Path(name) for name in names if handle in name]

    def _processes(self) -> list[tuple[int, list[str]]]:
        """Return what lives in containers of the engine."""
        found: list[tuple[int, list[str]]] = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            inner = len(_pids(int(path.parent.name))) > 2  # a container's, within the engine's own
            if inner and str(self.engine.log.parent).encode() in _read(path.parent / "mountinfo"):
                said = _read(path).decode("utf-8", "replace").split("\0")
                found.append((int(path.parent.name), said))
        return found


@pytest.mark.targets
class TestDocker(InContainers, DriverContract):
    @pytest.fixture
    def connect(self, docker: Engine) -> Iterator[Connect]:
        yield from self.connected(docker)


@pytest.mark.targets
class TestPodman(InContainers, DriverContract):
    @pytest.fixture
    def connect(self, podman: Engine) -> Iterator[Connect]:
        yield from self.connected(podman)


def _release(config: dict[str, Any]) -> None:
    driver = connect_to("container", config)
    assert isinstance(driver, container.Driver)
    driver.release()


def _pids(pid: int) -> list[int]:
    """Return what a process is called, in the outermost namespace first."""
    for line in _read(Path(f"/proc/{pid}/status")).decode("utf-8", "replace").splitlines():
        if line.startswith("NSpid:"):
            return [int(word) for word in line.split()[1:]]
    return []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
