"""Clauses of the driver contract: stopping all processes of a launch, and forgetting it."""

import time

import pytest

from retarget.core.driver import Driver, Handle, Phase
from retarget.testing.harness import Connect, ContractHarness
from retarget.testing.receiver import Receiver

# Each prints "READY pid pid ...", the processes that must be gone after a cancel, and never ends.
_TREES = {
    "child": "sleep 60 & echo READY $$ $!; wait",
    "grandchild": "sh -c 'sleep 60 & echo READY $PPID $$ $!; wait'; wait",
    "stubborn": "trap '' TERM; (trap '' TERM; while :; do sleep 1; done) & echo READY $$ $!; wait",
    "stopped": "sleep 60 & kill -STOP $!; echo READY $$ $!; wait",
}
_PYTHON_TREES = {
    "daemon": """
import os, sys, time
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(write, b"%d" % os.getpid())
        devnull = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(devnull, descriptor)
        os.closerange(3, 64)
        os.chdir("/")
        os.execve("/bin/sleep", ["sleep", "60"], {})
    os._exit(0)
print("READY", os.getpid(), os.read(read, 20).decode(), flush=True)
time.sleep(60)
""",
    "chain": """
import os, sys, time
print("READY", os.getpid(), flush=True)
end = time.time() + 20
if os.fork() == 0:
    while time.time() < end:
        time.sleep(0.02)
        if os.fork():
            os._exit(0)
        os.setsid()
    os._exit(0)
time.sleep(60)
""",
    "hydra": """
import os, signal, sys, time
def grow(*_):
    os.fork()
signal.signal(signal.SIGTERM, grow)
print("READY", os.getpid(), flush=True)
end = time.time() + 60
while time.time() < end:
    time.sleep(1)
""",
}
_DEAF_PARENT = """
import os, signal, time
def save(*_):
    os.write(1, b"saved\\n")
    os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    signal.signal(signal.SIGTERM, save)
    print("READY", flush=True)
time.sleep(60)
"""
_COMMANDS = {name: ("sh", "-c", script) for name, script in _TREES.items()} | {
    name: ("python", "-c", code) for name, code in _PYTHON_TREES.items()
}


