"""Clauses of the driver contract: what the script finds, and what comes back of it."""

import base64
import hashlib
import json
import os
import threading
import warnings
import zlib
from typing import Any
from uuid import uuid4

import pytest

from retarget.core.driver import Driver, Handle, Launch, Phase
from retarget.core.errors import LaunchRejected, TargetUnreachable
from retarget.testing.bench import Bench, Connect
from retarget.testing.receiver import Receiver

_BYTES = {
    "binary": bytes(range(256)) * 40,
    "no final newline": b"first\nlast",
    "progress bar": b"".join(b"\r%3d%%" % n for n in range(101)),
    "burst": b"0123456789abcde\n" * 327680,
    "nothing": b"",
}
_RANK_NAMES = "RANK LOCAL_RANK NODE_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT"


class RunningClauses(Bench):
    def test_a_reachable_target_tells_what_it_has(self, driver: Driver) -> None:
        nodes = driver.check().nodes
        assert nodes
        assert all(node.cpus > 0 and node.memory > 0 for node in nodes)

    def test_an_absent_target_is_unreachable(self, connect_nowhere: Connect) -> None:
        with pytest.raises(TargetUnreachable):
            connect_nowhere().check()

    def test_a_hopeless_launch_is_rejected(self, driver: Driver, receiver: Receiver) -> None:
        with pytest.raises(LaunchRejected):
            driver.launch(self.launch_of(receiver))

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
        launch = self.launch_of(receiver, "sh", "-c", script)
        handle = driver.launch(launch)
        assert self.finish(driver, handle).exit_code == code
        finished = receiver.heard(launch.key).finished
        assert (finished["exit_code"], finished["outcome"]) == (code, outcome)
        assert bool(finished["reason"]) == (code != 0)

    def test_events_come_in_order_and_once(self, driver: Driver, receiver: Receiver) -> None:
        heard = self.run_shell(driver, receiver, "true")
        told = [kind for kind in heard.kinds if kind != "environment"]
        assert told == ["preparing", "starting", "started", "exited", "finished"]

    @pytest.mark.parametrize("payload", _BYTES)
    def test_output_comes_through_byte_for_byte(
        self, driver: Driver, receiver: Receiver, payload: str
    ) -> None:
        packed = base64.b64encode(zlib.compress(_BYTES[payload])).decode()
        unpack = f"zlib.decompress(base64.b64decode({packed!r}))"
        code = f"import base64, sys, zlib; sys.stdout.buffer.write({unpack})"
        heard = self.run(driver, receiver, self.launch_of(receiver, "python", "-c", code))
        assert _fingerprint(heard.stream()) == _fingerprint(_BYTES[payload])

    def test_what_has_arrived_is_not_sent_again(self, driver: Driver, receiver: Receiver) -> None:
        script = "for n in 1 2 3 4; do echo $n; echo $n >> logs/n; sleep 0.2; done"
        heard = self.run_shell(driver, receiver, script)
        assert heard.carried == sum(len(held) for held in heard.streams.values()) == 16

    def test_errors_go_with_the_output_in_their_order(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        heard = self.run_shell(driver, receiver, "echo one; echo two >&2; echo three")
        assert heard.stream() == b"one\ntwo\nthree\n"

    def test_output_comes_while_the_script_runs(self, driver: Driver, receiver: Receiver) -> None:
        launch = self.launch_of(
            receiver, "python", "-c", "import time; print('here'); time.sleep(60)"
        )
        driver.launch(launch)
        assert self.hear_line(receiver, launch) == ["here"]

    # -- what the script finds

    def test_variables_come_through(self, driver: Driver, receiver: Receiver) -> None:
        env = {"WHO": "wörld", "LINES": "a\nb", "NOTHING": "", "QUOTED": "'\"$HOME"}
        code = f"import json, os; print(json.dumps([os.environ[name] for name in {list(env)}]))"
        launch = self.launch_of(receiver, "python", "-c", code, env=env)
        heard = self.run(driver, receiver, launch)
        assert json.loads(heard.stream()) == list(env.values())

    def test_the_script_has_no_input_to_wait_for(self, driver: Driver, receiver: Receiver) -> None:
        assert self.run_shell(driver, receiver, "cat; echo read").stream() == b"read\n"

    def test_signals_are_as_in_a_shell(self, driver: Driver, receiver: Receiver) -> None:
        asked = ("grep", "-E", "Sig(Ign|Blk)", "/proc/self/status")
        heard = self.run(driver, receiver, self.launch_of(receiver, *asked))
        standard = (1 << 31) - 1  # above are the C library's own
        found = [int(word, 16) & standard for word in heard.stream().split()[1::2]]
        assert found == [0, 0]

    def test_the_job_is_named_to_the_script(self, driver: Driver, receiver: Receiver) -> None:
        launch = self.launch_of(receiver, "sh", "-c", "echo $AZUREML_RUN_ID $RETARGET_JOB")
        heard = self.run(driver, receiver, launch)
        assert heard.stream().decode().split() == [launch.job, launch.name]

    @pytest.mark.parametrize(
        ("asked", "threads"),
        [
            ({"cpus": 3}, b"3"),
            ({"cpus": 4, "processes_per_node": 2}, b"2"),
            ({"cpus": 0.5}, b"1"),
            ({"cpus": 3, "env": {"OMP_NUM_THREADS": "7"}}, b"7"),
        ],
    )
    def test_threads_follow_the_cores_unless_told(
        self, driver: Driver, receiver: Receiver, asked: dict[str, Any], threads: bytes
    ) -> None:
        heard = self.run_shell(driver, receiver, "echo $OMP_NUM_THREADS", **asked)
        assert (heard.stream() or heard.stream("rank-0")).strip() == threads

    def test_an_unknown_command_is_named(self, driver: Driver, receiver: Receiver) -> None:
        heard = self.run(driver, receiver, self.launch_of(receiver, "no-such-program"))
        assert heard.finished["exit_code"] == 127
        assert "no-such-program" in heard.finished["reason"]
        assert "started" not in heard.kinds

    # -- ranks

    def test_every_process_gets_its_rank(self, driver: Driver, receiver: Receiver) -> None:
        code = f"import os; print(*[os.environ[n] for n in '{_RANK_NAMES}'.split()])"
        launch = self.launch_of(receiver, "python", "-c", code, processes_per_node=3)
        heard = self.run(driver, receiver, launch)
        ranks = [heard.stream(f"rank-{rank}").decode().split() for rank in range(3)]
        port = ranks[0][-1]
        assert ranks == [[f"{n}", f"{n}", "0", "3", "3", "127.0.0.1", port] for n in range(3)]
        assert 1024 < int(port) < 65536
        assert "output" not in heard.streams

    def test_the_first_rank_that_fails_is_the_reason_and_stops_the_others(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        script = "echo $$; test $RANK = 1 && exit 7; sleep 60"
        heard = self.run_shell(driver, receiver, script, processes_per_node=3)
        assert heard.finished["exit_code"] == 7
        assert "rank 1" in heard.finished["reason"]
        assert not any(self.alive(int(heard.stream(f"rank-{n}") or "0")) for n in (0, 2))

    # -- outputs and logs

    def test_outputs_are_collected(self, driver: Driver, receiver: Receiver) -> None:
        script = "printf a > outputs/a && mkdir outputs/b && printf c > outputs/b/c && cd logs"
        heard = self.run_shell(driver, receiver, script)
        assert heard.finished["outcome"] == "succeeded"
        assert heard.outputs == {"outputs/a": b"a", "outputs/b/c": b"c"}

    def test_outputs_of_a_failed_script_are_collected(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        heard = self.run_shell(driver, receiver, "printf half > outputs/model; exit 1")
        assert heard.outputs == {"outputs/model": b"half"}

    def test_outputs_are_collected_while_the_script_runs(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        launch = self.launch_of(receiver, "sh", "-c", "printf early > outputs/early; sleep 60")
        handle = driver.launch(launch)
        heard = self.hear(receiver, launch, lambda seen: seen.outputs)
        assert heard.outputs == {"outputs/early": b"early"}
        assert driver.poll([handle])[0].phase is Phase.RUNNING

    def test_logs_stream_while_the_script_runs(self, driver: Driver, receiver: Receiver) -> None:
        script = "printf 'step 1\\n' > logs/train.log; sleep 60"
        launch = self.launch_of(receiver, "sh", "-c", script)
        driver.launch(launch)
        heard = self.hear(receiver, launch, lambda seen: "logs/train.log" in seen.streams)
        assert heard.stream("logs/train.log") == b"step 1\n"

    # -- code

    def test_the_code_is_laid_out_as_it_was(self, driver: Driver, receiver: Receiver) -> None:
        large = os.urandom(3 << 20)
        files = {
            "run.sh": b"#!/bin/sh\nls -1F . pkg; cat link; sha256sum < pkg/large\n",
            "pkg/large": large,
            "pkg/plain": b"plain text\n",
            "empty": b"",
        }
        snapshot = receiver.snapshot(
            files, executable=("run.sh",), links={"link": "pkg/plain", "pkg/up": "../empty"}
        )
        heard = self.run(driver, receiver, self.launch_of(receiver, "./run.sh", snapshot=snapshot))
        top = ".:\nempty\nlink@\nlogs/\noutputs/\npkg/\nrun.sh*\n\n"
        below = "pkg:\nlarge\nplain\nup@\nplain text\n"
        digest = hashlib.sha256(large).hexdigest()
        assert heard.stream().decode() == f"{top}{below}{digest}  -\n"

    def test_code_is_fetched_once(self, driver: Driver, receiver: Receiver) -> None:
        files = {"a.sh": b"echo a; . ./big", "big": b"# " + os.urandom(1 << 20).hex().encode()}
        snapshot = receiver.snapshot(files)
        for _ in range(2):
            launch = self.launch_of(receiver, "sh", "a.sh", snapshot=snapshot)
            assert self.run(driver, receiver, launch).stream() == b"a\n"
        fetched = [request for request in receiver.requests if "blobs" in request]
        assert len(fetched) == 3  # the manifest, the small ones together, the large one

    def test_code_that_cannot_be_had_fails_the_launch(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        snapshot = receiver.snapshot({"a.sh": b"echo a"})
        del receiver.blobs[snapshot]
        launch = self.launch_of(receiver, "sh", "a.sh", snapshot=snapshot)
        heard = self.run(driver, receiver, launch)
        assert heard.finished["outcome"] == "failed"
        assert "starting" not in heard.kinds

    # -- launching twice

    def test_launching_twice_starts_one(self, driver: Driver, receiver: Receiver) -> None:
        launch = self.launch_of(receiver, "sh", "-c", "echo $$")
        handle = driver.launch(launch)
        self.finish(driver, handle)
        printed = receiver.heard(launch.key).stream()
        assert driver.launch(launch) == handle
        self.finish(driver, handle)
        assert receiver.heard(launch.key).stream() == printed

    def test_launching_from_many_threads_starts_one(
        self, connect: Connect, receiver: Receiver
    ) -> None:
        launch = self.launch_of(receiver, "sh", "-c", "echo start; sleep 0.3")
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
        assert receiver.heard(launch.key).stream() == b"start\n"
        assert receiver.heard(launch.key).kinds.count("starting") == 1

    def test_launching_from_many_processes_starts_one(
        self, connect: Connect, receiver: Receiver
    ) -> None:
        launch = self.launch_of(receiver, "sh", "-c", "echo start; sleep 0.3")
        children = [_fork(lambda: connect().launch(launch)) for _ in range(6)]
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * 6
        handle = connect().launch(launch)
        self.finish(connect(), handle)
        assert receiver.heard(launch.key).stream() == b"start\n"
        assert receiver.heard(launch.key).kinds.count("starting") == 1

    def test_a_launch_is_seen_from_the_first_instant(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        """Launching again what looks dead is harmless; looking dead when it is not is untrue."""
        launches = [self.launch_of(receiver, "sleep", "60") for _ in range(5)]
        for launch in launches:
            assert driver.poll([driver.launch(launch)])[0].phase in (Phase.PENDING, Phase.RUNNING)


def _fingerprint(content: bytes) -> tuple[int, str, bytes, bytes]:
    """Say enough of some bytes to compare them, and little enough to show them."""
    return len(content), hashlib.sha256(content).hexdigest(), content[:40], content[-40:]


def _fork(work: object) -> int:
    assert callable(work)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads that fork: none is held
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid
