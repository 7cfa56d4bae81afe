"""The socket of a runner that runs commands beside its script, used directly."""

import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from retarget.core.environments import Environment
from retarget.runner import folder_socket
from retarget.runner.exec_frames import EXIT, INPUT, OUTPUT, START, Frames, pack
from retarget.runner.processes import read_process
from tests.runner.engines import ContainerEngine
from tests.runner.harness import PATIENCE, HarnessLaunch, RunnerHarness
from tests.testbeds.engines import IMAGE

_WAIT = "import os, time\nwhile not os.path.exists('stop'): time.sleep(0.02)"


def _launch(harness: RunnerHarness) -> HarnessLaunch:
    """Return a launch whose script runs until `_stop`."""
    launch = harness.launch("python", "-c", _WAIT).start()
    deadline = time.monotonic() + PATIENCE
    while not (launch.folder / "exec").exists():
        assert time.monotonic() < deadline, "the runner does not listen"
        time.sleep(0.02)
    return launch


def _stop(launch: HarnessLaunch) -> None:
    (launch.folder / "work/stop").touch()


def _start(*command: str, **fields: Any) -> bytes:
    request: dict[str, Any] = {"command": command, "terminal": None, "rank": 0, **fields}
    return pack(START, json.dumps(request).encode())


def _answer(launch: HarnessLaunch, content: bytes) -> list[tuple[int, bytes]]:
    """Send bytes, and return all frames that come back."""
    with folder_socket.connect(str(launch.folder), "exec") as connection:
        connection.settimeout(PATIENCE)
        connection.sendall(content)
        return _frames(connection)


def _frames(connection: socket.socket) -> list[tuple[int, bytes]]:
    frames, answers = Frames(), list[tuple[int, bytes]]()
    while content := connection.recv(1 << 16):
        answers += frames.add(content)
    return answers


def test_a_command_runs_beside_the_script(harness: RunnerHarness) -> None:
    launch = _launch(harness)
    answers = _answer(launch, _start("sh", "-c", "echo $RETARGET_JOB_ID; pwd; exit 3"))
    output = b"".join(content for kind, content in answers if kind == OUTPUT)
    assert output.decode().splitlines() == [launch.launch.job, str(launch.folder / "work")]
    assert answers[-1] == (EXIT, b'{"code": 3, "reason": ""}')
    _stop(launch)
    assert launch.finish().finished["outcome"] == "succeeded"
    assert not (launch.folder / "exec").exists()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (pack(INPUT, b"x"), "the first frame is of kind 2"),
        (bytes([START]) + b"\xff" * 4, "a frame of 4294967295 bytes"),
        (pack(START, b"[1]"), "not a JSON object"),
        (pack(START, b"{}"), "rank"),
        (_start("true", rank=7), "rank 7"),
        (_start("true", terminal={"rows": 1}), "term"),
        (_start("true", terminal={"rows": "x", "columns": 1, "term": "x"}), "invalid literal"),
        (_start("true", "a\0b"), "null"),
    ],
)
def test_what_is_not_the_protocol_starts_nothing(
    harness: RunnerHarness, content: bytes, problem: str
) -> None:
    launch = _launch(harness)
    ((kind, ending),) = _answer(launch, content)
    assert kind == EXIT
    assert json.loads(ending)["code"] == 125
    assert problem in json.loads(ending)["reason"]
    assert _answer(launch, _start("true"))[-1][0] == EXIT
    _stop(launch)
    assert launch.finish().finished["outcome"] == "succeeded"


def test_silent_and_slow_clients_do_not_delay_the_end(harness: RunnerHarness) -> None:
    launch = _launch(harness)
    folder = str(launch.folder)
    silent = [folder_socket.connect(folder, "exec") for _ in range(20)]
    slow = folder_socket.connect(folder, "exec")
    slow.sendall(_start("sh", "-c", "trap '' HUP; yes"))
    assert slow.recv(1)
    started_at = time.monotonic()
    _stop(launch)
    assert launch.finish().finished["outcome"] == "succeeded"
    assert time.monotonic() - started_at < 10.0  # 0.5 s for HUP, 1 s for the last words
    for connection in (*silent, slow):
        connection.close()


