"""Clauses of the driver contract: what a lost server or a killed runner must not change."""

import hashlib
import time

import pytest

from retarget.core.driver import Driver, Phase
from retarget.testing.bench import Bench, Connect
from retarget.testing.receiver import Receiver

_TALK = """
import sys, time
for n in range(40):
    print("line", n, "x" * 2000)
    time.sleep(0.05)
open("outputs/end", "w").write("end")
"""
_TALKED = "".join(f"line {n} {'x' * 2000}\n" for n in range(40)).encode()

_UNTIL_ORPHANED = 'while [ "$(cut -d" " -f4 /proc/$$/stat)" = $PPID ]; do sleep 0.05; done'


class SurvivingClauses(Bench):
    @pytest.mark.parametrize("elsewhere", [False, True], ids=["same port", "another port"])
    def test_a_server_that_comes_back_gets_everything_once(
        self, connect: Connect, receiver: Receiver, elsewhere: bool
    ) -> None:
        launch = self.launch_of(receiver, "python", "-c", _TALK)
        handle = connect().launch(launch)
        self.hear_line(receiver, launch, lines=3)
        for _ in range(2):
            receiver.stop()
            time.sleep(0.5)
            receiver.start(elsewhere=elsewhere)
            connect().launch(self.again(launch, receiver))
            self.hear_more(receiver, launch)
        assert self.finish(connect(), handle).exit_code == 0
        heard = receiver.heard(launch.key)
        assert [event["seq"] for event in heard.events] == list(range(1, len(heard.events) + 1))
        assert heard.kinds.count("started") == heard.kinds.count("finished") == 1
        assert hashlib.sha256(heard.stream()).digest() == hashlib.sha256(_TALKED).digest()
        assert heard.outputs == {"outputs/end": b"end"}

    def test_the_end_is_told_only_after_everything_else(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        receiver.refuses |= {"streams", "outputs"}
        launch = self.launch_of(receiver, "sh", "-c", "echo log; echo kept > outputs/kept")
        handle = driver.launch(launch)
        self.hear(receiver, launch, lambda heard: "exited" in heard.kinds)
        time.sleep(0.3)
        assert "finished" not in receiver.heard(launch.key).kinds
        assert driver.poll([handle])[0].phase is Phase.RUNNING
        receiver.refuses.clear()
        self.finish(driver, handle)
        heard = receiver.heard(launch.key)
        assert (heard.stream(), heard.outputs) == (b"log\n", {"outputs/kept": b"kept\n"})
        assert heard.finished["outcome"] == "succeeded"

    def test_a_stream_that_the_server_will_not_have_holds_up_nothing(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        name = "n" * 220
        heard = self.run_shell(driver, receiver, f"echo out; echo in > logs/{name}; echo > logs/z")
        assert heard.finished["outcome"] == "succeeded"
        assert (heard.stream(), heard.stream("logs/z")) == (b"out\n", b"\n")
        assert b"is not streamed" in heard.stream("prepare")

    def test_a_stream_without_end_keeps_no_other_waiting(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        code = (
            "import os, time; begin = time.time()\n"
            "while time.time() < begin + 60:\n"
            "    os.write(1, b'y' * 1000); time.sleep(0.005)\n"
            "    if time.time() > begin + 0.5: open('logs/z', 'w').write('z')"
        )
        receiver.pause = 0.1  # by the time it has one part, there is another
        launch = self.launch_of(receiver, "python", "-c", code)
        handle = driver.launch(launch)
        self.hear(receiver, launch, lambda heard: "logs/z" in heard.streams)
        receiver.pause = 0.0
        driver.cancel(handle)
        self.finish(driver, handle)

    def test_a_runner_killed_in_its_preparations_is_replaced(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        snapshot = receiver.snapshot({"a.sh": b"echo started; exit 3"})
        receiver.refuses.add("blobs")
        launch = self.launch_of(receiver, "sh", "a.sh", snapshot=snapshot)
        handle = driver.launch(launch)
        self.hear(receiver, launch, lambda heard: "preparing" in heard.kinds)
        self.kill_runner(driver, handle)
        receiver.refuses.clear()
        assert driver.launch(launch) == handle
        assert self.finish(driver, handle).exit_code == 3
        heard = receiver.heard(launch.key)
        assert heard.stream() == b"started\n"
        assert heard.kinds.count("starting") == 1

    @pytest.mark.parametrize("processes", [1, 2])
    def test_a_script_that_lost_its_runner_is_ended_and_not_started_again(
        self, driver: Driver, receiver: Receiver, processes: int
    ) -> None:
        names = ["output"] if processes == 1 else ["rank-0", "rank-1"]
        script = "trap '' TERM; echo $$; env -i sleep 60 & echo $!; setsid sleep 60 & echo $!; "
        script += "while :; do sleep 1; done"
        launch = self.launch_of(
            receiver, "sh", "-c", script, processes_per_node=processes, grace=0.3
        )
        handle = driver.launch(launch)
        heard = self.hear(
            receiver,
            launch,
            lambda heard: all(heard.stream(name).count(b"\n") == 3 for name in names),
        )
        said = {name: heard.stream(name) for name in names}
        pids = [int(word) for name in names for word in said[name].split()]
        self.kill_runner(driver, handle)
        assert all(self.alive(pid) == self.scripts_outlive_runners for pid in pids)
        driver.launch(launch)
        self.finish(driver, handle)
        assert [pid for pid in pids if self.alive(pid)] == []
        assert heard.finished["outcome"] == "lost"
        assert heard.kinds.count("starting") == heard.kinds.count("exited") == 1
        assert {name: heard.stream(name) for name in names} == said

    def test_the_log_of_a_script_that_lost_its_runner_is_complete(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        script = f"echo before; {_UNTIL_ORPHANED}; printf after; kill $$"
        launch = self.launch_of(receiver, "sh", "-c", script)
        handle = driver.launch(launch)
        self.hear_line(receiver, launch)
        self.kill_runner(driver, handle)
        self.see(lambda: not self.processes_of(launch))
        driver.launch(launch)
        self.finish(driver, handle)
        heard = receiver.heard(launch.key)
        assert heard.finished["outcome"] == "lost"
        assert heard.stream() == (b"before\nafter" if self.scripts_outlive_runners else b"before\n")

    def test_a_runner_killed_after_the_exit_leaves_only_its_report_to_finish(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        receiver.refuses |= {"streams", "outputs"}
        launch = self.launch_of(receiver, "sh", "-c", "echo $$; echo kept > outputs/kept; exit 3")
        handle = driver.launch(launch)
        self.hear(receiver, launch, lambda heard: "exited" in heard.kinds)
        self.kill_runner(driver, handle)
        receiver.refuses.clear()
        driver.launch(launch)
        assert self.finish(driver, handle).exit_code == 3
        heard = receiver.heard(launch.key)
        assert heard.finished["outcome"] == "failed"
        assert heard.kinds.count("starting") == heard.kinds.count("exited") == 1
        assert len(heard.stream().split()) == 1
        assert heard.outputs == {"outputs/kept": b"kept\n"}

    def test_a_fenced_launch_ends_by_itself_when_no_server_is_reached(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        """So it may be tried elsewhere after that time, and never runs twice."""
        launch = self.launch_of(receiver, "sh", "-c", "echo $$; sleep 60", fence=2.0)
        handle = driver.launch(launch)
        pid = int(self.hear_line(receiver, launch)[0])
        receiver.stop()
        self.see(lambda: not self.alive(pid))
        receiver.start()
        driver.launch(self.again(launch, receiver))
        self.finish(driver, handle)
        finished = receiver.heard(launch.key).finished
        assert finished["outcome"] == "lost"
        assert finished["reason"] == "no server was reached for 2 s"

    def test_a_launch_that_did_everything_is_not_taken_up_again(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        launch = self.launch_of(receiver, "true")
        handle = driver.launch(launch)
        self.finish(driver, handle)
        before = len(receiver.requests)
        driver.launch(launch)
        driver.cancel(handle)
        time.sleep(0.3)
        assert driver.poll([handle])[0].phase is Phase.EXITED
        assert len(receiver.requests) == before

    def test_a_launch_that_reports_to_nobody_ends_all_the_same(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        launch = self.launch_of(receiver, "sh", "-c", "exit 6", url="", token="")
        assert self.finish(driver, driver.launch(launch)).exit_code == 6