class EndingClauses(ContractHarness):
    @pytest.mark.parametrize("tree", _COMMANDS)
    def test_cancel_stops_the_whole_tree(
        self, driver: Driver, receiver: Receiver, tree: str
    ) -> None:
        launch = self.new_launch(receiver, *_COMMANDS[tree], grace_seconds=0.3)
        handle = driver.launch(launch)
        words = self.wait_for_words(receiver, launch)
        pids = [int(word) for word in words[words.index("READY") + 1 :]]
        assert all(self.alive(pid) for pid in pids)
        driver.cancel(handle)
        self.finish(driver, handle)
        assert receiver.reports(launch.key).finished["outcome"] == "canceled"
        assert [pid for pid in pids if self.alive(pid)] == []
        assert self.processes_of(launch) == []

    def test_cancel_returns_at_once(self, driver: Driver, receiver: Receiver) -> None:
        launch = self.new_launch(receiver, *_COMMANDS["stubborn"], grace_seconds=5)
        handle = driver.launch(launch)
        self.wait_for_words(receiver, launch)
        started_at = time.monotonic()
        driver.cancel(handle)
        assert time.monotonic() - started_at < 5

    def test_a_script_gets_time_to_exit_cleanly(self, driver: Driver, receiver: Receiver) -> None:
        script = "trap 'sleep 0.5 && echo saved; exit 0' TERM; echo READY; "
        script += "while :; do sleep 0.1; done"
        launch = self.new_launch(receiver, "sh", "-c", script, grace_seconds=10)
        handle = driver.launch(launch)
        self.wait_for_words(receiver, launch)
        driver.cancel(handle)
        self.finish(driver, handle)
        assert b"saved\n" in receiver.reports(launch.key).stream()

    def test_every_process_gets_the_signal(self, driver: Driver, receiver: Receiver) -> None:
        """Even if its parent ignores the signal."""
        launch = self.new_launch(receiver, "python", "-c", _DEAF_PARENT, grace_seconds=2)
        handle = driver.launch(launch)
        self.wait_for_words(receiver, launch)
        driver.cancel(handle)
        self.finish(driver, handle)
        assert receiver.reports(launch.key).stream() == b"READY\nsaved\n"

    def test_cancel_may_be_repeated(self, driver: Driver, receiver: Receiver) -> None:
        launch = self.new_launch(receiver, "sleep", "60")
        handle = driver.launch(launch)
        for _ in range(3):
            driver.cancel(handle)
        self.finish(driver, handle)
        driver.cancel(handle)
        assert receiver.reports(launch.key).finished["outcome"] == "canceled"

    def test_cancel_of_an_ended_launch_changes_nothing(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        launch = self.new_launch(receiver, "sh", "-c", "exit 4")
        handle = driver.launch(launch)
        self.finish(driver, handle)
        driver.cancel(handle)
        assert self.finish(driver, handle).exit_code == 4
        assert receiver.reports(launch.key).finished["exit_code"] == 4

    def test_the_server_can_cancel_through_its_answer(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        launch = self.new_launch(receiver, "sh", "-c", "echo READY; sleep 60")
        handle = driver.launch(launch)
        self.wait_for_words(receiver, launch)
        receiver.reports(launch.key).canceled = True
        self.finish(driver, handle)
        assert receiver.reports(launch.key).finished["outcome"] == "canceled"

    def test_an_attempt_that_the_server_gave_up_ends(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        launch = self.new_launch(receiver, "sh", "-c", "echo READY $$; sleep 60")
        handle = driver.launch(launch)
        pid = self.wait_for_words(receiver, launch)[1]
        receiver.reports(launch.key).over = True
        self.finish(driver, handle)
        assert not self.alive(int(pid))

    def test_cancel_before_the_start_never_starts_it(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        snapshot = receiver.add_snapshot({"a.sh": b"echo started"})
        receiver.refused.add("blobs")
        launch = self.new_launch(receiver, "sh", "a.sh", snapshot=snapshot)
        handle = driver.launch(launch)
        self.wait_for_reports(receiver, launch, lambda reports: "preparing" in reports.kinds)
        driver.cancel(handle)
        self.finish(driver, handle)
        receiver.refused.clear()
        reports = receiver.reports(launch.key)
        assert reports.finished["outcome"] == "canceled"
        assert "starting" not in reports.kinds
        assert "output" not in reports.streams

    def test_cancel_of_a_dead_launch_ends_its_processes(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        launch = self.new_launch(receiver, "sh", "-c", "echo READY $$; sleep 60")
        handle = driver.launch(launch)
        pid = self.wait_for_words(receiver, launch)[1]
        self.kill_runner(driver, handle)
        driver.cancel(handle)
        self.finish(driver, handle)
        assert receiver.reports(launch.key).finished["outcome"] == "canceled"
        assert not self.alive(int(pid))

    def test_background_processes_end_with_the_script(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        script = "setsid sleep 60 & echo $!; exit 5"
        reports = self.run_shell(driver, receiver, script)
        assert reports.finished["exit_code"] == 5
        assert not self.alive(int(reports.stream()))

    def test_a_script_that_exceeds_its_timeout_is_killed(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        reports = self.run_shell(driver, receiver, "sleep 60 & echo $!; wait", timeout=0.5)
        assert reports.finished["exit_code"] == 124
        assert "timed out" in reports.finished["reason"]
        assert not self.alive(int(reports.stream()))

    # -- observing and forgetting

    def test_a_new_driver_finds_old_work(self, connect: Connect, receiver: Receiver) -> None:
        handle = connect().launch(self.new_launch(receiver, "sh", "-c", "sleep 0.2; exit 5"))
        assert self.finish(connect(), handle).exit_code == 5

    def test_poll_answers_in_order(self, driver: Driver, receiver: Receiver) -> None:
        scripts = ["exit 0", "exit 1", "sleep 60", "exit 2"]
        launches = [self.new_launch(receiver, "sh", "-c", script) for script in scripts]
        handles = [driver.launch(launch) for launch in launches]
        for number in (0, 1, 3):
            self.finish(driver, handles[number])
        observations = driver.poll([*handles, Handle("never-launched")])
        assert [observation.exit_code for observation in observations] == [0, 1, None, 2, None]
        assert [observations[2].phase, observations[4].phase] == [Phase.RUNNING, Phase.GONE]

    def test_forgotten_work_is_gone_without_a_trace(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        script = "mkdir -p locked/below; chmod 500 locked/below locked; echo x > outputs/x"
        launch = self.new_launch(receiver, "sh", "-c", script)
        handle = driver.launch(launch)
        self.finish(driver, handle)
        driver.forget(handle)
        driver.forget(handle)
        assert driver.poll([handle])[0].phase is Phase.GONE
        assert self.traces(handle) == []
        self.launches.remove(launch)

    def test_unknown_work_is_gone(self, driver: Driver) -> None:
        unknown = Handle("never-launched")
        driver.cancel(unknown)
        driver.forget(unknown)
        assert driver.poll([unknown])[0].phase is Phase.GONE
        assert driver.diagnose(unknown)
