"""The harness of the driver contract: starts launches, waits for them, inspects the target."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from retarget.core.driver import Driver, Handle, Launch, Observation, Phase
from retarget.core.links import Links
from retarget.testing.receiver import Receiver, Reports

Connect = Callable[[], Driver]


class ContractHarness:
    """Fixtures and hooks. A kind whose runners are not processes of this machine overrides
    `runner_pids`, `processes_of`, `alive`, `kill` and `traces`.
    """

    timeout = 200.0  # seconds that a slow target may take to start or stop a launch
    scripts_outlive_runners = True  # False if a script ends with its runner

    @pytest.fixture
    def links(self) -> Iterator[Links]:
        """What the drivers of a test keep open between calls. It is closed after the test."""
        with closing(Links()) as links:
            yield links

    @pytest.fixture
    def connect(self) -> Connect:
        """Return a function that connects a new driver to the same target."""
        raise NotImplementedError

    @pytest.fixture
    def connect_nowhere(self) -> Connect:
        """Return a function that connects a driver to a target that does not exist."""
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
    def _clean_up(self, connect: Connect, receiver: Receiver) -> Iterator[None]:
        """Remove everything from the target, even after a failed test."""
        self.launches: list[Launch] = []
        yield
        receiver.refused.clear()
        receiver.start()
        for launch in self.launches:
            receiver.reports(launch.key).over = True
            handle = connect().launch(self.with_current_url(launch, receiver))
            connect().cancel(handle)
            self.finish(connect(), handle)
            connect().forget(handle)

    # -- hooks

    def runner_pids(self, handle: Handle) -> list[int]:
        """Return the pids of the runners of a launch."""
        return [
            pid for pid in _pids() if any(handle in argument for argument in _command_line(pid))
        ]

    def processes_of(self, launch: Launch) -> list[int]:
        """Return the pids on the target of the processes that the runner of a launch started."""
        variable = f"RETARGET_LAUNCH={launch.key}".encode()
        return [pid for pid in _pids() if variable in _read(pid, "environ").split(b"\0")]

    def alive(self, pid: int) -> bool:
        """Return whether a process of the target runs. A zombie does not."""
        state = _read(pid, "stat").rpartition(b")")[2].split()
        return bool(state) and state[0] not in (b"Z", b"X")

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def traces(self, handle: Handle) -> list[Path]:
        """Return the files of a launch on the target."""
        return []

    # -- launching

    def new_launch(self, receiver: Receiver, *command: str, **fields: Any) -> Launch:
        key = uuid4().hex
        defaults: dict[str, Any] = {
            "job": f"job{key[:8]}",
            "name": "contract",
            "grace_seconds": 1.0,
        }
        contact = {
            "url": receiver.url,
            "runner_key": receiver.runner_key,
            "script_token": receiver.script_token,
        }
        launch = Launch.model_validate(
            defaults | contact | fields | {"key": key, "command": command}
        )
        self.launches += [launch] if command else []
        return launch

    def with_current_url(self, launch: Launch, receiver: Receiver) -> Launch:
        """Return the launch with the current URL of the receiver."""
        return launch.model_copy(update={"url": receiver.url})

    def run(self, driver: Driver, receiver: Receiver, launch: Launch) -> Reports:
        """Launch, wait for the end, and return the reports."""
        self.finish(driver, driver.launch(launch))
        return receiver.reports(launch.key)

    def run_shell(self, driver: Driver, receiver: Receiver, script: str, **fields: Any) -> Reports:
        return self.run(driver, receiver, self.new_launch(receiver, "sh", "-c", script, **fields))

    # -- waiting

    def finish(self, driver: Driver, handle: Handle) -> Observation:
        return self.wait_for_phase(driver, handle, Phase.EXITED, Phase.GONE)

    def wait_for_phase(self, driver: Driver, handle: Handle, *phases: Phase) -> Observation:
        deadline = (polled_at := time.monotonic()) + self.timeout
        while (observation := driver.poll([handle])[0]).phase not in phases:
            now = time.monotonic()
            assert now < deadline, f"{observation.phase}: {driver.diagnose(handle)}"
            # a poll may be expensive: pause for as long as it took
            time.sleep(0.01 + now - polled_at)
            polled_at = time.monotonic()
        return observation

    def wait_for_reports(
        self, receiver: Receiver, launch: Launch, until: Callable[[Reports], object]
    ) -> Reports:
        return receiver.wait(launch.key, until, timeout=self.timeout)

    def wait_for_words(self, receiver: Receiver, launch: Launch, lines: int = 1) -> list[str]:
        """Wait for the first lines that the script prints, and return their words."""
        reports = self.wait_for_reports(
            receiver, launch, lambda reports: reports.stream().count(b"\n") >= lines
        )
        return reports.stream().decode().split()

    def wait_for_more_output(self, receiver: Receiver, launch: Launch) -> None:
        """Wait until more output of the script has arrived."""
        size = len(receiver.reports(launch.key).stream())
        self.wait_for_reports(receiver, launch, lambda reports: len(reports.stream()) > size)

    def wait_until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + self.timeout
        while not condition():
            assert time.monotonic() < deadline, "the condition never became true"
            time.sleep(0.01)

    def kill_runner(self, driver: Driver, handle: Handle) -> None:
        """Kill the runner with SIGKILL, and wait until the driver notices."""
        pids = self.runner_pids(handle)
        assert len(pids) == 1, f"runners: {pids}"
        self.kill(pids[0])
        self.wait_for_phase(driver, handle, Phase.DEAD)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _command_line(pid: int) -> list[str]:
    return _read(pid, "cmdline").decode("utf-8", "replace").split("\0")


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it has ended, or belongs to another user
        return b""
