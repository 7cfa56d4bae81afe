"""The ssh target keeps the contract on real hosts, and says exactly why one cannot be used."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retarget.core.driver import Handle, Launch
from retarget.drivers import connect as connect_to
from retarget.drivers import ssh
from retarget.testing import Connect, DriverContract
from tests.testbeds.hosts import Host


class OnAHost:
    """Where the launches of these tests live, and how they are found there."""

    host: Host
    root: str

    @pytest.fixture
    def connect(self, lab: list[Host], tmp_path: Path) -> Iterator[Connect]:
        self.host = lab[0]
        self.root = f"~/{tmp_path.name}"
        config = {
            "address": f"{self.host.user}@{self.host.address}",
            "key": self.host.key.read_text(),
            "root": self.root,
            "linger": 30,
        }
        yield lambda: connect_to("ssh", config)
        _release(config)

    @pytest.fixture
    def connect_nowhere(self) -> Connect:
        return lambda: connect_to("ssh", {"address": "127.0.0.1", "port": 9, "timeout": 5})

    def runner_pids(self, handle: Handle) -> list[int]:
        key = handle.partition("@")[0]
        return [
            pid
            for pid, words in self.host.processes()
            if "run" in words and any(word.endswith(f"/launches/{key}") for word in words)
        ]

    def processes_of(self, launch: Launch) -> list[int]:
        mark = f"RETARGET_LAUNCH={launch.key}".encode()
        return [
            pid
            for pid, _ in self.host.processes()
            if mark in _read(Path(f"/proc/{pid}/environ")).split(b"\0")
        ]

    def alive(self, pid: int) -> bool:
        """Tell whether a process of the host is there; `pid` is what the host calls it."""
        return any(_pid_inside(each) == pid for each, _ in self.host.processes())

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def traces(self, handle: Handle) -> list[Path]:
        key = handle.partition("@")[0]
        folder = self.host.home / self.root.removeprefix("~/")
        return [path for path in folder.rglob("*") if key in path.name]


class TestSsh(OnAHost, DriverContract):
    pass


def _release(config: dict[str, Any]) -> None:
    driver = connect_to("ssh", config)
    assert isinstance(driver, ssh.Driver)
    driver.release()


def _pid_inside(pid: int) -> int:
    for line in _read(Path(f"/proc/{pid}/status")).decode().splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return 0


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
