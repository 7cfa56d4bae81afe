"""The container target keeps the contract, on Docker and on Podman."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retarget.core.driver import Driver, Handle, Launch, Phase, Screens
from retarget.core.environments import Environment
from retarget.core.errors import Invalid, LaunchRejected, NotReady, TargetUnreachable
from retarget.drivers import connect as connect_to
from retarget.drivers import container
from retarget.testing import Bench, Connect, DriverContract, Receiver
from tests.testbeds.engines import IMAGE, Engine

# The SDK leaves a socket open for each time that an engine does not answer.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"
)


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


@pytest.mark.targets
class TestSentences(InContainers, Bench):
    """What goes wrong with containers is said as what it is."""

    @pytest.fixture
    def connect(self, docker: Engine) -> Iterator[Connect]:
        yield from self.connected(docker)

    def test_what_the_engine_has_is_told(self, driver: Driver) -> None:
        facts = driver.check()
        assert facts.nodes[0].cpus == os.cpu_count()
        assert facts.details["engine"].startswith("docker ")

    def test_too_much_memory_is_told_with_the_limit(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        greedy = "data = bytearray(300 << 20); print(len(data))"
        launch = self.launch_of(receiver, "python", "-c", greedy, memory=64 << 20)
        finished = self.run(driver, receiver, launch).finished
        assert finished["outcome"] == "failed"
        assert finished["reason"] == "out of memory: limit 64 MiB"

    def test_cores_are_held_to(self, driver: Driver, receiver: Receiver) -> None:
        spin = (
            "import time; a, b = time.perf_counter(), time.process_time()\n"
            "while time.perf_counter() < a + 2: pass\n"
            "print(round(time.process_time() - b, 2))"
        )
        launch = self.launch_of(receiver, "python", "-c", spin, cpus=0.5)
        used = float(self.run(driver, receiver, launch).stream())
        assert used < 1.5  # of two seconds, on a machine that does nothing else

    def test_an_image_that_is_nowhere_is_named(self, connect: Connect, receiver: Receiver) -> None:
        launch = self.launch_of(
            receiver, "true", environment={"kind": "image", "image": "localhost:1/no/image:1"}
        )
        self.started.remove(launch)
        said: list[str] = []

        def rejected() -> bool:
            try:
                connect().launch(launch)
            except (NotReady, LaunchRejected) as error:
                said.append(str(error))
            return "cannot be had" in said[-1]

        self.see(rejected)
        assert "image 'localhost:1/no/image:1' is being pulled" in said[0]
        assert "image 'localhost:1/no/image:1' cannot be had" in said[-1]

    def test_an_image_without_python_is_named(self, receiver: Receiver, docker: Engine) -> None:
        driver = connect_to(
            "container", {"engine": docker.url, "image": IMAGE, "python": "python9"}
        )
        launch = self.launch_of(receiver, "true")
        self.started.remove(launch)
        with pytest.raises(LaunchRejected, match="has no Python for the runner"):
            driver.launch(launch)
        assert self.traces(Handle(launch.key)) == []

    def test_an_engine_that_is_down_is_named(self, driver: Driver, docker: Engine) -> None:
        driver.check()
        docker.stop()
        with pytest.raises(TargetUnreachable, match=r"engine at unix:.* does not answer"):
            driver.check()
        seen = driver.poll([Handle("anything")])[0]
        assert seen.phase is Phase.SILENT
        assert "does not answer" in seen.reason
        docker.start()
        assert driver.check().nodes
        gc.collect()  # here, where it is known why something was left open

    @pytest.mark.parametrize("network", ["host", "none", "bridge"])
    def test_a_server_on_loopback_is_reached_from_every_network(
        self, receiver: Receiver, docker: Engine, network: str
    ) -> None:
        driver = connect_to("container", {"engine": docker.url, "image": IMAGE, "network": network})
        heard = self.run_shell(driver, receiver, "echo here")
        assert heard.stream() == b"here\n"

    def test_a_job_in_an_image_of_its_own(self, driver: Driver, receiver: Receiver) -> None:
        heard = self.run_shell(
            driver, receiver, "echo $0", environment={"kind": "image", "image": IMAGE}
        )
        assert heard.finished["outcome"] == "succeeded"

    def test_a_job_without_an_image_is_refused(self, docker: Engine) -> None:
        driver = connect_to("container", {"engine": docker.url})
        assert isinstance(driver, Screens)
        with pytest.raises(Invalid, match="image is missing"):
            driver.screen(Environment())

    def test_what_ssh_says_of_an_engine_far_away_is_told(self) -> None:
        driver = connect_to("container", {"engine": "ssh://nobody@127.0.0.1:1"})
        with pytest.raises(TargetUnreachable, match=r"127\.0\.0\.1 port 1: Connection refused"):
            driver.check()

    def test_an_engine_must_have_an_address(self) -> None:
        with pytest.raises(Invalid, match=r"is not unix:///PATH, tcp://HOST:PORT"):
            connect_to("container", {"engine": "docker"})
