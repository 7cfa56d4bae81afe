"""The container target keeps the contract, on Docker and on Podman."""

import gc
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retarget.core.driver import Caches, Driver, Handle, Launch, Phase, Screens
from retarget.core.environments import Environment
from retarget.core.errors import Conflict, Invalid, LaunchRejected, NotReady, TargetUnreachable
from retarget.drivers import _inside, container
from retarget.drivers import connect as connect_to
from retarget.drivers._engine import client
from retarget.testing import Bench, Connect, DriverContract, Receiver
from tests.runner.workshop import wheel
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

    def test_a_command_that_is_not_in_the_image_is_named(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        launch = self.launch_of(receiver, "no-such-command")
        finished = self.run(driver, receiver, launch).finished
        assert finished["reason"] == f"there is no command 'no-such-command' in image '{IMAGE}'"
        assert finished["exit_code"] == 127

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

    def test_a_paused_container_is_canceled(
        self, driver: Driver, receiver: Receiver, docker: Engine
    ) -> None:
        launch = self.launch_of(receiver, "sh", "-c", "echo here; sleep 600")
        handle = driver.launch(launch)
        self.hear_line(receiver, launch)
        docker.cli("pause", f"retarget-{handle}")
        driver.cancel(handle)
        self.finish(driver, handle)
        assert receiver.heard(launch.key).finished["outcome"] == "canceled"

    def test_the_runner_is_made_again_when_temporary_files_were_cleaned(
        self,
        driver: Driver,
        receiver: Receiver,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        assert self.run_shell(driver, receiver, "echo one").stream() == b"one\n"
        shutil.rmtree(tmp_path)
        assert self.run_shell(driver, receiver, "echo two").stream() == b"two\n"

    def test_what_the_server_lacks_is_not_said_of_the_engine(
        self, driver: Driver, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        launch = self.launch_of(receiver, "true")
        self.started.remove(launch)
        monkeypatch.setattr(_inside, "uv_here", lambda: "/nowhere/uv")
        wanted = Environment(kind="system", pip=("six",))
        with pytest.raises(TargetUnreachable, match=r"server cannot .* '/nowhere/uv'") as raised:
            driver.launch(launch.model_copy(update={"environment": wanted}))
        assert "does not answer" not in str(raised.value)
        driver.forget(Handle(launch.key))

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

    @pytest.mark.parametrize(
        "engine", ["tcp://[::1", "ssh://h:abc", "tcp://h:99999999", "tcp://h", "tcp://"]
    )
    def test_an_address_must_be_one(self, engine: str) -> None:
        with pytest.raises(Invalid, match="is no address of an engine"):
            connect_to("container", {"engine": engine})

    @pytest.mark.parametrize("name", ["image", "network", "python"])
    @pytest.mark.parametrize("value", ["a b", "a\nb", "", "\ud800", "a\0"])
    def test_a_name_is_one_word(self, name: str, value: str) -> None:
        with pytest.raises(Invalid, match=rf"{name}: .*(one word is meant|valid string)"):
            connect_to("container", {name: value})

    def test_a_password_in_an_address_is_not_repeated(self) -> None:
        with pytest.raises(Invalid) as raised:
            connect_to("container", {"engine": "tcp://me:s3cret@h:1:2"})
        assert "s3cret" not in str(raised.value)

    def test_a_network_that_is_not_there_is_told(self, docker: Engine) -> None:
        driver = connect_to("container", {"engine": docker.url, "network": "nowhere"})
        with pytest.raises(TargetUnreachable, match=r"no network 'nowhere'; it has bridge, host"):
            driver.check()


@pytest.mark.targets
class TestImages(InContainers, Bench):
    """Images come, or do not come, for the launches that wait for them."""

    @pytest.fixture(params=["docker", "podman"])
    def connect(self, request: pytest.FixtureRequest) -> Iterator[Connect]:
        yield from self.connected(request.getfixturevalue(request.param))

    def test_a_job_is_the_user_of_its_image(
        self, driver: Driver, receiver: Receiver, tmp_path: Path
    ) -> None:
        image = self._image(tmp_path, "1235")
        code = receiver.snapshot({"word": b"code"})
        script = "id -u; cat word; id -u > outputs/who"
        heard = self.run_shell(
            driver,
            receiver,
            script,
            snapshot=code,
            environment={"kind": "image", "image": image},
        )
        assert heard.finished["outcome"] == "succeeded"
        assert heard.stream() == b"1235\ncode"
        assert heard.outputs == {"outputs/who": b"1235\n"}

    def test_a_user_does_not_mind_what_others_have_cached(
        self, driver: Driver, receiver: Receiver, tmp_path: Path
    ) -> None:
        pip = ["--no-index", "--find-links /wheels", "tinypkg"]
        code = receiver.snapshot({"word": b"code"})
        script = "import os, tinypkg; print(os.getuid(), open('word').read())"
        for user in ("0", "1235", "1236", "1235", "app"):
            image = self._image(tmp_path, user)
            launch = self.launch_of(
                receiver,
                *("python", "-c", script),
                snapshot=code,
                environment={"kind": "image", "image": image, "pip": pip},
            )
            heard = self.run(driver, receiver, launch)
            assert heard.finished["outcome"] == "succeeded", heard.stream("prepare")
            assert heard.stream().decode() == f"{user.replace('app', '1237')} code\n"

    @pytest.mark.parametrize("image", ["UPPER/x", "x:", "x@", "x@sha256:zz", "x" * 400])
    def test_what_is_no_name_of_an_image_is_refused_at_once(
        self, driver: Driver, receiver: Receiver, image: str
    ) -> None:
        launch = self.launch_of(receiver, "true", environment={"kind": "image", "image": image})
        self.started.remove(launch)
        with pytest.raises(LaunchRejected, match="is no name of an image"):
            driver.launch(launch)

    def test_the_end_of_a_pull_is_for_those_who_waited(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        wanted = {"kind": "image", "image": "localhost:1/late:1"}
        canceled = self.launch_of(receiver, "true", environment=wanted)
        self.started.remove(canceled)
        with pytest.raises(NotReady, match="is being pulled"):
            driver.launch(canceled)
        self.see(lambda: not self._coming())
        self.engine.cli("tag", IMAGE, "localhost:1/late:1")
        try:
            heard = self.run_shell(driver, receiver, "echo here", environment=wanted)
            assert heard.stream() == b"here\n"
        finally:
            self.engine.cli("rmi", "localhost:1/late:1")

    def test_an_engine_that_is_lost_in_a_build_is_tried_again(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        launch = self._built_of(receiver, "RUN sleep 600")
        self.started.remove(launch)
        self.see(lambda: "sleep 600" in self._not_ready(driver, launch))
        self.engine.kill()
        self.see(lambda: not self._coming())
        self.engine.start()
        assert "is being built" not in self._not_ready(driver, launch)

    def test_a_build_of_a_launch_that_is_over_is_begun_again_for_others(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        over, other = (self._built_of(receiver, "ENV word=kept") for _ in range(2))
        self.started.remove(over)
        receiver.heard(over.key).over = True
        assert "is being built" in self._not_ready(driver, over)
        self.see(lambda: not self._coming())
        assert "is being built" in self._not_ready(driver, other)
        self.see(lambda: not self._coming())
        assert self.run(driver, receiver, other).stream() == b"kept\n"
        driver.forget(Handle(other.key))
        self.started.remove(other)
        assert isinstance(driver, Caches)
        assert driver.remove_environment(other.environment.digest or "")

    def test_what_was_built_is_listed_and_removed_when_no_container_has_it(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        assert isinstance(driver, Caches)
        launch = self._built_of(receiver, "ENV word=listed")
        assert "is being built" in self._not_ready(driver, launch)
        self.see(lambda: not self._coming())
        self.run(driver, receiver, launch)
        digest = launch.environment.digest or ""
        built = next(each for each in driver.environments() if each["digest"] == digest)
        assert (built["how"], built["size"] > 1_000_000) == ("Dockerfile", True)
        assert time.time() - 60 < built["built"] <= built["built"] + built["seconds"] < time.time()
        with pytest.raises(Conflict, match="is used by a container"):
            driver.remove_environment(digest)
        driver.forget(Handle(launch.key))
        self.started.remove(launch)
        assert driver.remove_environment(digest)
        assert digest not in [each["digest"] for each in driver.environments()]
        assert not driver.remove_environment(digest)

    def _built_of(self, receiver: Receiver, line: str) -> Launch:
        """Return a launch in an image of a Dockerfile, which prints a word of that."""
        content = f"FROM {IMAGE}\n{line}\n".encode()
        context = receiver.snapshot({"Dockerfile": content})
        wanted = {"kind": "image", "dockerfile": "Dockerfile", "context": context}
        return self.launch_of(receiver, "sh", "-c", "echo $word", environment=wanted)

    def _not_ready(self, driver: Driver, launch: Launch) -> str:
        with pytest.raises(NotReady) as raised:
            driver.launch(launch)
        return str(raised.value)

    def _coming(self) -> list[str]:
        return [each.name for each in threading.enumerate() if each.name.startswith("image ")]

    def _image(self, folder: Path, user: str) -> str:
        """Build an image that is of a user, and has a package to install."""
        wheel(folder / "wheels", "tinypkg", "1.0")
        (folder / "passwd").write_text("root:x:0:0::/:/bin/sh\napp:x:1237:1237::/:/bin/sh\n")
        lines = f"FROM {IMAGE}", "COPY wheels /wheels", "COPY passwd /etc/", f"USER {user}"
        (folder / "Dockerfile").write_text("\n".join(lines))
        for _ in client(self.engine.url).build(path=str(folder), tag="localhost/who:test"):
            pass
        return "localhost/who:test"
