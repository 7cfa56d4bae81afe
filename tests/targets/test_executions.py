"""`retarget exec` on every kind of target, and in images."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import COMMAND, Cli
from tests.terminal import PATIENCE, Terminal
from tests.testbeds.engines import IMAGE, Engine
from tests.testbeds.hosts import SshHost

pytestmark = pytest.mark.targets

SCRIPT = """\
import json, os, sys, time
me = {"variables": dict(os.environ), "folder": os.getcwd(), "umask": os.umask(0o022)}
me["python"], me["user"] = sys.executable, os.getuid()
print(json.dumps(me), flush=True)
if len(sys.argv) == 1:
    time.sleep(600)
"""
OWN = {"RETARGET_EXEC", "TERM"}  # the variables that only the command has
KINDS = {
    "local": (),
    "in-image": ("--image", IMAGE),
    "gpu-box": ("--target", "gpu-box"),
    "box": ("--target", "box"),
    "podman-box": ("--target", "podman-box"),
}


@pytest.fixture
def every_target(
    retarget: Cli,
    ssh_hosts: list[SshHost],
    docker: Engine,
    podman: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Cli]:
    monkeypatch.setenv("DOCKER_HOST", docker.url)
    key = ("--kind", "ssh", "--key", ssh_hosts[0].key, "--user", "ml")
    hosts = [word for host in ssh_hosts[1:] for word in ("--host", host.address)]
    targets = {
        "gpu-box": (*key, "--address", ssh_hosts[0].address),
        "pool": (*key, *hosts),
        "box": ("--kind", "container", "--engine", docker.url, "--image", IMAGE),
        "podman-box": ("--kind", "container", "--engine", podman.url, "--image", IMAGE),
    }
    for name, options in targets.items():
        attached = retarget("target", "attach", name, *options)
        assert attached.returncode == 0, attached.stderr
    yield retarget
    for name in targets:
        assert retarget("target", "detach", name).returncode == 0


def _start(cli: Cli, folder: Path, name: str, *options: str) -> None:
    """Start a job, and wait until its script has printed something."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(SCRIPT)
    ran = cli("run", "--detach", "--name", name, *options, "train.py", cwd=folder)
    assert ran.returncode == 0, ran.stderr
    _until(lambda: '"variables"' in cli("job", "logs", name).stdout, f"{name} does not run")


def _end(cli: Cli, *names: str) -> None:
    for name in names:
        cli("job", "cancel", name)
        cli("job", "wait", name)


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def _check_command(cli: Cli, name: str) -> None:
    """A command has what the script has, and its streams and exit code come back."""
    script = json.loads(cli("job", "logs", name).stdout.splitlines()[-1])
    ran = cli("exec", name, "--", "python", "train.py", "once")
    assert ran.returncode == 0, ran.stderr
    other = json.loads(ran.stdout)
    for record in (script, other):
        record["variables"] = {
            key: value for key, value in record["variables"].items() if key not in OWN
        }
    assert other == script
    assert other["variables"]["MY_SECRET"] == 'it\'s "secret"'
    command = "cat; echo no >&2; exit 7"
    ran = cli("exec", name, "--", "sh", "-c", command, input="yes\n")
    assert (ran.returncode, ran.stdout, ran.stderr) == (7, "yes\n", "no\n")
    assert cli("exec", name, "--", "sh", "-c", "kill -9 $$").returncode == 137
    assert cli("exec", name, "--", "no-such-program").returncode == 127
    assert cli("exec", name, input="echo $0; exit 4\n").returncode == 4


def _check_terminal(home: Path, name: str) -> None:
    variables = {"RETARGET_HOME": str(home)}
    with Terminal([COMMAND, "exec", name, "--", "sh", "-i"], variables=variables) as terminal:
        terminal.type("PS1=; tty; echo T=$TERM\r")
        assert b"/dev/" in terminal.wait_for("T=xterm")
        terminal.wait_for_size("24 80")  # in a container, it is set after the start
        terminal.resize(50, 132)
        terminal.wait_for_size("50 132")
        terminal.type("echo star''ted; sleep 600\r")
        terminal.wait_for("started")
        time.sleep(0.5)  # sleep must be in the foreground
        terminal.type("\x03")
        terminal.type("echo af''ter\r")
        terminal.wait_for("after")
        terminal.type("exit 9\r")
        assert terminal.wait() == 9
        assert terminal.is_restored()
    show_keys = "stty raw -echo; echo ready; dd bs=1 count=3 2>/dev/null | od -An -tx1"
    with Terminal([COMMAND, "exec", name, "--", "sh", "-c", show_keys], variables=variables) as raw:
        raw.wait_for("ready")
        raw.type("\x10\x11\x03")  # with the first two Docker would detach
        raw.wait_for("10 11 03")
        assert raw.wait() == 0


