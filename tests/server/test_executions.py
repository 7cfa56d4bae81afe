"""`retarget exec` and its WebSocket, beside scripts on the local target."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from retarget import Workspace
from retarget.core.errors import Conflict, Invalid, NotFound
from retarget.runner.exec_frames import END_OF_INPUT, EXIT, INPUT, OUTPUT, RESIZE, SIGNAL, START
from retarget.runner.processes import read_process
from tests.conftest import COMMAND
from tests.server.conftest import Api, serving
from tests.terminal import Terminal

PATIENCE = 200.0
# a script that says what it has, and then waits
SCRIPT = """
import json, os, sys, time
me = {"variables": dict(os.environ), "folder": os.getcwd(), "umask": os.umask(0o022)}
name = sys.argv[1] if len(sys.argv) > 1 else "me.json"
with open(name + ".part", "w") as file:
    json.dump(me, file)
os.rename(name + ".part", name)
sys.stdout.write("ready")
sys.stdout.flush()
time.sleep(600)
"""
_OWN = {"RETARGET_EXEC", "TERM"}  # the variables that only the command has


def _exec(
    api: Api, *args: str, content: bytes = b"", timeout: float = PATIENCE
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [COMMAND, "exec", *args],
        env=os.environ | {"RETARGET_HOME": str(api.home)},
        input=content,
        capture_output=True,
        timeout=timeout,
    )


def _terminal(api: Api, *args: str) -> Terminal:
    return Terminal([COMMAND, "exec", *args], variables={"RETARGET_HOME": str(api.home)})


def _start(api: Api, name: str, *command: str, **fields: Any) -> dict[str, Any]:
    """Start a job, and wait until its script runs."""
    api.submit(*(command or ("sleep", "600")), name=name, **fields)
    return api.wait(name, "running")


def _work(api: Api, name: str) -> Path:
    """Return the folder in which the script of a job runs."""
    (folder,) = [
        folder
        for folder in (api.home / "targets/local/launches").iterdir()
        if json.loads((folder / "launch.json").read_text())["launch"]["name"] == name
    ]
    return folder / "work"


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def _pid_in(path: Path) -> int:
    _until(lambda: path.exists() and path.read_text().endswith("\n"), f"no {path.name}")
    return int(path.read_text())


@pytest.fixture(scope="module")
def job(api: Api) -> str:
    """A job that runs during all tests of this module."""
    _start(
        api, "long", sys.executable, "-c", SCRIPT, variables={"MINE": "ünï 'x'\ny", "PATH_": "/"}
    )
    return "long"


# -- what a command gets


def test_a_command_has_the_variables_and_the_folder_of_the_script(api: Api, job: str) -> None:
    ran = _exec(api, job, "--", "python", "-c", SCRIPT.replace("600", "0"), "other.json")
    assert (ran.returncode, ran.stdout) == (0, b"ready")
    script, other = (
        json.loads((_work(api, job) / name).read_text()) for name in ("me.json", "other.json")
    )
    assert other["variables"].keys() - script["variables"].keys() == {"RETARGET_EXEC"}
    for record in (script, other):
        for name in _OWN:
            record["variables"].pop(name, None)
    assert other == script
    assert other["variables"]["MINE"] == "ünï 'x'\ny"


def test_stdout_stderr_stdin_and_the_exit_code_are_passed_on(api: Api, job: str) -> None:
    script = "read line; echo out $line; cat >&2; exit 7"
    ran = _exec(api, job, "--", "sh", "-c", script, content=b"first\nrest\n\0\xff")
    assert (ran.returncode, ran.stdout, ran.stderr) == (7, b"out first\n", b"rest\n\0\xff")


def test_bytes_arrive_unchanged_in_both_directions(api: Api, job: str) -> None:
    content = os.urandom(12 << 20)
    ran = _exec(api, job, "--", "cat", content=content)
    assert ran.returncode == 0
    assert ran.stdout == content


@pytest.mark.parametrize(
    ("command", "code", "problem"),
    [
        (["sh", "-c", "kill -9 $$"], 137, b""),
        (["sh", "-c", "kill -TERM $$"], 143, b""),
        (["no-such-program"], 127, b"long: command 'no-such-program' not found on this machine\n"),
        (["./me.json"], 126, b"long: './me.json' cannot be run: it is not executable\n"),
        (["/"], 126, b"long: Permission denied\n"),
    ],
)
def test_exit_codes_are_those_of_a_shell(
    api: Api, job: str, command: list[str], code: int, problem: bytes
) -> None:
    ran = _exec(api, job, "--", *command)
    assert (ran.returncode, ran.stderr) == (code, problem)


def test_a_command_that_leaves_a_process_behind_returns_at_once(api: Api, job: str) -> None:
    ran = _exec(api, job, "--", "sh", "-c", "echo $$; sleep 600 & yes & exit 3", timeout=60)
    assert ran.returncode == 3
    assert ran.stdout.splitlines()[0].isdigit()
    session = int(ran.stdout.splitlines()[0])
    _exec(api, job, "--", "pkill", "-s", str(session))


def test_a_command_that_reads_nothing_ends_although_it_gets_input(api: Api, job: str) -> None:
    assert _exec(api, job, "--", "true", content=os.urandom(4 << 20)).returncode == 0
    script = "exec <&-; sleep 0.5; echo done"
    ran = _exec(api, job, "--", "sh", "-c", script, content=os.urandom(4 << 20))
    assert (ran.returncode, ran.stdout) == (0, b"done\n")


def test_without_a_command_it_is_the_users_shell(api: Api, job: str) -> None:
    ran = _exec(api, job, content=b"echo $0; pwd; exit 5\n")
    assert ran.returncode == 5, ran.stderr
    shell, folder = ran.stdout.decode().splitlines()
    assert Path(shell).name in {Path(os.environ.get("SHELL", "bash")).name, "bash", "sh"}
    assert folder == str(_work(api, job))


def test_each_process_of_a_job_can_be_chosen(api: Api) -> None:
    _start(api, "ranks", processes_per_node=2, cpus=1)
    for options, rank in (((), b"0"), (("--rank", "1"), b"1"), (("--node", "0"), b"0")):
        ran = _exec(api, *options, "ranks", "--", "sh", "-c", "echo $RANK $LOCAL_RANK $WORLD_SIZE")
        assert ran.stdout.split() == [rank, rank, b"2"], ran.stderr
    for options, problem in (
        (("--rank", "2"), "job 'ranks' has no rank 2: it has 2"),
        (("--node", "1"), "job 'ranks' has no node 1: it has 1"),
        (("--node", "0", "--rank", "1"), "rank and node exclude each other"),
    ):
        ran = _exec(api, *options, "ranks", "--", "true")
        assert ran.returncode == 2
        assert problem in ran.stderr.decode()
    api.ask("POST", "/api/jobs/ranks/cancel")


def test_a_command_sees_the_secrets_of_the_job_unmasked(api: Api) -> None:
    api.ask("PUT", "/api/secrets/KEY_OF_MINE", {"value": "hunter2hunter2"})
    _start(api, "secretive", secrets=["KEY_OF_MINE"])
    ran = _exec(api, "secretive", "--", "sh", "-c", "echo $KEY_OF_MINE")
    assert ran.stdout == b"hunter2hunter2\n"
    api.ask("POST", "/api/jobs/secretive/cancel")


def test_many_commands_run_at_once(api: Api, job: str) -> None:
    def run(number: int) -> bytes:
        script = f"cat; echo {number}"
        return _exec(api, job, "--", "sh", "-c", script, content=b"x" * 100_000).stdout

    with ThreadPoolExecutor(8) as executor:
        outputs = list(executor.map(run, range(16)))
    assert outputs == [b"x" * 100_000 + f"{number}\n".encode() for number in range(16)]


# -- a terminal


def test_a_terminal_is_real_can_be_resized_and_is_restored(api: Api, job: str) -> None:
    with _terminal(api, job, "--", "sh", "-i") as terminal:
        terminal.type("PS1=; tty; stty size; echo T=$TERM\r")
        assert b"/dev/pts/" in terminal.wait_for("24 80")
        terminal.wait_for("T=xterm")
        terminal.type("trap 'echo win''ch' WINCH; echo set''up\r")
        terminal.wait_for("setup")
        terminal.resize(50, 132)
        written = b""
        while b"winch" not in written:  # no other program is in the foreground and gets the signal
            terminal.type("echo as''ked\r")
            written += terminal.wait_for("asked")
        terminal.wait_for_size("50 132")
        assert not terminal.is_restored()
        terminal.type("exit 9\r")
        assert terminal.wait() == 9
        assert terminal.is_restored()


def test_ctrl_c_goes_to_the_command(api: Api, job: str) -> None:
    with _terminal(api, job, "--", "bash", "--norc") as terminal:
        terminal.type("PS1=; echo star''ted; sleep 600; echo code $?\r")
        terminal.wait_for("started")
        time.sleep(0.2)  # sleep must be in the foreground
        terminal.type("\x03")
        terminal.type("echo af''ter\r")
        terminal.wait_for("after")
        terminal.type("\x04")
        assert terminal.wait() in (0, 130)
        assert terminal.is_restored()
    assert api.job(job)["state"] == "running"


def test_interrupts_without_a_terminal_go_to_the_command_too(api: Api, job: str) -> None:
    script = "trap 'echo caught; exit 4' INT; echo on; while :; do sleep 0.05; done"
    with subprocess.Popen(
        [COMMAND, "exec", job, "--", "sh", "-c", script],
        env=os.environ | {"RETARGET_HOME": str(api.home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"on\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == b"caught\n"
    assert process.returncode == 4


def test_a_terminal_is_restored_when_the_client_gets_sigterm(api: Api, job: str) -> None:
    pid_file = _work(api, job) / "ended-pid"
    with _terminal(
        api, job, "--", "sh", "-c", "echo $$ > ended-pid; echo on; sleep 600"
    ) as terminal:
        terminal.wait_for("on")
        os.kill(terminal.process.pid, signal.SIGTERM)
        assert terminal.wait() == 143
        assert terminal.is_restored()
    pid = _pid_in(pid_file)
    _until(lambda: read_process(pid) is None, "the command outlived its client")


# -- ends


def test_a_client_that_is_killed_hangs_up(api: Api, job: str) -> None:
    work = _work(api, job)
    script = "trap 'echo > hung-up; exit' HUP; echo $$ > polite; while :; do sleep 0.05; done"
    stubborn = "trap '' HUP TERM; echo $$ > stubborn; while :; do sleep 0.05; done"
    for name, command in (("polite", script), ("stubborn", stubborn)):
        process = subprocess.Popen(
            [COMMAND, "exec", job, "--", "sh", "-c", command],
            env=os.environ | {"RETARGET_HOME": str(api.home)},
            stdin=subprocess.PIPE,
        )
        pid = _pid_in(work / name)
        process.kill()
        process.communicate()
        _until(lambda pid=pid: read_process(pid) is None, f"{name} outlived its client")
    assert (work / "hung-up").exists()


def test_commands_end_when_the_script_ends(api: Api) -> None:
    script = "import os, time\nwhile not os.path.exists('stop'): time.sleep(0.02)"
    _start(api, "short", sys.executable, "-c", script)
    work = _work(api, "short")
    stubborn = "trap '' HUP TERM INT; (setsid sleep 600 & echo $! > daemon); echo on; sleep 600"
    with _terminal(api, "short", "--", "sh", "-c", stubborn) as terminal:
        terminal.wait_for("on")
        daemon = _pid_in(work / "daemon")
        started_at = time.monotonic()
        (work / "stop").touch()
        assert terminal.wait() in (129, 137)
        assert "short: the script has ended" in terminal.screen.decode()
        assert terminal.is_restored()
    assert api.wait("short")["state"] == "succeeded"
    assert time.monotonic() - started_at < 60
    assert read_process(daemon) is None


def test_a_command_ends_when_its_job_is_canceled(api: Api) -> None:
    _start(api, "stopped")
    with _terminal(api, "stopped", "--", "bash", "--norc") as terminal:
        terminal.type("echo o''n\r")
        terminal.wait_for("on")
        api.ask("POST", "/api/jobs/stopped/cancel")
        assert terminal.wait() == 129
    assert api.wait("stopped")["state"] == "canceled"


def test_a_killed_server_hangs_up_and_the_job_goes_on(tmp_path: Path) -> None:
    home = tmp_path / "home"
    pattern = re.compile("the connection to the (server|job).* was lost")
    with serving(home) as api:
        _start(api, "night")
        work = _work(api, "night")
        with subprocess.Popen(
            [COMMAND, "exec", "night", "--", "sh", "-c", "echo $$ > pid; sleep 600"],
            env=os.environ | {"RETARGET_HOME": str(home)},
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as client:
            pid = _pid_in(work / "pid")
            os.kill(api.pid, signal.SIGKILL)
            _until(lambda: client.poll() is not None, "the client did not notice")
            assert client.stderr is not None
            assert pattern.search(client.stderr.read())
        assert client.returncode == 1
        _until(lambda: read_process(pid) is None, "the command outlived the server")
    (home / "servers/main/server.json").unlink()  # of the killed server
    with serving(home) as api:
        assert api.job("night")["state"] == "running"
        assert _exec(api, "night", "--", "echo", "again").stdout == b"again\n"
        api.ask("POST", "/api/jobs/night/cancel")
        assert api.wait("night")["state"] == "canceled"
        api.cleared()


def test_a_command_ends_when_the_runner_is_killed(api: Api) -> None:
    _start(api, "orphan")
    work = _work(api, "orphan")
    with subprocess.Popen(
        [COMMAND, "exec", "orphan", "--", "sh", "-c", "trap '' HUP; echo $$ > pid; sleep 600"],
        env=os.environ | {"RETARGET_HOME": str(api.home)},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as client:
        pid = _pid_in(work / "pid")
        subprocess.run(["pkill", "-KILL", "-f", f"run {work.parent}"], check=True)
        assert client.wait(PATIENCE) == 1
    assert api.wait("orphan")["state"] == "failed"
    assert read_process(pid) is None


@pytest.mark.parametrize("state", ["queued", "succeeded", "unknown"])
def test_a_job_that_does_not_run_says_why(api: Api, state: str) -> None:
    cpus = api.ask("POST", "/api/targets/local/check").json["inventory"]["nodes"][0]["cpus"]
    name = f"is-{state}"
    if state == "succeeded":
        api.submit("true", name=name)
        api.wait(name)
    elif state == "queued":
        api.submit("true", name=name, cpus=cpus, priority=-1000)
    ran = _exec(api, name, "--", "true")
    problem = {
        "queued": "is queued, so nothing of it runs yet",
        "succeeded": "has ended: succeeded",
        "unknown": "no job named",
    }[state]
    assert ran.returncode == 1
    assert problem in ran.stderr.decode()
    api.ask("POST", f"/api/jobs/{name}/cancel")


def test_words_after_the_name_are_not_a_command(api: Api, job: str) -> None:
    ran = _exec(api, job, "ls", "-l")
    assert ran.returncode == 2
    assert "write the command after `--`: retarget exec long -- ls -l" in ran.stderr.decode()


# -- the SDK


def test_a_command_returns_its_output_in_python(
    api: Api, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETARGET_HOME", str(api.home))
    own_job = Workspace().jobs[job]
    result = own_job.exec(["sh", "-c", "tr a-z A-Z; echo oops >&2; exit 2"], input="abc")
    assert (result.exit_code, result.stdout, result.stderr) == (2, "ABC", "oops\n")
    missing = own_job.exec(["no-such-program"])
    assert (missing.exit_code, missing.reason) == (
        127,
        "command 'no-such-program' not found on this machine",
    )
    with pytest.raises(Invalid, match="has no rank 7"):
        own_job.exec(["true"], rank=7)
    with pytest.raises(Invalid, match="command"):
        own_job.exec("ls -l")
    with pytest.raises(Invalid, match="too long"):
        own_job.exec(["x" * 70_000])
    api.submit("true", name="over")
    api.wait("over")
    with pytest.raises(Conflict, match="has ended"):
        Workspace().jobs["over"].exec(["true"])
    with own_job.execution(terminal={"rows": 5, "columns": 6, "term": "dumb"}) as execution:
        execution.send_input(b"stty size; exit\n")
        parts: list[bytes] = []
        assert execution.communicate(lambda _, part: parts.append(part)) == (0, "")
    assert b"5 6" in b"".join(parts)
    with pytest.raises(NotFound):
        Workspace().jobs["nobody"]


# -- who may, and hostile input


def _connect(api: Api, job: str, *, token: str | None = None, path: str = "") -> ClientConnection:
    url = api.url.replace("http://", "ws://") + (path or f"/api/jobs/{job}/exec")
    chosen = api.token if token is None else token
    headers = {"Authorization": f"Bearer {chosen}"} if chosen else {}
    return connect(url, additional_headers=headers, compression=None, max_size=None)


def _refusal(api: Api, job: str, *, token: str | None = None, path: str = "") -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as raised, _connect(api, job, token=token, path=path):
        pass
    response = raised.value.response
    return response.status_code, json.loads(response.body or b"{}").get("error", "")


def test_only_the_token_of_the_user_opens_it(api: Api, job: str) -> None:
    key = _work(api, job).parent.name
    assert _refusal(api, job, token="") == (401, "Unauthorized")
    assert _refusal(api, job, token="wrong") == (401, "Unauthorized")
    assert _refusal(api, job, token=api.script_token(key)) == (403, "Forbidden")
    assert _refusal(api, job, token=api.runner_key(key)) == (401, "Unauthorized")
    assert _refusal(api, "nobody", token="") == (401, "Unauthorized")  # before it looks for the job
    assert _refusal(api, "nobody") == (404, "NotFound")
    assert _refusal(api, "", path=f"/api/jobs/{job}/exec?rank=x") == (422, "Invalid")
    assert _refusal(api, "", path=f"/api/jobs/{job}/exec?rank=99") == (422, "Invalid")
    assert _refusal(api, "", path=f"/api/attempts/{key}/events") == (401, "Unauthorized")
    mlflow = "/api/2.0/mlflow/runs/get"
    assert _refusal(api, "", path=mlflow, token=api.script_token(key))[0] == 403
    assert _refusal(api, "", path="/health")[0] == 403
    assert api.ask("GET", f"/api/jobs/{job}/exec").status == 404
    assert _exec(api, job, "--", "echo", "fine").stdout == b"fine\n"


def _message(kind: int, content: Any = b"") -> bytes:
    encoded = content if isinstance(content, bytes) else json.dumps(content).encode()
    return bytes([kind]) + encoded


_CAT = _message(START, {"command": ["cat"]})


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([_message(INPUT, b"x")], "started once"),
        ([_CAT, _CAT], "started once"),
        ([b""], "kind of its frame"),
        ([_message(99)], "kind of its frame"),
        ([_message(EXIT)], "kind of its frame"),
        ([_message(START, b"{")], "JSON"),
        ([_message(START, b"[" * 60_000)], "JSON"),
        ([_message(START, [])], "object"),
        ([_message(START, {"command": ["a\0b"]})], "command.0"),
        ([_message(START, {"command": "ls"})], "command"),
        ([_message(START, f'{{"command": ["{"é" * 20_000}"]}}'.encode())], "use at most 65536"),
        ([_message(START, {"shell": True})], "shell"),
        ([_message(START, {"terminal": {"rows": -1, "columns": 1, "term": "x"}})], "rows"),
        ([_message(START, {"terminal": {"rows": 1, "columns": 1, "term": "x y"}})], "term"),
        ([_CAT, _message(INPUT, bytes(65_537))], "send at most 65536"),
    ],
)
def test_what_is_not_the_protocol_is_refused(
    api: Api, job: str, messages: list[bytes], problem: str
) -> None:
    with _connect(api, job) as websocket:
        for message in messages:
            websocket.send(message)
        answer = websocket.recv(timeout=PATIENCE)
        assert isinstance(answer, bytes)
        assert answer[0] == EXIT
        assert (ending := json.loads(answer[1:]))["code"] == 125
        assert problem in ending["reason"].replace(",", "")
        with pytest.raises(ConnectionClosed):
            websocket.recv(timeout=PATIENCE)


@pytest.mark.parametrize(
    "message",
    [
        _message(RESIZE, b"{"),
        _message(RESIZE, {"rows": "x", "columns": 1}),
        _message(RESIZE, b'{"rows": Infinity, "columns": 1}'),
        _message(SIGNAL, b"KILL"),
        _message(SIGNAL, b"\xff"),
    ],
)
def test_a_strange_request_to_a_running_command_ends_it(api: Api, job: str, message: bytes) -> None:
    with _connect(api, job) as websocket:
        websocket.send(_message(START, {"command": ["sh", "-c", "echo $$; cat"]}))
        answer = websocket.recv(timeout=PATIENCE)
        assert isinstance(answer, bytes)
        assert answer[0] == OUTPUT
        websocket.send(message)
        with pytest.raises(ConnectionClosed):
            _exhaust(websocket)
    _until(lambda: read_process(int(answer[1:])) is None, "the command goes on")


def test_a_huge_message_closes_the_connection(api: Api, job: str) -> None:
    with _connect(api, job) as websocket:
        websocket.send(_CAT)
        with suppress(ConnectionClosed):
            websocket.send(_message(INPUT, bytes(8 << 20)))
        with pytest.raises(ConnectionClosed):
            websocket.recv(timeout=PATIENCE)
    assert _exec(api, job, "--", "echo", "fine").stdout == b"fine\n"


def test_a_client_that_reads_nothing_costs_bounded_memory(api: Api, job: str) -> None:
    """The command stalls, and other commands do not."""
    runner = _runner_of(_work(api, job).parent)
    before = _memory(api.pid) + _memory(runner)
    with _connect(api, job) as websocket:
        websocket.send(_message(START, {"command": ["sh", "-c", "yes & echo $! > yes; wait"]}))
        pid = _pid_in(_work(api, job) / "yes")
        time.sleep(1.0)
        assert _exec(api, job, "--", "echo", "fine").stdout == b"fine\n"
        assert _memory(api.pid) + _memory(runner) - before < 32 << 20
        websocket.socket.close()
    _until(lambda: read_process(pid) is None, "the command goes on")


def test_input_that_nobody_reads_costs_bounded_memory(api: Api, job: str) -> None:
    before = _memory(api.pid)
    with _connect(api, job) as websocket:
        websocket.send(_message(START, {"command": ["sleep", "600"]}))
        websocket.socket.settimeout(1.0)
        content = _message(INPUT, bytes(1 << 15))
        with pytest.raises((TimeoutError, ConnectionClosed)):
            _fill(websocket, content)
        assert _memory(api.pid) - before < 32 << 20
    assert _exec(api, job, "--", "echo", "fine").stdout == b"fine\n"


def test_the_end_of_input_is_passed_on_by_messages(api: Api, job: str) -> None:
    with _connect(api, job) as websocket:
        for message in (_CAT, _message(INPUT, b"abc"), _message(END_OF_INPUT)):
            websocket.send(message)
        answers = [websocket.recv(timeout=PATIENCE) for _ in range(2)]
    assert answers == [_message(OUTPUT, b"abc"), _message(EXIT, {"code": 0, "reason": ""})]


def _exhaust(websocket: ClientConnection) -> None:
    while True:
        websocket.recv(timeout=PATIENCE)


def _fill(websocket: ClientConnection, content: bytes) -> None:
    for _ in range(2000):
        websocket.send(content)


def _runner_of(folder: Path) -> int:
    """Return the pid of the runner that works on this folder."""
    listing = subprocess.check_output(["pgrep", "-f", f"run {folder}"], text=True)
    return int(listing.split()[0])


def _memory(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(autouse=True)
def _no_sessions_remain(api: Api) -> Iterator[None]:
    """No test may leave connections to a runner behind."""
    yield
    descriptors = Path(f"/proc/{api.pid}/fd")
    _until(
        lambda: sum("socket" in os.readlink(entry) for entry in _entries(descriptors)) < 20,
        "connections remain",
    )


def _entries(folder: Path) -> list[Path]:
    return [entry for entry in folder.iterdir() if entry.is_symlink()]
