"""The local driver keeps the contract, and its own promises."""

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from retarget.core.driver import Driver, Handle, Launch, Phase
from retarget.core.environments import Environment
from retarget.core.errors import Conflict, Invalid, LaunchRejected, TargetUnreachable
from retarget.core.links import Links
from retarget.drivers import connect as connect_to
from retarget.drivers import local
from retarget.runner import host
from retarget.testing import Connect, ContractHarness, DriverContract, Receiver
from tests.runner.harness import pyenv_pythons


class LocalHarness:
    """Finds the launches of these tests and their processes on this machine."""

    root: Path

    @pytest.fixture
    def connect(self, tmp_path: Path, links: Links) -> Connect:
        self.root = tmp_path / "root"
        return lambda: connect_to("local", {"root": str(self.root), "linger": 30}, links)

    @pytest.fixture
    def connect_nowhere(self, links: Links) -> Connect:
        return lambda: connect_to("local", {"root": "/proc/nowhere"}, links)

    def runner_pids(self, handle: Handle) -> list[int]:
        folder = str(self.root / "launches" / handle).encode()
        return [
            int(path.parent.name)
            for path in Path("/proc").glob("[0-9]*/cmdline")
            if folder in _read(path).split(b"\0")
        ]

    def traces(self, handle: Handle) -> list[Path]:
        return [path for path in self.root.rglob("*") if handle in path.name]


class TestLocal(LocalHarness, DriverContract):
    pass


class TestReusedPids(LocalHarness, ContractHarness):
    """A pid in the journal may belong to another process by now."""

    @pytest.fixture
    def bystander(self) -> Iterator[subprocess.Popen[bytes]]:
        process = subprocess.Popen(["sleep", "60"], start_new_session=True)
        yield process
        process.kill()
        process.wait()

    @pytest.mark.parametrize("case", ["another start", "another boot"])
    def test_a_process_that_reuses_the_pid_of_a_rank_is_not_killed(
        self,
        driver: Driver,
        receiver: Receiver,
        bystander: subprocess.Popen[bytes],
        case: str,
    ) -> None:
        launch = self.new_launch(receiver, "sh", "-c", "echo $$; sleep 60")
        handle = driver.launch(launch)
        pid = int(self.wait_for_words(receiver, launch)[0])
        self.kill_runner(driver, handle)
        self.kill(pid)
        self._write_rank(handle, bystander.pid, case)
        driver.launch(launch)
        self.finish(driver, handle)
        assert receiver.reports(launch.key).finished["outcome"] == "lost"
        assert bystander.poll() is None

    def test_a_rank_that_still_runs_is_ended(
        self, driver: Driver, receiver: Receiver, bystander: subprocess.Popen[bytes]
    ) -> None:
        """The counterpart: the pid and start time in the journal identify the process to end."""
        launch = self.new_launch(receiver, "sh", "-c", "echo $$; sleep 60")
        handle = driver.launch(launch)
        self.wait_for_words(receiver, launch)
        self.kill_runner(driver, handle)
        self._write_rank(handle, bystander.pid, "as it is")
        driver.launch(launch)
        self.finish(driver, handle)
        assert bystander.wait(timeout=200) == -signal.SIGTERM

    def _write_rank(self, handle: Handle, pid: int, case: str) -> None:
        """Make this pid the rank in the journal."""
        journal = self.root / "launches" / handle / "events.jsonl"
        events = [json.loads(line) for line in journal.read_text().splitlines()]
        started = next(event for event in events if event["kind"] == "started")
        start_time = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        started["ranks"] = [[pid, "1" if case == "another start" else start_time]]
        started["boot"] = "long ago" if case == "another boot" else started["boot"]
        journal.write_text("".join(json.dumps(event) + "\n" for event in events))