def _check_hang_up(cli: Cli, home: Path, name: str) -> None:
    """A command whose client is killed ends, also one that ignores HUP."""
    command = "trap '' HUP; echo $$ > pid; while :; do sleep 0.1; done"
    client = subprocess.Popen(
        [COMMAND, "exec", name, "--", "sh", "-c", command],
        env=os.environ | {"RETARGET_HOME": str(home)},
        stdin=subprocess.PIPE,
    )
    _until(lambda: bool(cli("exec", name, "--", "cat", "pid").stdout.strip()), "it did not start")
    alive = ("exec", name, "--", "sh", "-c", "kill -0 $(cat pid)")
    assert cli(*alive).returncode == 0
    client.kill()
    client.communicate()
    _until(lambda: cli(*alive).returncode != 0, "the command outlived its client")


@pytest.mark.parametrize("kind", KINDS)
def test_a_command_runs_beside_the_script(
    every_target: Cli, home: Path, tmp_path: Path, kind: str
) -> None:
    every_target("secret", "set", "MY_SECRET", input='it\'s "secret"')
    _start(every_target, tmp_path / "code", "job", "--secret", "MY_SECRET", *KINDS[kind])
    _check_command(every_target, "job")
    _check_terminal(home, "job")
    _check_hang_up(every_target, home, "job")
    client = subprocess.Popen(
        [COMMAND, "exec", "job", "--", "sh", "-c", "echo on; trap '' HUP; sleep 600"],
        env=os.environ | {"RETARGET_HOME": str(home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert client.stdout is not None
    assert client.stdout.readline() == b"on\n"
    _end(every_target, "job")
    _, stderr = client.communicate(timeout=PATIENCE)
    assert client.returncode in (129, 137)
    assert "job: the script has ended" in stderr.decode()


def test_a_command_runs_on_the_node_of_its_rank(every_target: Cli, tmp_path: Path) -> None:
    options = ("--target", "pool", "--nodes", "2", "--processes-per-node", "2")
    every_target("secret", "set", "MY_SECRET", input="x")
    _start(every_target, tmp_path / "code", "gang", *options)
    show = ("--", "sh", "-c", "echo $NODE_RANK $RANK $(uname -n)")
    lines = [every_target("exec", "--rank", str(rank), "gang", *show).stdout for rank in range(4)]
    assert [line.split()[:2] for line in lines] == [
        ["0", "0"],
        ["0", "1"],
        ["1", "2"],
        ["1", "3"],
    ]
    assert every_target("exec", "--node", "1", "gang", *show).stdout.split()[:2] == ["1", "2"]
    _end(every_target, "gang")


def test_a_cut_link_ends_the_command_and_not_the_job(
    every_target: Cli, ssh_hosts: list[SshHost], home: Path, tmp_path: Path
) -> None:
    _start(every_target, tmp_path / "code", "far", "--target", "gpu-box")
    client = subprocess.Popen(
        [COMMAND, "exec", "far", "--", "sh", "-c", "echo $$ > pid; echo on; sleep 600"],
        env=os.environ | {"RETARGET_HOME": str(home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert client.stdout is not None
    assert client.stdout.readline() == b"on\n"
    ssh_hosts[0].link_down()
    _, stderr = client.communicate(timeout=PATIENCE)
    ssh_hosts[0].link_up()
    assert (client.returncode, "was lost" in stderr.decode()) == (1, True)
    # until the link is back, these say that the host cannot be reached
    state = ("exec", "far", "--", "sh", "-c", "kill -0 $(cat pid) 2>&- && echo runs || echo ended")
    _until(lambda: every_target(*state).stdout == "ended\n", "the command goes on")
    _end(every_target, "far")
