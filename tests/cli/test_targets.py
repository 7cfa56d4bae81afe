"""`retarget target …` on a real server, with a kind that only the server knows."""

import json
import os
import platform
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from retarget.cli.show_targets import show_target
from retarget.sdk.records import Target
from tests.cli.commands import wait_until_connected
from tests.plugin import install_vault

Cli = Callable[..., subprocess.CompletedProcess[str]]
COMMAND = str(Path(sys.executable).parent / "retarget")
SECRET = "correct horse battery staple"
INVALID_NAME = "is not a valid name; use 1 to 63 letters"
SECRET_IN_ARGUMENT = "--room: other users could see the password in the process list"


@pytest.fixture(autouse=True)
def plugin(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", install_vault(tmp_path / "plugin"))


def error_line(done: subprocess.CompletedProcess[str], code: int = 2) -> str:
    """Return the one line of a command that failed."""
    assert done.returncode == code, done
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr.strip()


def test_a_target_is_attached_shown_changed_and_detached(retarget: Cli, tmp_path: Path) -> None:
    root = tmp_path / "desk"
    attached = retarget(
        *("target", "attach", "desk", "--kind", "local", "--root", root, "--memory", "2g"),
        *("--tag", "region=north", "--tag", "room=7", "--cpus=1"),
    )
    assert attached.returncode == 0, attached.stderr
    shown = retarget("target", "show", "desk").stdout
    python = platform.python_version()
    assert attached.stdout == f"attached desk: 1 CPU, 2.0 GiB, Python {python}\n"
    assert "region=north, room=7" in shown
    assert "0 B / 2.0 GiB" in shown
    nodes = shown[shown.index("\nnodes\n") :].splitlines()[2:]
    assert nodes[0].split() == ["NODE", "STATE", "SINCE", "CPUS", "MEMORY"]
    assert re.fullmatch(r"\S+ +ready +(just now|\S+ ago) +1 +2.0 GiB", nodes[1].rstrip()), nodes[1]
    assert retarget("run", "--target", "desk", "--", "true").returncode == 0
    changed = retarget("target", "update", "desk", "--cpus", "2", "--json")
    assert json.loads(changed.stdout)["config"]["cpus"] == 2
    assert json.loads(changed.stdout)["tags"] == {"region": "north", "room": "7"}
    reset = retarget("target", "update", "desk", "--unset", "cpus", "--unset=--linger", "--json")
    assert json.loads(reset.stdout)["config"]["cpus"] is None
    wrong = error_line(retarget("target", "update", "desk", "--unset", "cpu"), 2)
    assert "local targets have no option --cpu; did you mean --cpus?" in wrong
    conflict = error_line(retarget("target", "update", "desk", "--unset", "cpus", "--cpus", "1"), 2)
    assert "--cpus cannot be set and unset at once" in conflict
    retarget("run", "-d", "--name", "late", "--target", "desk", "--", "sleep", "60")
    refusal = error_line(retarget("target", "detach", "desk"), 1)
    assert "target 'desk' has 1 unfinished job: late; " in refusal
    forced = retarget("target", "detach", "desk", "--force")
    assert (forced.returncode, forced.stderr) == (0, "detached desk; failed jobs: late\n")
    assert "target 'desk' was detached" in retarget("job", "show", "late").stdout
    assert "desk" not in retarget("target", "list").stdout
    assert "cannot be detached" in error_line(retarget("target", "detach", "local"), 1)


def test_the_kind_determines_the_options(retarget: Cli, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n")
    created = retarget(
        *("target", "create", "--address", "here", "--host", "a", "--host=b", "safe"),
        *("--kind=vault", "--memory", "1.5GiB", "--no-strict", "--label", "room=1"),
        *(
            "--label",
            "lift=2",
            "--depth",
            "-3",
            "--level",
            "high",
            "--key",
            key,
            "--password-stdin",
        ),
        *("--room", '{"address": "r"}', "--json"),
        input=SECRET + "\n",
    )
    assert created.returncode == 0, created.stderr
    target = json.loads(created.stdout)
    config = target["config"]
    assert (config["hosts"], config["memory"], config["strict"]) == (["a", "b"], 1610612736, False)
    assert (config["labels"], config["depth"]) == ({"room": "1", "lift": "2"}, -3)
    assert (config["level"], config["rooms"][0]["address"]) == ("high", "r")
    assert (config["key"], config["password"]) == ("********", "********")
    sizes = [len(SECRET), len(key.read_text())]
    assert target["inventory"]["details"]["secrets"] == str(sizes)
    assert "SHA256:abc" in retarget("target", "show", "safe").stdout


def test_settings_are_shown_with_the_names_of_their_options(
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = {"address": "box", "lost_after": 90.0}
    show_target(Target("a", "ssh", config, {}, None, None, "", {}, {"cpus": 0, "memory": 0}))
    shown = capsys.readouterr().out
    assert "lost-after" in shown
    assert "lost_after" not in shown


def test_help_shows_the_options_of_a_kind(retarget: Cli) -> None:
    general = retarget("target", "attach", "--help")
    assert (general.returncode, "Options of" in general.stdout) == (0, False)
    text = retarget("target", "attach", "x", "--kind", "vault", "--help").stdout
    assert "Options of vault targets:" in text
    for row in (
        "--address TEXT                 Where it is  [required]",
        "--host TEXT                    A machine of the vault  [repeatable]",
        "--password / --password-stdin  Password of the vault",
        "--strict / --no-strict         Ask for the password twice  [default: yes]",
        "--level low|high",
        "--memory SIZE",
        "--key FILE",
    ):
        assert row in text, row
    assert max(map(len, text.splitlines())) <= 80
    assert "--root PATH" in retarget("target", "update", "local", "--help").stdout
    completed = retarget(env={"_RETARGET_COMPLETE": "complete_bash", "COMP_CWORD": "5",
        "COMP_WORDS": "retarget target attach x --kind va"})  # fmt: skip
    assert completed.stdout.split() == ["vault"]


def test_a_secret_is_in_no_file_and_no_output(retarget: Cli, home: Path, tmp_path: Path) -> None:
    attach = ("target", "attach", "safe", "--kind", "vault", "--password-stdin", "--address")
    assert retarget(*attach, "nowhere", input=SECRET).returncode == 1
    assert retarget(*attach, "here", input=SECRET).returncode == 0
    outputs = [
        retarget("target", "show", "safe"),
        retarget("target", "list", "--json"),
        retarget("target", "check", "safe", "--json"),
        retarget("run", "--target", "safe", "--dry-run", "--json", "--", "true"),
        retarget("server", "logs"),
        retarget("server", "status", "--json"),
    ]
    assert [done.returncode for done in outputs] == [0] * 6
    assert not [done for done in outputs if SECRET in done.stdout + done.stderr]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert home / "retarget.db" in files
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


def test_a_password_prompt_does_not_echo(retarget: Cli) -> None:
    retarget("server", "start")
    pid, master = pty.fork()
    if pid == 0:
        args = ("attach", "safe", "--kind", "vault", "--address", "a", "--password")
        os.execv(COMMAND, [COMMAND, "target", *args])
    shown = b""
    while b"password: " not in shown:
        shown += os.read(master, 1024)
    while termios.tcgetattr(master)[3] & termios.ECHO:
        time.sleep(0.01)  # getpass discards what was typed before it turns the echo off
    os.write(master, SECRET.encode() + b"\n")
    try:
        while piece := os.read(master, 1024):
            shown += piece
    except OSError:  # the command has exited
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, shown
    os.close(master)
    assert SECRET.encode() not in shown
    assert f"[{len(SECRET)}]" in retarget("target", "show", "safe").stdout
    assert b"checking safe" in shown


def test_ctrl_c_is_one_line(retarget: Cli) -> None:
    retarget("server", "start")
    args = ("target", "attach", "slow", "--kind", "vault", "--address", "slow")
    waiting = subprocess.Popen([COMMAND, *args], stderr=subprocess.PIPE, text=True)
    wait_until_connected(waiting.pid)
    waiting.send_signal(signal.SIGINT)
    assert waiting.communicate(timeout=200)[1] == "interrupted\n"
    assert waiting.returncode == 130


def test_an_error_is_one_sentence(retarget: Cli, tmp_path: Path) -> None:
    public, empty = tmp_path / "id.pub", tmp_path / "empty"
    public.write_text("ssh-ed25519 AAAA me@here\n")
    empty.touch()
    attach = ("target", "attach", "x", "--kind", "vault", "--address", "a")
    for args, sentence in {
        (*attach, "--hots", "3"): "have no option --hots; did you mean --host? options: ",
        (*attach, "--memory", "lots"): "--memory: 'lots' is not an amount of memory; write 512m",
        (*attach, "--depth", "x"): "--depth: 'x' is not an integer",
        (*attach, "--cpus", "nan"): "--cpus: 'nan' is not a number",
        (*attach, "--cpus", "0"): "--cpus: must be greater than 0",
        (*attach, "--level", "x"): "--level: 'x' is not one of low, high",
        (*attach, "--label", "x"): "--label 'x' is not K=V",
        (*attach, "--tag", "x"): "--tag 'x' is not K=V",
        (*attach, "--room", "{x"): "--room: not valid JSON: ",
        (*attach, "--room", '{"password": "b"}'): SECRET_IN_ARGUMENT,
        (*attach, "--room", "{}"): "--room: is required",
        (*attach, "--host"): "--host needs a value (A machine of the vault)",
        (*attach, "--host", "--json"): "--host needs a value (A machine of the vault)",
        (*attach, "--strict=1"): "--strict takes no value; write --strict or --no-strict",
        (*attach, "--password"): "on a terminal; without one use --password-stdin",
        (*attach, "--password-stdin"): "--password-stdin: stdin is empty",
        (*attach, "--key", "/nope/key"): "--key: cannot read /nope/key: No such file or directory",
        (*attach, "--key", str(tmp_path)): f"--key: cannot read {tmp_path}: Is a directory",
        (*attach, "--key", str(public)): f"name the private key, perhaps {tmp_path}/id",
        (*attach, "--key", str(empty)): f"--key: {empty} is empty",
        ("target", "attach", "x"): "missing option --kind (container, local, ",
        ("target", "attach", "x", "--kind", "vault"): "--address: is required (Where it is)",
        ("target", "attach", "x", "--kind", "vualt"): "unknown kind 'vualt'; this server knows ",
        ("target", "attach", "a/b", *attach[3:]): f"name: 'a/b' {INVALID_NAME}",
        ("target", "update", "local"): "nothing to change; see `retarget target update local",
        ("target", "update", "--cpus", "2"): "missing target; write: retarget target",
        ("target", "update", "local", "--cpu", "2"): "have no option --cpu; did you mean --cpus?",
    }.items():  # fmt: skip
        assert sentence in error_line(retarget(*args)), args
    for args in ((*attach, f"--password={SECRET}"), (*attach, "--password", SECRET)):
        message = error_line(retarget(*args))
        assert "--password takes no value, because other users could see it" in message
        assert SECRET not in message
    nowhere = retarget("target", "attach", "x", "--kind", "vault", "--address", "nowhere")
    assert error_line(nowhere, 1) == "error: nowhere does not answer; is it switched on?"
    assert "exists already" in error_line(retarget("target", "attach", "local", *attach[3:]), 1)
    assert "no target named 'x'" in error_line(retarget("target", "detach", "x"), 1)
    assert "no target named 'x'" in error_line(retarget("target", "update", "x", "--cpus", "1"), 1)
    assert len(json.loads(retarget("target", "list", "--json").stdout)) == 1
