"""What the clauses of the driver contract stand on: launches, patience, and eyes on the target."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from retarget.core.driver import Driver, Handle, Launch, Observation, Phase
from retarget.testing.receiver import Receiver, Reports

Connect = Callable[[], Driver]


class Bench:
    """Fixtures and hooks. A kind whose runners are not processes of this machine overrides
    `runner_pids`, `processes_of`, `alive`, `kill` and `traces`.
    """

    patience = 30.0  # seconds a slow target may take to start or stop a launch
    scripts_outlive_runners = True  # False where a runner's end is the end of all it started

    @pytest.fixture
    def connect(self) -> Connect:
        """Return a fresh driver to the same target at every call."""
        raise NotImplementedError

    @pytest.fixture
    def connect_nowhere(self) -> Connect:
        """Return a driver to a target that is not there."""
        raise NotImplementedError

    @pytest.fixture
    def driver(self, connect: Connect) -> Driver:
        return connect()

    @pytest.fixture
    def receiver(self) -> Iterator[Receiver]:
        receiver = Receiver()
        receiver.start()
        yield receiver
        receiver.stop()

    @pytest.fixture(autouse=True)
    def _end_all(self, connect: Connect, receiver: Receiver) -> Iterator[None]:
        """Leave nothing behind on the target, whatever became of the test."""
        self.started: list[Launch] = []
        yield
        receiver.refuses.clear()
        receiver.start()
        for launch in self.started:
            receiver.heard(launch.key).over = True
            handle = connect().launch(self.again(launch, receiver))
            connect().cancel(handle)
            self.finish(connect(), handle)
            connect().forget(handle)

    # -- hooks

    def runner_pids(self, handle: Handle) -> list[int]:
        """Return the runners at work on a launch."""
        return [pid for pid in _pids() if any(handle in word for word in _words(pid))]

    def processes_of(self, launch: Launch) -> list[int]:
        """Return what lives on the target of what a runner has started for a launch."""
        mark = f"RETARGET_LAUNCH={launch.key}".encode()
        return [pid for pid in _pids() if mark in _read(pid, "environ").split(b"\0")]

    def alive(self, pid: int) -> bool:
        """Tell whether a process of the target is there, and not just its zombie."""
        state = _read(pid, "stat").rpartition(b")")[2].split()
        return bool(state) and state[0] not in (b"Z", b"X")

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def traces(self, handle: Handle) -> list[Path]:
        """Return what is on the target's disk of a launch."""
        return []

    # -- doing

    def launch_of(self, receiver: Receiver, *command: str, **more: Any) -> Launch:
        key = uuid4().hex
        standard: dict[str, Any] = {"job": f"job{key[:8]}", "name": "contract", "grace": 1.0}
        contact = {"url": receiver.url, "token": receiver.token}
        launch = Launch.model_validate(standard | contact | more | {"key": key, "command": command})
        self.started += [launch] if command else []
        return launch

    def again(self, launch: Launch, receiver: Receiver) -> Launch:
        """Return the launch with where the receiver is now."""
        return launch.model_copy(update={"url": receiver.url})

    def run(self, driver: Driver, receiver: Receiver, launch: Launch) -> Reports:
        """Launch, wait for the end, and return what was reported."""
        self.finish(driver, driver.launch(launch))
        return receiver.heard(launch.key)

    def run_shell(self, driver: Driver, receiver: Receiver, script: str, **more: Any) -> Reports:
        return self.run(driver, receiver, self.launch_of(receiver, "sh", "-c", script, **more))

    # -- waiting

    def finish(self, driver: Driver, handle: Handle) -> Observation:
        return self.wait(driver, handle, Phase.EXITED, Phase.GONE)

    def wait(self, driver: Driver, handle: Handle, *phases: Phase) -> Observation:
        deadline = (asked := time.monotonic()) + self.patience
        while (seen := driver.poll([handle])[0]).phase not in phases:
            now = time.monotonic()
            assert now < deadline, f"{seen.phase}: {driver.diagnose(handle)}"
            time.sleep(0.01 + now - asked)  # a poll may be much work, and is to hold up nobody
            asked = time.monotonic()
        return seen

    def hear(
        self, receiver: Receiver, launch: Launch, until: Callable[[Reports], object]
    ) -> Reports:
        return receiver.wait(launch.key, until, patience=self.patience)

    def hear_line(self, receiver: Receiver, launch: Launch, lines: int = 1) -> list[str]:
        """Wait for the first lines of the script, and return their words."""
        heard = self.hear(receiver, launch, lambda seen: seen.stream().count(b"\n") >= lines)
        return heard.stream().decode().split()

    def hear_more(self, receiver: Receiver, launch: Launch) -> None:
        """Wait until more of the script's output has come than is here."""
        here = len(receiver.heard(launch.key).stream())
        self.hear(receiver, launch, lambda heard: len(heard.stream()) > here)

    def see(self, fact: Callable[[], object]) -> None:
        deadline = time.monotonic() + self.patience
        while not fact():
            assert time.monotonic() < deadline, "it never came to be"
            time.sleep(0.01)

    def kill_runner(self, driver: Driver, handle: Handle) -> None:
        """Kill the runner as nothing else would end it, and see that the driver notices."""
        pids = self.runner_pids(handle)
        assert len(pids) == 1, f"runners: {pids}"
        self.kill(pids[0])
        self.wait(driver, handle, Phase.DEAD)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _words(pid: int) -> list[str]:
    return _read(pid, "cmdline").decode("utf-8", "replace").split("\0")


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it has ended, or is somebody else's
        return b""
