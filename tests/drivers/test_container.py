"""The container driver keeps the contract, on Docker and on Podman."""

import gc
import os
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path

import pytest

from retarget.core.driver import Caches, Driver, Handle, Launch, Phase, ValidatesEnvironments
from retarget.core.environments import Environment
from retarget.core.errors import Conflict, Invalid, LaunchRejected, NotReady, TargetUnreachable
from retarget.core.links import Links
from retarget.drivers import _container_payload
from retarget.drivers import connect as connect_to
from retarget.drivers._docker_client import DockerClients
from retarget.testing import Connect, ContractHarness, DriverContract, Receiver
from tests.runner.harness import wheel
from tests.testbeds.engines import IMAGE, Engine

# The SDK leaks a socket whenever an engine does not answer.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"
)


class ContainerHarness:
    """Finds the launches of these tests and their processes in containers."""

    engine: Engine
    scripts_outlive_runners = False  # the runner is the first process of its container

    def connected(self, engine: Engine, links: Links) -> Connect:
        self.engine = engine
        config = {"engine": engine.url, "image": IMAGE, "linger": 30}
        return lambda: connect_to("container", config, links)

    @pytest.fixture
    def connect_nowhere(self, links: Links) -> Connect:
        return lambda: connect_to(
            "container", {"engine": "unix:///nowhere.sock", "image": IMAGE}, links
        )

    def runner_pids(self, handle: Handle) -> list[int]:
        return [
            pid
            for pid, argv in self._processes()
            if "run" in argv and f"/retarget/launches/{handle}" in argv
        ]

    def processes_of(self, launch: Launch) -> list[int]:
        variable = f"RETARGET_LAUNCH={launch.key}".encode()
        return [
            pid
            for pid, _ in self._processes()
            if variable in _read(Path(f"/proc/{pid}/environ")).split(b"\0")
        ]

    def alive(self, pid: int) -> bool:
        """Return whether a process of a container runs; `pid` is its pid in the container."""
        return any(_pids(process)[-1:] == [pid] for process, _ in self._processes())

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def traces(self, handle: Handle) -> list[Path]:
        names = self.engine.cli("ps", "-a", "--format", "{{.Names}}").split()
        return [Path(name) for name in names if handle in name]

    def _processes(self) -> list[tuple[int, list[str]]]:
        """Return the processes in containers of the engine."""
        processes: list[tuple[int, list[str]]] = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            inner = (
                len(_pids(int(path.parent.name))) > 2
            )  # in a container, nested in the engine's namespace
            if inner and str(self.engine.log.parent).encode() in _read(path.parent / "mountinfo"):
                argv = _read(path).decode("utf-8", "replace").split("\0")
                processes.append((int(path.parent.name), argv))
        return processes


@pytest.mark.targets
class TestDocker(ContainerHarness, DriverContract):
    @pytest.fixture
    def connect(self, docker: Engine, links: Links) -> Connect:
        return self.connected(docker, links)


@pytest.mark.targets
class TestPodman(ContainerHarness, DriverContract):
    @pytest.fixture
    def connect(self, podman: Engine, links: Links) -> Connect:
        return self.connected(podman, links)