class TestCrashesDuringLaunch(LocalHarness, ContractHarness):
    """A server may crash between any two steps of launch(); the next one launches again."""

    def _crash_after(self, driver: Driver, launch: Launch, *steps: str) -> Path:
        """Create the folder of a launch as it is after `steps`."""
        folder = self.root / "launches" / launch.key
        folder.mkdir(parents=True, mode=0o700)
        if "half a file" in steps:
            (folder / "launch.json.1234.abcd.part").write_text('{"launch": {"ke')
        if "launch.json" in steps:
            assert isinstance(driver, local.Driver)
            contact = launch.contact() | {"url": "http://127.0.0.1:9"}  # a server that is gone
            content = {"launch": launch.for_runner(), "contact": contact}
            content["node"] = driver._node(launch.environment)  # pyright: ignore[reportPrivateUsage]
            (folder / "launch.json").write_text(json.dumps(content))
        if "lock" in steps:
            (folder / "runner.log").touch()
        return folder

    @pytest.mark.parametrize(
        "steps",
        [
            (),
            ("half a file",),
            ("launch.json",),
            ("launch.json", "lock"),
        ],
        ids=" and ".join,
    )
    def test_launching_again_runs_it_once(
        self, driver: Driver, receiver: Receiver, steps: tuple[str, ...]
    ) -> None:
        launch = self.new_launch(receiver, "sh", "-c", "echo started; exit 3")
        self._crash_after(driver, launch, *steps)
        assert driver.poll([Handle(launch.key)])[0].phase is Phase.DEAD
        handle = driver.launch(launch)
        assert self.finish(driver, handle).exit_code == 3
        assert receiver.reports(launch.key).stream() == b"started\n"

    def test_cancel_of_an_incomplete_launch_is_no_error(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        launch = self.new_launch(receiver, "sh", "-c", "echo started")
        self._crash_after(driver, launch)
        driver.cancel(Handle(launch.key))

    def test_a_second_runner_without_the_lock_exits(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        """Started by hand, as a second server with an old driver might do."""
        launch = self.new_launch(receiver, "sh", "-c", "echo started; sleep 0.5")
        handle = driver.launch(launch)
        folder = self.root / "launches" / handle
        zipapp = json.loads((folder / "launch.json").read_text())["node"]["runner"]
        command = [sys.executable, "-I", "-S", zipapp, "run", str(folder)]
        assert subprocess.run(command, timeout=200, check=False).returncode == 0
        assert driver.poll([handle])[0].phase is Phase.RUNNING
        self.finish(driver, handle)
        assert receiver.reports(launch.key).stream() == b"started\n"

    def test_a_runner_started_by_hand_takes_the_lock_itself(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        launch = self.new_launch(receiver, "sh", "-c", "exit 4", url="")
        folder = self._crash_after(driver, launch, "launch.json")
        content = json.loads((folder / "launch.json").read_text())
        content["contact"] = launch.contact()
        (folder / "launch.json").write_text(json.dumps(content))
        zipapp = content["node"]["runner"]
        command = [sys.executable, "-I", "-S", zipapp, "run", str(folder)]
        subprocess.run(command, timeout=200, check=True)
        assert driver.poll([Handle(launch.key)])[0].exit_code == 4


class TestRaces(LocalHarness, ContractHarness):
    @pytest.mark.parametrize("delay", [0, 0.02, 0.05, 0.1])
    def test_concurrent_cancels_and_launches_end_it_once(
        self, connect: Connect, receiver: Receiver, delay: float
    ) -> None:
        launch = self.new_launch(receiver, "sh", "-c", "echo started; sleep 60")
        handle = connect().launch(launch)
        time.sleep(delay)
        calls: list[Callable[[], object]] = [
            lambda: connect().launch(launch),
            lambda: connect().cancel(handle),
        ]
        threads = [threading.Thread(target=call) for call in calls * 4]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.finish(connect(), handle)
        reports = receiver.reports(launch.key)
        assert reports.finished["outcome"] == "canceled"
        assert reports.kinds.count("starting") <= 1
        assert self.processes_of(launch) == []

    def test_a_runner_that_does_not_react_to_cancel_is_replaced(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        """Stopped by a signal, it holds its lock and would block its job forever."""
        launch = self.new_launch(receiver, "sh", "-c", "echo started; sleep 60", grace_seconds=0.5)
        handle = driver.launch(launch)
        self.wait_for_words(receiver, launch)
        (pid,) = self.runner_pids(handle)
        os.kill(pid, signal.SIGSTOP)
        driver.cancel(handle)
        long_ago = time.time() - host._STUCK_SECONDS - 5  # pyright: ignore[reportPrivateUsage]
        os.utime(self.root / "launches" / handle / "cancel", (long_ago, long_ago))
        driver.cancel(handle)
        self.wait_until(lambda: not self.alive(pid))

        def canceled() -> bool:  # repeated, as the lock may not have been free for a new runner yet
            driver.cancel(handle)
            return driver.poll([handle])[0].phase is Phase.EXITED

        self.wait_until(canceled)
        self.finish(driver, handle)
        assert receiver.reports(launch.key).finished["outcome"] == "canceled"
        assert self.processes_of(launch) == []

    def test_the_script_does_not_inherit_the_lock(self, driver: Driver, receiver: Receiver) -> None:
        """Otherwise a background process of a script would look like a runner forever."""
        reports = self.run_shell(driver, receiver, "ls -l /proc/$$/fd")
        links = [line for line in reports.stream().decode().splitlines() if "->" in line]
        assert not [line for line in links if line.endswith("/lock")]
        relay = [line for line in links if "socket:" in line]  # so that its port stays taken
        assert (len(links), len(relay)) == (4, 1)

    def test_no_zombie_remains(self, driver: Driver, receiver: Receiver) -> None:
        for launch in [self.new_launch(receiver, "true") for _ in range(3)]:
            self.finish(driver, driver.launch(launch))
        self.wait_until(lambda: not _zombies())


class TestHost(LocalHarness, ContractHarness):
    def test_a_job_gets_the_variables_of_the_machine_not_of_the_terminal(
        self, driver: Driver, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the terminal's")
        monkeypatch.setenv("PYTHONPATH", "/the/terminal's")
        monkeypatch.setenv("CUDA_HOME", "/opt/cuda")
        monkeypatch.setenv("LC_TIME", "C")
        code = "import json, os; print(json.dumps(dict(os.environ)))"
        reports = self.run(driver, receiver, self.new_launch(receiver, "python", "-c", code))
        variables = json.loads(reports.stream())
        assert (variables["CUDA_HOME"], variables["LC_TIME"]) == ("/opt/cuda", "C")
        assert variables["HOME"] == os.environ["HOME"]
        assert "the/terminal's" not in variables["PYTHONPATH"]  # it leads to `track`
        assert not variables.keys() & {"AWS_SECRET_ACCESS_KEY", "PYTEST_CURRENT_TEST"}

    def test_diagnose_returns_the_log_of_a_failed_runner(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        launch = self.new_launch(receiver, "true")
        folder = self.root / "launches" / launch.key
        folder.mkdir(parents=True)
        (folder / "streams").write_text("not a folder")
        handle = driver.launch(launch)
        self.wait_for_phase(driver, handle, Phase.DEAD)
        assert "FileExistsError" in driver.diagnose(handle)
        shutil.rmtree(folder)

    def test_blobs_on_the_machine_are_not_downloaded(
        self, receiver: Receiver, connect: Connect, tmp_path: Path, links: Links
    ) -> None:
        snapshot = receiver.add_snapshot({"a.sh": b"echo here"})
        for digest, content in receiver.blobs.items():
            (tmp_path / "blobs" / digest[:2]).mkdir(parents=True, exist_ok=True)
            (tmp_path / "blobs" / digest[:2] / digest).write_bytes(content)
        connect()
        config = {"root": str(self.root), "blobs": [str(tmp_path / "blobs")]}
        launch = self.new_launch(receiver, "sh", "a.sh", snapshot=snapshot)
        reports = self.run(connect_to("local", config, links), receiver, launch)
        assert reports.stream() == b"here\n"
        assert not [request for request in receiver.requests if "blobs" in request]

    def test_a_launch_for_several_nodes_is_rejected(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        launch = Launch(key=uuid4().hex, job="j", name="n", command=("true",), nodes=2)
        with pytest.raises(LaunchRejected, match="2 nodes"):
            driver.launch(launch)

    def test_only_the_user_can_read_the_files_of_a_launch(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        launch = self.new_launch(receiver, "true", variables={"SECRET": "x"})
        handle = driver.launch(launch)
        self.finish(driver, handle)
        folder = self.root / "launches" / handle
        modes = [stat.S_IMODE((folder / name).stat().st_mode) for name in ("", "launch.json")]
        assert modes == [0o700, 0o600]

    def test_the_inventory_has_the_configured_size(self, tmp_path: Path, links: Links) -> None:
        config = {"root": str(tmp_path), "cpus": 1.5, "memory": 2**30}
        node = connect_to("local", config, links).check().nodes[0]
        assert (node.cpus, node.memory) == (1.5, 2**30)

    @pytest.mark.parametrize("parent", ["", "/dev/shm"], ids=["on disk", "in memory"])
    def test_a_check_creates_the_folder_for_launches(
        self, tmp_path: Path, parent: str, links: Links
    ) -> None:
        """On any file system: the ext4 flag that it sets is only a hint."""
        if not os.path.isdir(parent or tmp_path):
            pytest.skip(f"{parent} does not exist")
        with tempfile.TemporaryDirectory(dir=parent or tmp_path) as root:
            for _ in range(2):
                connect_to("local", {"root": root}, links).check()
            assert stat.S_IMODE(os.stat(f"{root}/launches").st_mode) == 0o700

    def test_a_folder_that_cannot_be_created_is_reported(
        self, tmp_path: Path, links: Links
    ) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(TargetUnreachable, match="cannot create"):
            connect_to("local", {"root": str(tmp_path / "file" / "root")}, links).check()


class TestReusedRunners(LocalHarness, ContractHarness):
    """A runner whose script ended quickly also runs the next launch."""

    def test_a_runner_whose_script_ended_quickly_takes_the_next_launch(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        self._reuse_runner(driver, receiver)

    @pytest.mark.parametrize("kind", ["with code", "with outputs", "in an environment"])
    def test_a_reused_runner_releases_everything_it_used(
        self, driver: Driver, receiver: Receiver, kind: str
    ) -> None:
        """A runner that does not is not reused."""
        fields: dict[str, Any] = {"command": ("sh", "-c", "echo hi; echo x > outputs/x")}
        if kind == "with code":
            fields = {
                "command": ("sh", "a.sh"),
                "snapshot": receiver.add_snapshot({"a.sh": b"echo hi"}),
            }
        if kind == "in an environment":
            fields = {"command": ("true",), "environment": Environment(kind="system")}
        self._reuse_runner(driver, receiver, **fields)
        if kind == "in an environment":
            assert isinstance(driver, local.Driver)
            [built] = driver.environments()
            assert driver.remove_environment(built["digest"])

    def test_each_launch_has_its_own_variables_and_folder(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        pid = self._reuse_runner(driver, receiver, variables={"SECRET": "of the first"})
        fresh = 'import os, sys; print(os.getcwd(), os.environ.get("SECRET"))'
        launch = self.new_launch(receiver, sys.executable, "-S", "-c", fresh)
        reports = self.run(driver, receiver, launch)
        assert reports.stream() == f"{self.root}/launches/{launch.key}/work None\n".encode()
        self.wait_until(lambda: not self.alive(pid) or os.readlink(f"/proc/{pid}/cwd") == "/")

    def test_a_reused_runner_leaks_no_descriptors(self, driver: Driver, receiver: Receiver) -> None:
        def open_descriptors() -> int:
            pid = self._reuse_runner(driver, receiver)
            self.wait_until(lambda: not self.alive(pid) or self._is_idle(pid))
            return len(os.listdir(f"/proc/{pid}/fd")) if self.alive(pid) else 0

        self.wait_until(lambda: open_descriptors() == open_descriptors() != 0)

    def test_an_idle_runner_that_is_killed_is_replaced(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        pid = self._reuse_runner(driver, receiver)
        self.wait_until(lambda: not self.alive(pid) or self._is_idle(pid))
        if self.alive(pid):
            self.kill(pid)
            self.wait_until(lambda: not self.alive(pid))
        assert self.run_shell(driver, receiver, "echo hi").stream() == b"hi\n"

    def test_an_idle_runner_that_hangs_does_not_block_its_next_launch(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        pid = self._reuse_runner(driver, receiver)
        self.wait_until(lambda: not self.alive(pid) or self._is_idle(pid))
        if self.alive(pid):
            os.kill(pid, signal.SIGSTOP)
        try:
            launch = self.new_launch(receiver, "sh", "-c", "echo hi")
            handle = driver.launch(launch)
            if self.wait_for_phase(driver, handle, Phase.EXITED, Phase.DEAD).phase is Phase.DEAD:
                driver.launch(launch)  # as a server does
            self.finish(driver, handle)
            assert receiver.reports(launch.key).stream() == b"hi\n"
            self.wait_until(lambda: not self.alive(pid))
        finally:
            if self.alive(pid):
                self.kill(pid)

    @pytest.mark.parametrize(
        "harm",
        [
            "echo 777 > /proc/$PPID/oom_score_adj",
            "renice -n 5 -p $PPID",
            "prlimit --pid $PPID --core=1:1",
        ],
    )
    def test_a_runner_that_a_script_changed_is_not_reused(
        self, driver: Driver, receiver: Receiver, harm: str
    ) -> None:
        first = self._launch_one(driver, receiver, command=("sh", "-c", f"{{ {harm}; }} >&2"))
        assert all(self._launch_one(driver, receiver) != first for _ in range(3))

    def test_a_canceled_runner_is_not_reused(self, driver: Driver, receiver: Receiver) -> None:
        """The driver may still kill it if it seems to hang."""
        launch = self.new_launch(receiver, "sh", "-c", "echo hi; sleep 60")
        handle = driver.launch(launch)
        self.wait_for_words(receiver, launch)
        (pid,) = self.runner_pids(handle)
        driver.cancel(handle)
        self.finish(driver, handle)
        self.wait_until(lambda: not self.alive(pid))

    def _reuse_runner(self, driver: Driver, receiver: Receiver, **fields: Any) -> int:
        """Launch until one runner has run two launches in a row; return its pid."""
        pids = [0, 0]

        def is_reused() -> bool:
            pids.append(self._launch_one(driver, receiver, **fields))
            return pids[-1] == pids[-2]

        self.wait_until(is_reused)
        return pids[-1]

    def _is_idle(self, pid: int) -> bool:
        return b"forkserver" in _read(Path(f"/proc/{pid}/cmdline")).split(b"\0")

    def _launch_one(self, driver: Driver, receiver: Receiver, **fields: Any) -> int:
        launch = self.new_launch(receiver, *fields.pop("command", ("true",)), **fields)
        reports = self.run(driver, receiver, launch)
        assert reports.finished["exit_code"] == 0
        return next(int(event["pid"]) for event in reports.events if event["kind"] == "preparing")


class TestForgetting:
    def test_read_only_folders_of_the_script_are_removed(self) -> None:
        """Root may remove anything, so this runs as another user."""
        with tempfile.TemporaryDirectory() as parent:
            nobody = 65534 if os.getuid() == 0 else os.getuid()
            os.chmod(parent, 0o755)
            os.chown(parent, nobody, -1)
            child = os.fork()
            if child == 0:
                try:
                    os.setuid(nobody)
                    os._exit(_make_and_remove(Path(parent) / "gone"))
                finally:
                    os._exit(2)
            assert os.waitpid(child, 0)[1] == 0
            assert os.listdir(parent) == []


class TestInterpreters:
    def validate(self, python: str | Path) -> None:
        config = local.Config.model_validate({"root": "/nowhere"})
        local.Driver(config, Links()).validate_environment(Environment(python=str(python)))

    def test_this_python_is_accepted(self) -> None:
        self.validate(sys.executable)

    def test_a_path_that_is_not_absolute_is_refused(self) -> None:
        with pytest.raises(Invalid, match="not an absolute path"):
            self.validate("python3")

    def test_a_missing_interpreter_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(Invalid, match="does not exist"):
            self.validate(tmp_path / "python")

    def test_a_file_that_is_not_executable_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "python").write_text("#!/bin/sh\necho 3 11")
        with pytest.raises(Invalid, match="not an executable file"):
            self.validate(tmp_path / "python")
        with pytest.raises(Invalid, match="not an executable file"):
            self.validate(tmp_path)

    @pytest.mark.parametrize(
        "script", ["exit 1", "echo hello", "exit 0", "head -c 20 /dev/urandom"]
    )
    def test_another_program_is_refused(self, tmp_path: Path, script: str) -> None:
        with pytest.raises(Invalid, match="does not behave like a Python"):
            self.validate(_program(tmp_path / "python", script))

    @pytest.mark.parametrize("version", ["2.7", "3.6", "3.7"])
    def test_a_python_that_is_too_old_is_refused(self, tmp_path: Path, version: str) -> None:
        imitation = _program(tmp_path / "python", f"printf '{version.replace('.', ' ')}'")
        python = Path(next(iter(pyenv_pythons(version)), imitation))
        with pytest.raises(Invalid, match=rf"is Python {re.escape(version)}; 3\.8 or newer"):
            self.validate(python)

    def test_an_interpreter_that_was_replaced_is_checked_again(self, tmp_path: Path) -> None:
        python = _program(tmp_path / "python", "printf '3 7'")
        with pytest.raises(Invalid):
            self.validate(python)
        self.validate(_program(python, "printf '3 11'"))

    def test_a_python_version_is_not_checked_as_a_path(self, links: Links) -> None:
        config = local.Config.model_validate({"root": "/nowhere"})
        local.Driver(config, links).validate_environment(
            Environment(kind="system", python="3.11", pip=("six",))
        )


class TestEnvironments(LocalHarness, ContractHarness):
    def test_an_environment_is_built_listed_kept_while_used_and_removed(
        self, connect: Connect, receiver: Receiver, links: Links
    ) -> None:
        connect()
        driver = local.Driver(local.Config.model_validate({"root": self.root}), links)
        assert driver.environments() == []
        environment = Environment(kind="system")
        code = "import sys; print(sys.prefix, flush=True); import time; time.sleep(60)"
        launch = self.new_launch(receiver, "python", "-c", code, environment=environment)
        handle = driver.launch(launch)
        prefix = self.wait_for_words(receiver, launch)[0]
        [built] = driver.environments()
        assert (built["digest"], built["how"]) == (environment.digest, "pip")
        assert built["size"] > 0
        assert prefix.startswith(str(self.root))
        with pytest.raises(Conflict):
            driver.remove_environment(built["digest"])
        driver.cancel(handle)
        self.finish(connect(), handle)
        self.wait_until(lambda: _is_removed(driver, built["digest"]))
        assert not driver.remove_environment(built["digest"])
        assert driver.environments() == []
        assert list((self.root / "environments").iterdir()) == []


def _make_and_remove(folder: Path) -> int:
    (folder / "work/locked/deeper").mkdir(parents=True)
    (folder / "work/locked/deeper/file").touch()
    (folder / "work/link").symlink_to("/")
    for path in ("work/locked/deeper", "work/locked", "work"):
        (folder / path).chmod(0o500)
    host.remove_folder(str(folder))
    return int(folder.exists())


def _program(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def _zombies() -> list[int]:
    """List the zombie children of this process."""
    stats = [_read(path) for path in Path("/proc").glob("[0-9]*/stat")]
    processes = [
        (text.split(b" ", 1)[0], text.rpartition(b")")[2].split()) for text in stats if text
    ]
    parent = str(os.getpid()).encode()
    return [int(pid) for pid, fields in processes if fields[0] == b"Z" and fields[1] == parent]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _is_removed(driver: local.Driver, digest: str) -> bool:
    """Remove an environment, unless its last runner is still exiting."""
    with suppress(Conflict):
        return driver.remove_environment(digest)
    return False