def test_there_is_a_limit_of_commands_at_once(harness: RunnerHarness) -> None:
    launch = _launch(harness)
    folder = str(launch.folder)
    silent = [folder_socket.connect(folder, "exec") for _ in range(40)]
    closed = 0
    for connection in silent:
        connection.settimeout(0.5)
        with suppress(TimeoutError):
            closed += connection.recv(1) == b""
        connection.close()
    assert closed == 8
    deadline = time.monotonic() + PATIENCE
    while not _answer(launch, _start("true")):
        assert time.monotonic() < deadline, "the others were not forgotten"
    _stop(launch)
    launch.finish()


def test_a_process_that_closes_its_terminal_keeps_running(harness: RunnerHarness) -> None:
    launch = _launch(harness)
    script = "exec </dev/null >/dev/null 2>&1; sleep 1; exit 6"
    terminal = {"rows": 1, "columns": 2, "term": "dumb"}
    started_at = os.times()
    content = _start("sh", "-c", script, terminal=terminal) + pack(INPUT, b"x" * 30_000) * 2
    assert json.loads(_answer(launch, content)[-1][1])["code"] == 6
    assert os.times().elapsed - started_at.elapsed > 0.9
    _stop(launch)
    launch.finish()


def test_a_socket_works_below_a_long_path(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 50) / "ünï x"
    folder.mkdir(parents=True)
    with folder_socket.listen(str(folder), "exec", 1):
        folder_socket.connect(str(folder), "exec").close()
    with folder_socket.listen(str(folder), "exec", 1):  # replaces the old one
        folder_socket.connect(str(folder), "exec").close()
    with pytest.raises(ConnectionRefusedError):
        folder_socket.connect(str(folder), "exec")
    with pytest.raises(FileNotFoundError):
        folder_socket.connect(str(folder), "other")


def test_a_command_of_a_killed_runner_is_ended_by_the_next_one(harness: RunnerHarness) -> None:
    launch = _launch(harness)
    with folder_socket.connect(str(launch.folder), "exec") as connection:
        connection.sendall(_start("sh", "-c", "trap '' HUP; echo $$ > pid; sleep 600"))
        deadline = time.monotonic() + PATIENCE
        pid_file = launch.folder / "work/pid"
        while not (pid_file.exists() and pid_file.read_text().endswith("\n")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        pid = int(pid_file.read_text())
        launch.kill()
        assert _frames(connection) == []
    launch.runner = None
    assert launch.finish().finished["outcome"] == "lost"
    assert read_process(pid) is None


def test_a_command_runs_in_the_container_of_its_rank(
    engine: ContainerEngine, harness: RunnerHarness
) -> None:
    harness.receiver.secrets = {"KEY_OF_MINE": 'it\'s "secret"'}
    script = f"import os; print(os.uname(), flush=True)\n{_WAIT}"
    environment = Environment(kind="image", image=IMAGE)
    launch = harness.launch(
        "python",
        "-c",
        script,
        environment=environment,
        secrets=("KEY_OF_MINE",),
        processes_per_node=2,
    ).start()
    launch.wait_for_output("rank-1", b"nodename")
    command = "test -t 0 && echo $RANK $KEY_OF_MINE; exit 5"
    terminal = {"rows": 7, "columns": 9, "term": "dumb"}
    answers = _answer(launch, _start("sh", "-c", command, rank=1, terminal=terminal))
    output = b"".join(content for kind, content in answers if kind == OUTPUT)
    assert output.decode().splitlines() == ['1 it\'s "secret"']
    assert answers[-1] == (EXIT, b'{"code": 5, "reason": ""}')
    _check_hang_up(launch)
    (_, ending) = _answer(launch, _start("no-such-program"))[-1]
    assert json.loads(ending)["code"] == 127
    _stop(launch)
    assert launch.finish().finished["outcome"] == "succeeded"


def _check_hang_up(launch: HarnessLaunch) -> None:
    """A command in a container ends when its client has gone, though the engine would keep it."""
    nap = f"1234.{uuid4().int % 10**12:012}"
    deadline = time.monotonic() + PATIENCE
    with folder_socket.connect(str(launch.folder), "exec") as connection:
        script = f"trap '' HUP; echo on; while :; do sleep {nap}; done"
        connection.sendall(_start("sh", "-c", script))
        assert connection.recv(1 << 16) == pack(OUTPUT, b"on\n")
        assert _processes_with(nap)
    while _processes_with(nap):
        assert time.monotonic() < deadline, "the command goes on"
        time.sleep(0.05)


def _processes_with(word: str) -> list[str]:
    """Return the processes with this in their command line, also those of other pid namespaces."""
    names: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            if word.encode() in path.read_bytes():
                names.append(path.parent.name)
    return names