def _pids(pid: int) -> list[int]:
    """Return the pids of a process in its namespaces, the outermost first."""
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
class TestMessages(ContainerHarness, ContractHarness):
    """Every problem with containers has its own message."""

    @pytest.fixture
    def connect(self, docker: Engine, links: Links) -> Connect:
        return self.connected(docker, links)

    def test_the_inventory_of_the_engine_is_reported(self, driver: Driver) -> None:
        inventory = driver.check()
        assert inventory.nodes[0].cpus == os.cpu_count()
        assert inventory.details["engine"].startswith("docker ")

    def test_an_exceeded_memory_limit_is_reported(self, driver: Driver, receiver: Receiver) -> None:
        greedy = "data = bytearray(300 << 20); print(len(data))"
        launch = self.new_launch(receiver, "python", "-c", greedy, memory=64 << 20)
        finished = self.run(driver, receiver, launch).finished
        assert finished["outcome"] == "failed"
        assert finished["reason"] == "out of memory: limit 64 MiB"

    def test_the_limit_of_cores_is_enforced(self, driver: Driver, receiver: Receiver) -> None:
        spin = (
            "import time; a, b = time.perf_counter(), time.process_time()\n"
            "while time.perf_counter() < a + 2: pass\n"
            "print(round(time.process_time() - b, 2))"
        )
        launch = self.new_launch(receiver, "python", "-c", spin, cpus=0.5)
        used = float(self.run(driver, receiver, launch).stream())
        assert used < 1.5  # of two seconds, on a machine that does nothing else

    def test_an_image_that_cannot_be_pulled_is_named(
        self, connect: Connect, receiver: Receiver
    ) -> None:
        launch = self.new_launch(
            receiver, "true", environment={"kind": "image", "image": "localhost:1/no/image:1"}
        )
        self.launches.remove(launch)
        messages: list[str] = []

        def is_rejected() -> bool:
            try:
                connect().launch(launch)
            except (NotReady, LaunchRejected) as error:
                messages.append(str(error))
            return "cannot be pulled" in messages[-1]

        self.wait_until(is_rejected)
        assert "image 'localhost:1/no/image:1' is being pulled" in messages[0]
        assert "image 'localhost:1/no/image:1' cannot be pulled" in messages[-1]

    def test_an_image_without_python_is_named(
        self, receiver: Receiver, docker: Engine, links: Links
    ) -> None:
        driver = connect_to(
            "container", {"engine": docker.url, "image": IMAGE, "python": "python9"}, links
        )
        launch = self.new_launch(receiver, "true")
        self.launches.remove(launch)
        with pytest.raises(LaunchRejected, match="has no Python for the runner"):
            driver.launch(launch)
        assert self.traces(Handle(launch.key)) == []

    def test_a_command_that_is_not_in_the_image_is_named(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        launch = self.new_launch(receiver, "no-such-command")
        finished = self.run(driver, receiver, launch).finished
        assert finished["reason"] == f"command 'no-such-command' not found in image '{IMAGE}'"
        assert finished["exit_code"] == 127

    def test_an_engine_that_is_down_is_named(self, driver: Driver, docker: Engine) -> None:
        driver.check()
        docker.stop()
        with pytest.raises(TargetUnreachable, match=r"engine at unix:.* does not answer"):
            driver.check()
        observation = driver.poll([Handle("anything")])[0]
        assert observation.phase is Phase.SILENT
        assert "does not answer" in observation.reason
        docker.start()
        assert driver.check().nodes
        gc.collect()  # here, where the reason for a leaked socket is known

    @pytest.mark.parametrize("network", ["host", "none", "bridge"])
    def test_a_server_on_loopback_is_reached_from_every_network(
        self, receiver: Receiver, docker: Engine, network: str, links: Links
    ) -> None:
        driver = connect_to(
            "container", {"engine": docker.url, "image": IMAGE, "network": network}, links
        )
        reports = self.run_shell(driver, receiver, "echo here")
        assert reports.stream() == b"here\n"

    def test_a_job_in_an_image_of_its_own(self, driver: Driver, receiver: Receiver) -> None:
        reports = self.run_shell(
            driver, receiver, "echo $0", environment={"kind": "image", "image": IMAGE}
        )
        assert reports.finished["outcome"] == "succeeded"

    def test_a_paused_container_is_canceled(
        self, driver: Driver, receiver: Receiver, docker: Engine
    ) -> None:
        launch = self.new_launch(receiver, "sh", "-c", "echo here; sleep 600")
        handle = driver.launch(launch)
        self.wait_for_words(receiver, launch)
        docker.cli("pause", f"retarget-{handle}")
        driver.cancel(handle)
        self.finish(driver, handle)
        assert receiver.reports(launch.key).finished["outcome"] == "canceled"

    def test_the_runner_is_built_again_when_temporary_files_were_deleted(
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

    def test_a_failure_of_the_server_is_not_blamed_on_the_engine(
        self, driver: Driver, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        launch = self.new_launch(receiver, "true")
        self.launches.remove(launch)
        monkeypatch.setattr(_container_payload, "bundled_uv", lambda: "/nowhere/uv")
        environment = Environment(kind="system", pip=("six",))
        with pytest.raises(
            TargetUnreachable, match=r"server failed, not .* '/nowhere/uv'"
        ) as raised:
            driver.launch(launch.model_copy(update={"environment": environment}))
        assert "does not answer" not in str(raised.value)
        driver.forget(Handle(launch.key))

    def test_a_job_without_an_image_is_refused(self, docker: Engine, links: Links) -> None:
        driver = connect_to("container", {"engine": docker.url}, links)
        assert isinstance(driver, ValidatesEnvironments)
        with pytest.raises(Invalid, match="image is missing"):
            driver.validate_environment(Environment())

    def test_the_message_of_ssh_about_a_remote_engine_is_reported(self, links: Links) -> None:
        driver = connect_to("container", {"engine": "ssh://nobody@127.0.0.1:1"}, links)
        with pytest.raises(TargetUnreachable, match=r"127\.0\.0\.1 port 1: Connection refused"):
            driver.check()

    def test_an_engine_must_have_an_address(self, links: Links) -> None:
        with pytest.raises(Invalid, match=r"must be unix:///PATH, tcp://HOST:PORT"):
            connect_to("container", {"engine": "docker"}, links)

    @pytest.mark.parametrize(
        "engine", ["tcp://[::1", "ssh://h:abc", "tcp://h:99999999", "tcp://h", "tcp://"]
    )
    def test_an_invalid_engine_address_is_refused(self, engine: str, links: Links) -> None:
        with pytest.raises(Invalid, match="not a valid engine address"):
            connect_to("container", {"engine": engine}, links)

    @pytest.mark.parametrize("name", ["image", "network", "python"])
    @pytest.mark.parametrize("value", ["a b", "a\nb", "", "\ud800", "a\0"])
    def test_a_name_is_one_word(self, name: str, value: str, links: Links) -> None:
        with pytest.raises(Invalid, match=rf"{name}: .*(must be one word|valid string)"):
            connect_to("container", {name: value}, links)

    def test_a_password_in_an_address_is_not_repeated(self, links: Links) -> None:
        with pytest.raises(Invalid) as raised:
            connect_to("container", {"engine": "tcp://me:s3cret@h:1:2"}, links)
        assert "s3cret" not in str(raised.value)

    def test_a_missing_network_is_reported(self, docker: Engine, links: Links) -> None:
        driver = connect_to("container", {"engine": docker.url, "network": "nowhere"}, links)
        with pytest.raises(TargetUnreachable, match=r"no network 'nowhere'; it has bridge, host"):
            driver.check()


@pytest.mark.targets
class TestImages(ContainerHarness, ContractHarness):
    """Launches wait for their images, which arrive or fail."""

    @pytest.fixture(params=["docker", "podman"])
    def connect(self, request: pytest.FixtureRequest, links: Links) -> Connect:
        return self.connected(request.getfixturevalue(request.param), links)

    def test_a_job_runs_as_the_user_of_its_image(
        self, driver: Driver, receiver: Receiver, tmp_path: Path, links: Links
    ) -> None:
        image = self._image(tmp_path, "1235", links)
        code = receiver.add_snapshot({"word": b"code"})
        script = "id -u; cat word; id -u > outputs/who"
        reports = self.run_shell(
            driver,
            receiver,
            script,
            snapshot=code,
            environment={"kind": "image", "image": image},
        )
        assert reports.finished["outcome"] == "succeeded"
        assert reports.stream() == b"1235\ncode"
        assert reports.outputs == {"outputs/who": b"1235\n"}

    def test_the_caches_of_different_users_do_not_interfere(
        self, driver: Driver, receiver: Receiver, tmp_path: Path, links: Links
    ) -> None:
        pip = ["--no-index", "--find-links /wheels", "tinypkg"]
        code = receiver.add_snapshot({"word": b"code"})
        script = "import os, tinypkg; print(os.getuid(), open('word').read())"
        for user in ("0", "1235", "1236", "1235", "app"):
            image = self._image(tmp_path, user, links)
            launch = self.new_launch(
                receiver,
                *("python", "-c", script),
                snapshot=code,
                environment={"kind": "image", "image": image, "pip": pip},
            )
            reports = self.run(driver, receiver, launch)
            assert reports.finished["outcome"] == "succeeded", reports.stream("prepare")
            assert reports.stream().decode() == f"{user.replace('app', '1237')} code\n"

    def test_a_required_package_is_installed_beside_the_python_of_an_image(
        self, driver: Driver, receiver: Receiver, tmp_path: Path, links: Links
    ) -> None:
        image = self._image(tmp_path, "1235", links)
        for is_first in (True, False):
            launch = self.new_launch(
                receiver,
                *("python", "-c", "import tinypkg; print(tinypkg.VERSION)"),
                environment={"kind": "image", "image": image},
                required_packages=["tinypkg"],
            )
            reports = self.run(driver, receiver, launch)
            assert reports.stream() == b"1.0\n", reports.stream("prepare").decode()
            assert bool(reports.stream("prepare")) is is_first

    @pytest.mark.parametrize("image", ["UPPER/x", "x:", "x@", "x@sha256:zz", "x" * 400])
    def test_an_invalid_image_name_is_refused_at_once(
        self, driver: Driver, receiver: Receiver, image: str
    ) -> None:
        launch = self.new_launch(receiver, "true", environment={"kind": "image", "image": image})
        self.launches.remove(launch)
        with pytest.raises(LaunchRejected, match="is not a valid image name"):
            driver.launch(launch)

    def test_only_launches_that_waited_get_the_result_of_a_pull(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        environment = {"kind": "image", "image": "localhost:1/late:1"}
        canceled = self.new_launch(receiver, "true", environment=environment)
        self.launches.remove(canceled)
        with pytest.raises(NotReady, match="is being pulled"):
            driver.launch(canceled)
        self.wait_until(lambda: not self._image_threads())
        self.engine.cli("tag", IMAGE, "localhost:1/late:1")
        try:
            reports = self.run_shell(driver, receiver, "echo here", environment=environment)
            assert reports.stream() == b"here\n"
        finally:
            self.engine.cli("rmi", "localhost:1/late:1")

    def test_a_build_is_retried_after_its_engine_was_lost(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        launch = self._launch_built(receiver, "RUN sleep 600")
        self.launches.remove(launch)
        self.wait_until(lambda: "sleep 600" in self._not_ready(driver, launch))
        self.engine.kill()
        self.wait_until(lambda: not self._image_threads())
        self.engine.start()
        assert "is being built" not in self._not_ready(driver, launch)

    def test_a_build_whose_launch_is_over_is_restarted_for_others(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        over, other = (self._launch_built(receiver, "ENV word=kept") for _ in range(2))
        self.launches.remove(over)
        receiver.reports(over.key).over = True
        assert "is being built" in self._not_ready(driver, over)
        self.wait_until(lambda: not self._image_threads())
        assert "is being built" in self._not_ready(driver, other)
        self.wait_until(lambda: not self._image_threads())
        assert self.run(driver, receiver, other).stream() == b"kept\n"
        driver.forget(Handle(other.key))
        self.launches.remove(other)
        assert isinstance(driver, Caches)
        assert driver.remove_environment(other.environment.digest or "")

    def test_a_built_image_is_listed_and_removed_when_unused(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        assert isinstance(driver, Caches)
        launch = self._launch_built(receiver, "ENV word=listed")
        assert "is being built" in self._not_ready(driver, launch)
        self.wait_until(lambda: not self._image_threads())
        self.run(driver, receiver, launch)
        digest = launch.environment.digest or ""
        built = next(built for built in driver.environments() if built["digest"] == digest)
        assert (built["how"], built["size"] > 1_000_000) == ("Dockerfile", True)
        assert time.time() - 60 < built["built"] <= built["built"] + built["seconds"] < time.time()
        with pytest.raises(Conflict, match="is used by a container"):
            driver.remove_environment(digest)
        driver.forget(Handle(launch.key))
        self.launches.remove(launch)
        assert driver.remove_environment(digest)
        assert digest not in [built["digest"] for built in driver.environments()]
        assert not driver.remove_environment(digest)

    def _launch_built(self, receiver: Receiver, line: str) -> Launch:
        """Return a launch in a built image. It prints a variable of the image."""
        content = f"FROM {IMAGE}\n{line}\n".encode()
        context = receiver.add_snapshot({"Dockerfile": content})
        environment = {"kind": "image", "dockerfile": "Dockerfile", "context": context}
        return self.new_launch(receiver, "sh", "-c", "echo $word", environment=environment)

    def _not_ready(self, driver: Driver, launch: Launch) -> str:
        with pytest.raises(NotReady) as raised:
            driver.launch(launch)
        return str(raised.value)

    def _image_threads(self) -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("image ")]

    def _image(self, folder: Path, user: str, links: Links) -> str:
        """Build an image with a user, and with a package to install."""
        wheel(folder / "wheels", "tinypkg", "1.0")
        (folder / "passwd").write_text("root:x:0:0::/:/bin/sh\napp:x:1237:1237::/:/bin/sh\n")
        (folder / "uv.toml").write_text('no-index = true\nfind-links = ["/wheels"]\n')
        copied = "wheels /wheels", "passwd /etc/", "uv.toml /etc/uv/"
        lines = f"FROM {IMAGE}", *(f"COPY {files}" for files in copied), f"USER {user}"
        (folder / "Dockerfile").write_text("\n".join(lines))
        api = links.get(DockerClients).get(self.engine.url)
        for _ in api.build(path=str(folder), tag="localhost/who:test"):
            pass
        return "localhost/who:test"
