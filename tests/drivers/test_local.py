"""The local target keeps the contract, and some promises of its own."""

import json
import os
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
from retarget.drivers import connect as connect_to
from retarget.drivers import local
from retarget.runner import machine
from retarget.testing import Bench, Connect, DriverContract, Receiver

_PYENV = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"


class OnThisMachine:
    """Where the launches of these tests live, and how they are found there."""

    root: Path

    @pytest.fixture
    def connect(self, tmp_path: Path) -> Connect:
        self.root = tmp_path / "root"
        return lambda: connect_to("local", {"root": str(self.root), "linger": 30})

    @pytest.fixture
    def connect_nowhere(self) -> Connect:
        return lambda: connect_to("local", {"root": "/proc/nowhere"})

    def runner_pids(self, handle: Handle) -> list[int]:
        folder = str(self.root / "launches" / handle).encode()
        return [
            int(path.parent.name)
            for path in Path("/proc").glob("[0-9]*/cmdline")
            if folder in _read(path).split(b"\0")
        ]

    def traces(self, handle: Handle) -> list[Path]:
        return [path for path in self.root.rglob("*") if handle in path.name]


class TestLocal(OnThisMachine, DriverContract):
    pass


class TestPidsOfOthers(OnThisMachine, Bench):
    """A pid in the journal may by now be somebody else's."""

    @pytest.fixture
    def innocent(self) -> Iterator[subprocess.Popen[bytes]]:
        process = subprocess.Popen(["sleep", "60"], start_new_session=True)
        yield process
        process.kill()
        process.wait()

    @pytest.mark.parametrize("journaled", ["another start", "another boot"])
    def test_a_rank_whose_pid_is_anothers_now_is_left_alone(
        self,
        driver: Driver,
        receiver: Receiver,
        innocent: subprocess.Popen[bytes],
        journaled: str,
    ) -> None:
        launch = self.launch_of(receiver, "sh", "-c", "echo $$; sleep 60")
        handle = driver.launch(launch)
        pid = int(self.hear_line(receiver, launch)[0])
        self.kill_runner(driver, handle)
        self.kill(pid)
        self._journal(handle, innocent.pid, journaled)
        driver.launch(launch)
        self.finish(driver, handle)
        assert receiver.heard(launch.key).finished["outcome"] == "lost"
        assert innocent.poll() is None

    def test_a_rank_that_is_still_there_is_ended(
        self, driver: Driver, receiver: Receiver, innocent: subprocess.Popen[bytes]
    ) -> None:
        """The counterpart: what the journal names, with its start time, is what is ended."""
        launch = self.launch_of(receiver, "sh", "-c", "echo $$; sleep 60")
        handle = driver.launch(launch)
        self.hear_line(receiver, launch)
        self.kill_runner(driver, handle)
        self._journal(handle, innocent.pid, "as it is")
        driver.launch(launch)
        self.finish(driver, handle)
        assert innocent.wait(timeout=5) == -signal.SIGTERM

    def _journal(self, handle: Handle, pid: int, how: str) -> None:
        """Have the journal say that this pid was the rank's."""
        journal = self.root / "launches" / handle / "events.jsonl"
        events = [json.loads(line) for line in journal.read_text().splitlines()]
        started = next(event for event in events if event["kind"] == "started")
        when = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        started["ranks"] = [[pid, "1" if how == "another start" else when]]
        started["boot"] = "long ago" if how == "another boot" else started["boot"]
        journal.write_text("".join(json.dumps(event) + "\n" for event in events))


