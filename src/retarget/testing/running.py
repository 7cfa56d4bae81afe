"""Clauses of the driver contract: what a script gets, and what comes back from it."""

import base64
import hashlib
import json
import os
import threading
import traceback
import warnings
import zlib
from typing import Any
from uuid import uuid4

import pytest

from retarget.core.driver import Driver, Handle, Launch, Phase
from retarget.core.errors import LaunchRejected, TargetUnreachable
from retarget.testing.harness import Connect, ContractHarness
from retarget.testing.receiver import Receiver

_BYTES = {
    "binary": bytes(range(256)) * 40,
    "no final newline": b"first\nlast",
    "progress bar": b"".join(b"\r%3d%%" % n for n in range(101)),
    "burst": b"0123456789abcde\n" * 327680,
    "nothing": b"",
}
_RANK_NAMES = "RANK LOCAL_RANK NODE_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT"


class RunningClauses(ContractHarness):
    def test_a_reachable_target_reports_its_inventory(self, driver: Driver) -> None:
        inventory = driver.check()
        if inventory.own_queue:  # then it need not say what it has
            return
        sizes = [*inventory.nodes, *inventory.node_types]
        assert sizes, "without nodes and node types, no job can start; set `own_queue`"
        assert all(size.cpus > 0 and size.memory > 0 for size in sizes)
        names = [node.name for node in inventory.nodes]
        assert len(set(names)) == len(names)
        types = {node_type.name: node_type for node_type in inventory.node_types}
        assert all(size.min_nodes <= size.max_nodes for size in types.values())
        assert {node.type for node in inventory.nodes if node.type} <= types.keys()

    def test_a_missing_target_is_unreachable(self, connect_nowhere: Connect) -> None:
        with pytest.raises(TargetUnreachable):
            connect_nowhere().check()

    def test_a_launch_without_a_command_is_rejected(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        with pytest.raises(LaunchRejected):
            driver.launch(self.new_launch(receiver))

    def test_planning_is_pure(self, driver: Driver, receiver: Receiver) -> None:
        launch = Launch(key=uuid4().hex, job="j", name="n", command=("true",), url=receiver.url)
        assert driver.plan(launch) == driver.plan(launch)
        assert driver.poll([Handle(launch.key)])[0].phase is Phase.GONE

    # -- what comes back

    @pytest.mark.parametrize(
        ("script", "code", "outcome"),
        [
            ("exit 0", 0, "succeeded"),
            ("exit 3", 3, "failed"),
            ("kill -KILL $$", 137, "failed"),
            ("kill -TERM $$", 143, "failed"),
        ],
    )
    def test_the_exit_code_comes_back(
        self, driver: Driver, receiver: Receiver, script: str, code: int, outcome: str
    ) -> None:
        launch = self.new_launch(receiver, "sh", "-c", script)
        handle = driver.launch(launch)
        assert self.finish(driver, handle).exit_code == code
        finished = receiver.reports(launch.key).finished
        assert (finished["exit_code"], finished["outcome"]) == (code, outcome)
        assert bool(finished["reason"]) == (code != 0)

    def test_events_come_in_order_and_once(self, driver: Driver, receiver: Receiver) -> None:
        reports = self.run_shell(driver, receiver, "true")
        kinds = [kind for kind in reports.kinds if kind != "environment"]
        assert kinds == ["preparing", "starting", "started", "exited", "finished"]

    @pytest.mark.parametrize("payload", _BYTES)
    def test_output_arrives_byte_for_byte(
        self, driver: Driver, receiver: Receiver, payload: str
    ) -> None:
        packed = base64.b64encode(zlib.compress(_BYTES[payload])).decode()
        unpack = f"zlib.decompress(base64.b64decode({packed!r}))"
        code = f"import base64, sys, zlib; sys.stdout.buffer.write({unpack})"
        reports = self.run(driver, receiver, self.new_launch(receiver, "python", "-c", code))
        assert _fingerprint(reports.stream()) == _fingerprint(_BYTES[payload])

    def test_streams_are_sent_only_once(self, driver: Driver, receiver: Receiver) -> None:
        script = "for n in 1 2 3 4; do echo $n; echo $n >> logs/n; sleep 0.2; done"
        reports = self.run_shell(driver, receiver, script)
        assert (
            reports.streamed_bytes == sum(len(stream) for stream in reports.streams.values()) == 16
        )

    def test_stderr_and_stdout_are_one_stream_in_order(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        reports = self.run_shell(driver, receiver, "echo one; echo two >&2; echo three")
        assert reports.stream() == b"one\ntwo\nthree\n"

    def test_output_arrives_while_the_script_runs(self, driver: Driver, receiver: Receiver) -> None:
        launch = self.new_launch(
            receiver, "python", "-c", "import time; print('here'); time.sleep(60)"
        )
        driver.launch(launch)
        assert self.wait_for_words(receiver, launch) == ["here"]

    # -- what the script gets

    def test_variables_reach_the_script(self, driver: Driver, receiver: Receiver) -> None:
        variables = {"WHO": "wörld", "LINES": "a\nb", "NOTHING": "", "QUOTED": "'\"$HOME"}
        code = (
            f"import json, os; print(json.dumps([os.environ[name] for name in {list(variables)}]))"
        )
        launch = self.new_launch(receiver, "python", "-c", code, variables=variables)
        reports = self.run(driver, receiver, launch)
        assert json.loads(reports.stream()) == list(variables.values())

    def test_the_script_reaches_the_tracking_api_with_its_own_token(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        code = (
            "import os, urllib.request as u\n"
            "uri, token = os.environ['MLFLOW_TRACKING_URI'], os.environ['MLFLOW_TRACKING_TOKEN']\n"
            "head = {'Authorization': f'Bearer {token}'}\n"
            "print(u.urlopen(u.Request(f'{uri}/api/2.0/mlflow', headers=head)).read().decode())\n"
            f"print({receiver.runner_key!r} in os.environ.values())"
        )
        reports = self.run(driver, receiver, self.new_launch(receiver, "python", "-c", code))
        assert reports.stream() == b"{}\nFalse\n"
        assert receiver.tracking == [("/api/2.0/mlflow", f"Bearer {receiver.script_token}")]

    def test_the_script_has_an_empty_input(self, driver: Driver, receiver: Receiver) -> None:
        assert self.run_shell(driver, receiver, "cat; echo read").stream() == b"read\n"

    def test_no_signal_is_ignored_or_blocked(self, driver: Driver, receiver: Receiver) -> None:
        command = ("grep", "-E", "Sig(Ign|Blk)", "/proc/self/status")
        reports = self.run(driver, receiver, self.new_launch(receiver, *command))
        standard = (1 << 31) - 1  # higher signals belong to the C library
        masks = [int(word, 16) & standard for word in reports.stream().split()[1::2]]
        assert masks == [0, 0]

    def test_the_script_knows_its_job(self, driver: Driver, receiver: Receiver) -> None:
        launch = self.new_launch(receiver, "sh", "-c", "echo $AZUREML_RUN_ID $RETARGET_JOB")
        reports = self.run(driver, receiver, launch)
        assert reports.stream().decode().split() == [launch.job, launch.name]

    @pytest.mark.parametrize(
        ("fields", "threads"),
        [
            ({"cpus": 3}, b"3"),
            ({"cpus": 4, "processes_per_node": 2}, b"2"),
            ({"cpus": 0.5}, b"1"),
            ({"cpus": 3, "variables": {"OMP_NUM_THREADS": "7"}}, b"7"),
        ],
    )
    def test_threads_follow_the_cores_unless_set(
        self, driver: Driver, receiver: Receiver, fields: dict[str, Any], threads: bytes
    ) -> None:
        reports = self.run_shell(driver, receiver, "echo $OMP_NUM_THREADS", **fields)
        assert (reports.stream() or reports.stream("rank-0")).strip() == threads

    def test_an_unknown_command_is_named(self, driver: Driver, receiver: Receiver) -> None:
        reports = self.run(driver, receiver, self.new_launch(receiver, "no-such-program"))
        assert reports.finished["exit_code"] == 127
        assert "no-such-program" in reports.finished["reason"]
        assert "started" not in reports.kinds

    # -- ranks

    def test_every_process_gets_its_rank(self, driver: Driver, receiver: Receiver) -> None:
        code = f"import os; print(*[os.environ[n] for n in '{_RANK_NAMES}'.split()])"
        launch = self.new_launch(receiver, "python", "-c", code, processes_per_node=3)
        reports = self.run(driver, receiver, launch)
        ranks = [reports.stream(f"rank-{rank}").decode().split() for rank in range(3)]
        port = ranks[0][-1]
        assert ranks == [[f"{n}", f"{n}", "0", "3", "3", "127.0.0.1", port] for n in range(3)]
        assert 1024 < int(port) < 65536
        assert "output" not in reports.streams

    def test_the_first_rank_that_fails_is_the_reason_and_stops_the_others(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        script = "echo $$; test $RANK = 1 && exit 7; sleep 60"
        reports = self.run_shell(driver, receiver, script, processes_per_node=3)
        assert reports.finished["exit_code"] == 7
        assert "rank 1" in reports.finished["reason"]
        assert not any(self.alive(int(reports.stream(f"rank-{n}") or "0")) for n in (0, 2))

    # -- outputs and logs

    def test_outputs_are_collected(self, driver: Driver, receiver: Receiver) -> None:
        script = "printf a > outputs/a && mkdir outputs/b && printf c > outputs/b/c && cd logs"
        reports = self.run_shell(driver, receiver, script)
        assert reports.finished["outcome"] == "succeeded"
        assert reports.outputs == {"outputs/a": b"a", "outputs/b/c": b"c"}

    def test_outputs_of_a_failed_script_are_collected(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        reports = self.run_shell(driver, receiver, "printf half > outputs/model; exit 1")
        assert reports.outputs == {"outputs/model": b"half"}

    def test_outputs_are_collected_while_the_script_runs(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        launch = self.new_launch(receiver, "sh", "-c", "printf early > outputs/early; sleep 60")
        handle = driver.launch(launch)
        reports = self.wait_for_reports(receiver, launch, lambda reports: reports.outputs)
        assert reports.outputs == {"outputs/early": b"early"}
        assert driver.poll([handle])[0].phase is Phase.RUNNING

    def test_logs_stream_while_the_script_runs(self, driver: Driver, receiver: Receiver) -> None:
        script = "printf 'step 1\\n' > logs/train.log; sleep 60"
        launch = self.new_launch(receiver, "sh", "-c", script)
        driver.launch(launch)
        reports = self.wait_for_reports(
            receiver, launch, lambda reports: "logs/train.log" in reports.streams
        )
        assert reports.stream("logs/train.log") == b"step 1\n"

    # -- code

    def test_the_code_arrives_unchanged(self, driver: Driver, receiver: Receiver) -> None:
        large = os.urandom(3 << 20)
        files = {
            "run.sh": b"#!/bin/sh\nls -1F . pkg; cat link; sha256sum < pkg/large\n",
            "pkg/large": large,
            "pkg/plain": b"plain text\n",
            "empty": b"",
        }
        snapshot = receiver.add_snapshot(
            files, executable=("run.sh",), links={"link": "pkg/plain", "pkg/up": "../empty"}
        )
        reports = self.run(
            driver, receiver, self.new_launch(receiver, "./run.sh", snapshot=snapshot)
        )
        top = ".:\nempty\nlink@\nlogs/\noutputs/\npkg/\nrun.sh*\n\n"
        below = "pkg:\nlarge\nplain\nup@\nplain text\n"
        digest = hashlib.sha256(large).hexdigest()
        assert reports.stream().decode() == f"{top}{below}{digest}  -\n"

    def test_code_is_fetched_once(self, driver: Driver, receiver: Receiver) -> None:
        files = {"a.sh": b"echo a; . ./big", "big": b"# " + os.urandom(1 << 20).hex().encode()}
        snapshot = receiver.add_snapshot(files)
        for _ in range(2):
            launch = self.new_launch(receiver, "sh", "a.sh", snapshot=snapshot)
            assert self.run(driver, receiver, launch).stream() == b"a\n"
        downloads = [request for request in receiver.requests if "blobs" in request]
        assert len(downloads) == 3  # the manifest, all small files together, the large file

    def test_code_that_cannot_be_downloaded_fails_the_launch(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        snapshot = receiver.add_snapshot({"a.sh": b"echo a"})
        del receiver.blobs[snapshot]
        launch = self.new_launch(receiver, "sh", "a.sh", snapshot=snapshot)
        reports = self.run(driver, receiver, launch)
        assert reports.finished["outcome"] == "failed"
        assert "starting" not in reports.kinds

    # -- launching twice

    def test_launching_twice_starts_one(self, driver: Driver, receiver: Receiver) -> None:
        launch = self.new_launch(receiver, "sh", "-c", "echo $$")
        handle = driver.launch(launch)
        self.finish(driver, handle)
        printed = receiver.reports(launch.key).stream()
        assert driver.launch(launch) == handle
        self.finish(driver, handle)
        assert receiver.reports(launch.key).stream() == printed

    def test_launching_from_many_threads_starts_one(
        self, connect: Connect, receiver: Receiver
    ) -> None:
        launch = self.new_launch(receiver, "sh", "-c", "echo start; sleep 0.3")
        handles: list[Handle] = []
        gate = threading.Barrier(8)

        def launch_at_once() -> None:
            driver = connect()
            gate.wait()
            handles.append(driver.launch(launch))

        threads = [threading.Thread(target=launch_at_once) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.finish(connect(), handles[0])
        assert len(handles) == 8
        assert len(set(handles)) == 1
        assert receiver.reports(launch.key).stream() == b"start\n"
        assert receiver.reports(launch.key).kinds.count("starting") == 1

    def test_launching_from_many_processes_starts_one(
        self, connect: Connect, receiver: Receiver
    ) -> None:
        launch = self.new_launch(receiver, "sh", "-c", "echo start; sleep 0.3")
        children = [_fork(lambda: connect().launch(launch)) for _ in range(6)]
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * 6
        handle = connect().launch(launch)
        self.finish(connect(), handle)
        assert receiver.reports(launch.key).stream() == b"start\n"
        assert receiver.reports(launch.key).kinds.count("starting") == 1

    def test_a_launch_is_never_dead_right_after_its_start(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        """Launching a dead launch again is harmless, but reporting a live one as dead is wrong."""
        launches = [self.new_launch(receiver, "sleep", "60") for _ in range(5)]
        for launch in launches:
            assert driver.poll([driver.launch(launch)])[0].phase in (Phase.PENDING, Phase.RUNNING)


def _fingerprint(content: bytes) -> tuple[int, str, bytes, bytes]:
    """Return a summary of some bytes that is short enough to show in a failure."""
    return len(content), hashlib.sha256(content).hexdigest(), content[:40], content[-40:]


def _fork(work: object) -> int:
    assert callable(work)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # a fork with threads: they hold no lock
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:  # noqa: BLE001  shown: the parent sees only the exit code
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid
