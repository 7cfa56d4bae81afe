"""Clauses of the driver contract: surviving a lost server or a killed runner."""

import hashlib
import time

import pytest

from retarget.core.driver import Driver, Phase
from retarget.testing.harness import Connect, ContractHarness
from retarget.testing.receiver import Receiver

_PRINT = """
import sys, time
for n in range(40):
    print("line", n, "x" * 2000)
    time.sleep(0.05)
open("outputs/end", "w").write("end")
"""
_PRINTED = "".join(f"line {n} {'x' * 2000}\n" for n in range(40)).encode()

_UNTIL_ORPHANED = 'while [ "$(cut -d" " -f4 /proc/$$/stat)" = $PPID ]; do sleep 0.05; done'


class SurvivingClauses(ContractHarness):
    @pytest.mark.parametrize("new_port", [False, True], ids=["same port", "another port"])
    def test_a_server_that_comes_back_gets_everything_once(
        self, connect: Connect, receiver: Receiver, new_port: bool
    ) -> None:
        launch = self.new_launch(receiver, "python", "-c", _PRINT)
        handle = connect().launch(launch)
        self.wait_for_words(receiver, launch, lines=3)
        for _ in range(2):
            receiver.stop()
            time.sleep(0.5)
            receiver.start(new_port=new_port)
            connect().launch(self.with_current_url(launch, receiver))
            self.wait_for_more_output(receiver, launch)
        assert self.finish(connect(), handle).exit_code == 0
        reports = receiver.reports(launch.key)
        assert [event["seq"] for event in reports.events] == list(range(1, len(reports.events) + 1))
        assert reports.kinds.count("started") == reports.kinds.count("finished") == 1
        assert hashlib.sha256(reports.stream()).digest() == hashlib.sha256(_PRINTED).digest()
        assert reports.outputs == {"outputs/end": b"end"}

    def test_the_end_is_reported_only_after_everything_else(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        receiver.refused |= {"streams", "outputs"}
        launch = self.new_launch(receiver, "sh", "-c", "echo log; echo kept > outputs/kept")
        handle = driver.launch(launch)
        self.wait_for_reports(receiver, launch, lambda reports: "exited" in reports.kinds)
        time.sleep(0.3)
        assert "finished" not in receiver.reports(launch.key).kinds
        assert driver.poll([handle])[0].phase is Phase.RUNNING
        receiver.refused.clear()
        self.finish(driver, handle)
        reports = receiver.reports(launch.key)
        assert (reports.stream(), reports.outputs) == (b"log\n", {"outputs/kept": b"kept\n"})
        assert reports.finished["outcome"] == "succeeded"

    def test_a_stream_that_the_server_refuses_delays_nothing(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        name = "n" * 220
        reports = self.run_shell(
            driver, receiver, f"echo out; echo in > logs/{name}; echo > logs/z"
        )
        assert reports.finished["outcome"] == "succeeded"
        assert (reports.stream(), reports.stream("logs/z")) == (b"out\n", b"\n")
        assert b"is not streamed" in reports.stream("prepare")

    def test_an_endless_stream_does_not_delay_the_others(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        code = (
            "import os, time; begin = time.time()\n"
            "while time.time() < begin + 60:\n"
            "    os.write(1, b'y' * 1000); time.sleep(0.005)\n"
            "    if time.time() > begin + 0.5: open('logs/z', 'w').write('z')"
        )
        receiver.stream_delay = 0.1  # when one part is accepted, the next one is ready
        launch = self.new_launch(receiver, "python", "-c", code)
        handle = driver.launch(launch)
        self.wait_for_reports(receiver, launch, lambda reports: "logs/z" in reports.streams)
        receiver.stream_delay = 0.0
        driver.cancel(handle)
        self.finish(driver, handle)

    def test_a_runner_killed_while_it_prepares_is_replaced(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        snapshot = receiver.add_snapshot({"a.sh": b"echo started; exit 3"})
        receiver.refused.add("blobs")
        launch = self.new_launch(receiver, "sh", "a.sh", snapshot=snapshot)
        handle = driver.launch(launch)
        self.wait_for_reports(receiver, launch, lambda reports: "preparing" in reports.kinds)
        self.kill_runner(driver, handle)
        receiver.refused.clear()
        assert driver.launch(launch) == handle
        assert self.finish(driver, handle).exit_code == 3
        reports = receiver.reports(launch.key)
        assert reports.stream() == b"started\n"
        assert reports.kinds.count("starting") == 1

    @pytest.mark.parametrize("processes", [1, 2])
    def test_a_script_that_lost_its_runner_is_killed_and_not_restarted(
        self, driver: Driver, receiver: Receiver, processes: int
    ) -> None:
        names = ["output"] if processes == 1 else ["rank-0", "rank-1"]
        script = "trap '' TERM; echo $$; env -i sleep 60 & echo $!; setsid sleep 60 & echo $!; "
        script += "while :; do sleep 1; done"
        launch = self.new_launch(
            receiver, "sh", "-c", script, processes_per_node=processes, grace_seconds=0.3
        )
        handle = driver.launch(launch)
        reports = self.wait_for_reports(
            receiver,
            launch,
            lambda reports: all(reports.stream(name).count(b"\n") == 3 for name in names),
        )
        streams = {name: reports.stream(name) for name in names}
        pids = [int(word) for name in names for word in streams[name].split()]
        self.kill_runner(driver, handle)
        assert all(self.alive(pid) == self.scripts_outlive_runners for pid in pids)
        driver.launch(launch)
        self.finish(driver, handle)
        assert [pid for pid in pids if self.alive(pid)] == []
        assert reports.finished["outcome"] == "lost"
        assert reports.kinds.count("starting") == reports.kinds.count("exited") == 1
        assert {name: reports.stream(name) for name in names} == streams

    def test_the_log_of_a_script_that_lost_its_runner_is_complete(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        script = f"echo before; {_UNTIL_ORPHANED}; printf after; kill $$"
        launch = self.new_launch(receiver, "sh", "-c", script)
        handle = driver.launch(launch)
        self.wait_for_words(receiver, launch)
        self.kill_runner(driver, handle)
        self.wait_until(lambda: not self.processes_of(launch))
        driver.launch(launch)
        self.finish(driver, handle)
        reports = receiver.reports(launch.key)
        assert reports.finished["outcome"] == "lost"
        assert reports.stream() == (
            b"before\nafter" if self.scripts_outlive_runners else b"before\n"
        )

    def test_after_a_runner_is_killed_past_the_exit_only_the_report_is_finished(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        receiver.refused |= {"streams", "outputs"}
        launch = self.new_launch(receiver, "sh", "-c", "echo $$; echo kept > outputs/kept; exit 3")
        handle = driver.launch(launch)
        self.wait_for_reports(receiver, launch, lambda reports: "exited" in reports.kinds)
        self.kill_runner(driver, handle)
        receiver.refused.clear()
        driver.launch(launch)
        assert self.finish(driver, handle).exit_code == 3
        reports = receiver.reports(launch.key)
        assert reports.finished["outcome"] == "failed"
        assert reports.kinds.count("starting") == reports.kinds.count("exited") == 1
        assert len(reports.stream().split()) == 1
        assert reports.outputs == {"outputs/kept": b"kept\n"}

    def test_a_launch_with_lost_after_ends_itself_when_no_server_is_reached(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        """After that time it can be started on another node without running twice."""
        launch = self.new_launch(receiver, "sh", "-c", "echo $$; sleep 60", lost_after_seconds=2.0)
        handle = driver.launch(launch)
        pid = int(self.wait_for_words(receiver, launch)[0])
        receiver.stop()
        self.wait_until(lambda: not self.alive(pid))
        receiver.start()
        driver.launch(self.with_current_url(launch, receiver))
        self.finish(driver, handle)
        finished = receiver.reports(launch.key).finished
        assert finished["outcome"] == "lost"
        assert finished["reason"] == "the server was unreachable for 2 s"

    def test_a_finished_launch_is_not_resumed(self, driver: Driver, receiver: Receiver) -> None:
        launch = self.new_launch(receiver, "true")
        handle = driver.launch(launch)
        self.finish(driver, handle)
        request_count = len(receiver.requests)
        driver.launch(launch)
        driver.cancel(handle)
        time.sleep(0.3)
        assert driver.poll([handle])[0].phase is Phase.EXITED
        assert len(receiver.requests) == request_count

    def test_a_launch_without_a_server_ends_as_well(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        launch = self.new_launch(receiver, "sh", "-c", "exit 6", url="")
        assert self.finish(driver, driver.launch(launch)).exit_code == 6