class TestCrashesWithinLaunch(OnThisMachine, Bench):
    """A server may die between any two steps of launch; the next one launches again."""

    def _left_by_a_crash(self, driver: Driver, launch: Launch, *steps: str) -> Path:
        """Make the folder of a launch as far as `steps` say."""
        folder = self.root / "launches" / launch.key
        folder.mkdir(parents=True, mode=0o700)
        if "half a file" in steps:
            (folder / "launch.json.1234.abcd.part").write_text('{"launch": {"ke')
        if "launch.json" in steps:
            assert isinstance(driver, local.Driver)
            contact = {"url": "http://127.0.0.1:9", "token": "of a server that is gone"}
            contact["path"] = f"/api/attempts/{launch.key}"
            content = {"launch": launch.for_runner(), "contact": contact}
            content["node"] = driver._node()  # pyright: ignore[reportPrivateUsage]
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
        launch = self.launch_of(receiver, "sh", "-c", "echo started; exit 3")
        self._left_by_a_crash(driver, launch, *steps)
        assert driver.poll([Handle(launch.key)])[0].phase is Phase.DEAD
        handle = driver.launch(launch)
        assert self.finish(driver, handle).exit_code == 3
        assert receiver.heard(launch.key).stream() == b"started\n"

    def test_cancel_of_half_a_launch_is_fine(self, driver: Driver, receiver: Receiver) -> None:
        launch = self.launch_of(receiver, "sh", "-c", "echo started")
        self._left_by_a_crash(driver, launch)
        driver.cancel(Handle(launch.key))

    def test_a_runner_that_has_not_got_the_lock_leaves_it_to_the_one_that_has(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        """Started by hand, as a second server on an old driver might."""
        launch = self.launch_of(receiver, "sh", "-c", "echo started; sleep 0.5")
        handle = driver.launch(launch)
        folder = self.root / "launches" / handle
        zipapp = json.loads((folder / "launch.json").read_text())["node"]["runner"]
        command = [sys.executable, "-I", "-S", zipapp, "run", str(folder)]
        assert subprocess.run(command, timeout=20, check=False).returncode == 0
        assert driver.poll([handle])[0].phase is Phase.RUNNING
        self.finish(driver, handle)
        assert receiver.heard(launch.key).stream() == b"started\n"

    def test_a_runner_started_by_hand_takes_the_lock_itself(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        launch = self.launch_of(receiver, "sh", "-c", "exit 4", url="", token="")
        folder = self._left_by_a_crash(driver, launch, "launch.json")
        told = json.loads((folder / "launch.json").read_text())
        told["contact"] = {"url": "", "token": "", "path": ""}
        (folder / "launch.json").write_text(json.dumps(told))
        zipapp = told["node"]["runner"]
        command = [sys.executable, "-I", "-S", zipapp, "run", str(folder)]
        subprocess.run(command, timeout=20, check=True)
        assert driver.poll([Handle(launch.key)])[0].exit_code == 4


class TestRaces(OnThisMachine, Bench):
    @pytest.mark.parametrize("delay", [0, 0.02, 0.05, 0.1])
    def test_cancel_and_launch_at_once_end_it_once(
        self, connect: Connect, receiver: Receiver, delay: float
    ) -> None:
        launch = self.launch_of(receiver, "sh", "-c", "echo started; sleep 60")
        handle = connect().launch(launch)
        time.sleep(delay)
        work: list[Callable[[], object]] = [
            lambda: connect().launch(launch),
            lambda: connect().cancel(handle),
        ]
        threads = [threading.Thread(target=each) for each in work * 4]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.finish(connect(), handle)
        heard = receiver.heard(launch.key)
        assert heard.finished["outcome"] == "canceled"
        assert heard.kinds.count("starting") <= 1
        assert self.processes_of(launch) == []

    def test_a_runner_that_hears_and_does_nothing_is_replaced(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        """Stopped by a signal it holds its lock, and would hold its job for ever."""
        launch = self.launch_of(receiver, "sh", "-c", "echo started; sleep 60", grace=0.5)
        handle = driver.launch(launch)
        self.hear_line(receiver, launch)
        (pid,) = self.runner_pids(handle)
        os.kill(pid, signal.SIGSTOP)
        driver.cancel(handle)
        long_ago = time.time() - machine._STUCK - 5  # pyright: ignore[reportPrivateUsage]
        os.utime(self.root / "launches" / handle / "cancel", (long_ago, long_ago))
        driver.cancel(handle)
        self.see(lambda: not self.alive(pid))

        def canceled() -> bool:  # a new runner may have come while the lock was not free yet
            driver.cancel(handle)
            return driver.poll([handle])[0].phase is Phase.EXITED

        self.see(canceled)
        self.finish(driver, handle)
        assert receiver.heard(launch.key).finished["outcome"] == "canceled"
        assert self.processes_of(launch) == []

    def test_the_lock_is_not_handed_on_to_the_script(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        """Else what a script leaves behind would look like a runner for ever."""
        heard = self.run_shell(driver, receiver, "ls -l /proc/$$/fd")
        links = [line for line in heard.stream().decode().splitlines() if "->" in line]
        assert not [line for line in links if line.endswith("/lock")]
        assert len(links) == 3

    def test_no_zombie_remains(self, driver: Driver, receiver: Receiver) -> None:
        for launch in [self.launch_of(receiver, "true") for _ in range(3)]:
            self.finish(driver, driver.launch(launch))
        self.see(lambda: not _zombies())


class TestSurroundings(OnThisMachine, Bench):
    def test_a_job_gets_the_machines_variables_not_the_terminals(
        self, driver: Driver, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the terminal's")
        monkeypatch.setenv("PYTHONPATH", "/the/terminal's")
        monkeypatch.setenv("CUDA_HOME", "/opt/cuda")
        monkeypatch.setenv("LC_TIME", "C")
        code = "import json, os; print(json.dumps(dict(os.environ)))"
        heard = self.run(driver, receiver, self.launch_of(receiver, "python", "-c", code))
        found = json.loads(heard.stream())
        assert (found["CUDA_HOME"], found["LC_TIME"]) == ("/opt/cuda", "C")
        assert found["HOME"] == os.environ["HOME"]
        assert "the/terminal's" not in found["PYTHONPATH"]  # `track` is found by it
        assert not found.keys() & {"AWS_SECRET_ACCESS_KEY", "PYTEST_CURRENT_TEST"}

    def test_the_words_of_a_failing_runner_can_be_had(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        launch = self.launch_of(receiver, "true")
        folder = self.root / "launches" / launch.key
        folder.mkdir(parents=True)
        (folder / "events.jsonl").write_text("damaged\n")
        handle = driver.launch(launch)
        self.wait(driver, handle, Phase.DEAD)
        assert "JSONDecodeError" in driver.diagnose(handle)
        shutil.rmtree(folder)

    def test_blobs_that_are_on_the_machine_are_not_fetched(
        self, receiver: Receiver, connect: Connect, tmp_path: Path
    ) -> None:
        snapshot = receiver.snapshot({"a.sh": b"echo here"})
        for digest, content in receiver.blobs.items():
            (tmp_path / "blobs" / digest[:2]).mkdir(parents=True, exist_ok=True)
            (tmp_path / "blobs" / digest[:2] / digest).write_bytes(content)
        connect()
        config = {"root": str(self.root), "blobs": [str(tmp_path / "blobs")]}
        launch = self.launch_of(receiver, "sh", "a.sh", snapshot=snapshot)
        heard = self.run(connect_to("local", config), receiver, launch)
        assert heard.stream() == b"here\n"
        assert not [request for request in receiver.requests if "blobs" in request]

    def test_a_launch_for_several_machines_is_rejected(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        launch = Launch(key=uuid4().hex, job="j", name="n", command=("true",), nodes=2)
        with pytest.raises(LaunchRejected, match="2 nodes"):
            driver.launch(launch)

    def test_what_a_launch_is_told_is_for_its_owner_only(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        launch = self.launch_of(receiver, "true", env={"SECRET": "x"})
        handle = driver.launch(launch)
        self.finish(driver, handle)
        folder = self.root / "launches" / handle
        modes = [stat.S_IMODE((folder / name).stat().st_mode) for name in ("", "launch.json")]
        assert modes == [0o700, 0o600]

    def test_the_configured_size_is_what_is_given_out(self, tmp_path: Path) -> None:
        config = {"root": str(tmp_path), "cpus": 1.5, "memory": 2**30}
        node = connect_to("local", config).check().nodes[0]
        assert (node.cpus, node.memory) == (1.5, 2**30)

    @pytest.mark.parametrize("where", ["", "/dev/shm"], ids=["here", "in memory"])
    def test_a_check_makes_a_place_for_launches(self, tmp_path: Path, where: str) -> None:
        """On any file system: what it is told of their kind is only a hint."""
        if not os.path.isdir(where or tmp_path):
            pytest.skip(f"there is no {where}")
        with tempfile.TemporaryDirectory(dir=where or tmp_path) as root:
            for _ in range(2):
                connect_to("local", {"root": root}).check()
            assert stat.S_IMODE(os.stat(f"{root}/launches").st_mode) == 0o700

    def test_a_folder_that_cannot_be_made_is_said(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(TargetUnreachable, match="cannot make"):
            connect_to("local", {"root": str(tmp_path / "file" / "root")}).check()


class TestRunnersThatComeBack(OnThisMachine, Bench):
    """A runner whose script ended at once sees to the next launch, too."""

    def test_one_whose_script_ended_at_once_takes_the_next_launch(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        self.come_back(driver, receiver)

    @pytest.mark.parametrize("kind", ["with code", "with outputs", "in an environment"])
    def test_it_lets_go_of_all_that_it_used(
        self, driver: Driver, receiver: Receiver, kind: str
    ) -> None:
        """One that does not is not given another launch."""
        more: dict[str, Any] = {"command": ("sh", "-c", "echo hi; echo x > outputs/x")}
        if kind == "with code":
            more = {"command": ("sh", "a.sh"), "snapshot": receiver.snapshot({"a.sh": b"echo hi"})}
        if kind == "in an environment":
            more = {"command": ("true",), "environment": Environment(kind="system")}
        self.come_back(driver, receiver, **more)
        if kind == "in an environment":
            assert isinstance(driver, local.Driver)
            [built] = driver.environments()
            assert driver.remove_environment(built["digest"])

    def test_each_launch_has_its_own_surroundings(self, driver: Driver, receiver: Receiver) -> None:
        pid = self.come_back(driver, receiver, env={"SECRET": "of the first"})
        fresh = 'import os, sys; print(os.getcwd(), os.environ.get("SECRET"))'
        launch = self.launch_of(receiver, sys.executable, "-S", "-c", fresh)
        heard = self.run(driver, receiver, launch)
        assert heard.stream() == f"{self.root}/launches/{launch.key}/work None\n".encode()
        self.see(lambda: not self.alive(pid) or os.readlink(f"/proc/{pid}/cwd") == "/")

    def test_nothing_piles_up_in_it(self, driver: Driver, receiver: Receiver) -> None:
        def opened() -> int:
            pid = self.come_back(driver, receiver)
            self.see(lambda: not self.alive(pid) or self.rests(pid))
            return len(os.listdir(f"/proc/{pid}/fd")) if self.alive(pid) else 0

        self.see(lambda: opened() == opened() != 0)

    def test_one_that_is_killed_while_it_rests_is_not_missed(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        pid = self.come_back(driver, receiver)
        self.see(lambda: not self.alive(pid) or self.rests(pid))
        if self.alive(pid):
            self.kill(pid)
            self.see(lambda: not self.alive(pid))
        assert self.run_shell(driver, receiver, "echo hi").stream() == b"hi\n"

    def test_one_that_hangs_while_it_rests_does_not_keep_what_it_is_given(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        pid = self.come_back(driver, receiver)
        self.see(lambda: not self.alive(pid) or self.rests(pid))
        if self.alive(pid):
            os.kill(pid, signal.SIGSTOP)
        try:
            launch = self.launch_of(receiver, "sh", "-c", "echo hi")
            handle = driver.launch(launch)
            if self.wait(driver, handle, Phase.EXITED, Phase.DEAD).phase is Phase.DEAD:
                driver.launch(launch)  # as a server does
            self.finish(driver, handle)
            assert receiver.heard(launch.key).stream() == b"hi\n"
            self.see(lambda: not self.alive(pid))
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
    def test_what_a_script_does_to_its_runner_does_not_reach_the_next(
        self, driver: Driver, receiver: Receiver, harm: str
    ) -> None:
        first = self._launch_one(driver, receiver, command=("sh", "-c", f"{{ {harm}; }} >&2"))
        assert all(self._launch_one(driver, receiver) != first for _ in range(3))

    def test_one_that_was_told_to_stop_does_not_come_back(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        """Whoever told it may kill it yet, when it seems to hang."""
        launch = self.launch_of(receiver, "sh", "-c", "echo hi; sleep 60")
        handle = driver.launch(launch)
        self.hear_line(receiver, launch)
        (pid,) = self.runner_pids(handle)
        driver.cancel(handle)
        self.finish(driver, handle)
        self.see(lambda: not self.alive(pid))

    def come_back(self, driver: Driver, receiver: Receiver, **more: Any) -> int:
        """Launch until one runner was given two of them; return its pid."""
        pids = [0, 0]

        def again() -> bool:
            pids.append(self._launch_one(driver, receiver, **more))
            return pids[-1] == pids[-2]

        self.see(again)
        return pids[-1]

    def rests(self, pid: int) -> bool:
        return b"nursery" in _read(Path(f"/proc/{pid}/cmdline")).split(b"\0")

    def _launch_one(self, driver: Driver, receiver: Receiver, **more: Any) -> int:
        launch = self.launch_of(receiver, *more.pop("command", ("true",)), **more)
        heard = self.run(driver, receiver, launch)
        assert heard.finished["exit_code"] == 0
        return next(int(event["pid"]) for event in heard.events if event["kind"] == "preparing")


class TestForgetting:
    def test_folders_that_the_script_made_read_only_go_too(self) -> None:
        """Root may remove anything; so it is tried as somebody else."""
        with tempfile.TemporaryDirectory() as scratch:
            nobody = 65534 if os.getuid() == 0 else os.getuid()
            os.chmod(scratch, 0o755)
            os.chown(scratch, nobody, -1)
            child = os.fork()
            if child == 0:
                try:
                    os.setuid(nobody)
                    os._exit(_make_and_remove(Path(scratch) / "gone"))
                finally:
                    os._exit(2)
            assert os.waitpid(child, 0)[1] == 0
            assert os.listdir(scratch) == []


class TestInterpreters:
    def screen(self, python: str | Path) -> None:
        config = local.Config.model_validate({"root": "/nowhere"})
        local.Driver(config).screen(Environment(python=str(python)))

    def test_this_python_will_do(self) -> None:
        self.screen(sys.executable)

    def test_a_path_that_is_not_absolute_is_refused(self) -> None:
        with pytest.raises(Invalid, match="not an absolute path"):
            self.screen("python3")

    def test_one_that_is_not_there_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(Invalid, match="there is no"):
            self.screen(tmp_path / "python")

    def test_one_that_cannot_be_run_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "python").write_text("#!/bin/sh\necho 3 11")
        with pytest.raises(Invalid, match="not an executable file"):
            self.screen(tmp_path / "python")
        with pytest.raises(Invalid, match="not an executable file"):
            self.screen(tmp_path)

    @pytest.mark.parametrize("says", ["exit 1", "echo hello", "exit 0", "head -c 20 /dev/urandom"])
    def test_another_program_is_refused(self, tmp_path: Path, says: str) -> None:
        with pytest.raises(Invalid, match="does not answer like a Python"):
            self.screen(_program(tmp_path / "python", says))

    @pytest.mark.parametrize("version", ["2.7.18", "3.6.15", "3.7.16"])
    def test_one_that_is_too_old_is_refused(self, tmp_path: Path, version: str) -> None:
        major, minor, _ = version.split(".")
        python = _PYENV / version / "bin/python"
        if not python.exists():
            python = _program(tmp_path / "python", f"printf '{major} {minor}'")
        with pytest.raises(Invalid, match=rf"is Python {major}\.{minor}; 3\.8 or newer"):
            self.screen(python)

    def test_one_that_was_replaced_is_asked_again(self, tmp_path: Path) -> None:
        python = _program(tmp_path / "python", "printf '3 7'")
        with pytest.raises(Invalid):
            self.screen(python)
        self.screen(_program(python, "printf '3 11'"))

    def test_packages_are_no_matter_of_an_interpreter(self) -> None:
        config = local.Config.model_validate({"root": "/nowhere"})
        local.Driver(config).screen(Environment(kind="system", python="3.11", pip=("six",)))


class TestEnvironments(OnThisMachine, Bench):
    def test_one_is_built_listed_kept_while_used_and_removed(
        self, connect: Connect, receiver: Receiver
    ) -> None:
        connect()
        driver = local.Driver(local.Config.model_validate({"root": self.root}))
        assert driver.environments() == []
        wanted = Environment(kind="system")
        code = "import sys; print(sys.prefix, flush=True); import time; time.sleep(60)"
        launch = self.launch_of(receiver, "python", "-c", code, environment=wanted)
        handle = driver.launch(launch)
        prefix = self.hear_line(receiver, launch)[0]
        [built] = driver.environments()
        assert (built["digest"], built["how"]) == (wanted.digest, "pip")
        assert built["size"] > 0
        assert prefix.startswith(str(self.root))
        with pytest.raises(Conflict):
            driver.remove_environment(built["digest"])
        driver.cancel(handle)
        self.finish(connect(), handle)
        self.see(lambda: _is_removed(driver, built["digest"]))
        assert not driver.remove_environment(built["digest"])
        assert driver.environments() == []
        assert list((self.root / "environments").iterdir()) == []


def _make_and_remove(folder: Path) -> int:
    (folder / "work/locked/deeper").mkdir(parents=True)
    (folder / "work/locked/deeper/file").touch()
    (folder / "work/link").symlink_to("/")
    for path in ("work/locked/deeper", "work/locked", "work"):
        (folder / path).chmod(0o500)
    machine.clear(str(folder))
    return int(folder.exists())


def _program(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def _zombies() -> list[int]:
    """List the zombies of this process."""
    stats = [_read(path) for path in Path("/proc").glob("[0-9]*/stat")]
    found = [(text.split(b" ", 1)[0], text.rpartition(b")")[2].split()) for text in stats if text]
    me = str(os.getpid()).encode()
    return [int(pid) for pid, fields in found if fields[0] == b"Z" and fields[1] == me]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _is_removed(driver: local.Driver, digest: str) -> bool:
    """Remove an environment, if its last user has gone: one that has ended may be still there."""
    with suppress(Conflict):
        return driver.remove_environment(digest)
    return False
