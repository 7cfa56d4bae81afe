"""`retarget target …` on a real server, with a kind that the command knows nothing of."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.plugin import install_vault

Cli = Callable[..., subprocess.CompletedProcess[str]]
COMMAND = str(Path(sys.executable).parent / "retarget")
SECRET = "correct horse battery staple"


@pytest.fixture(autouse=True)
def plugin(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", install_vault(tmp_path / "plugin"))


def said(done: subprocess.CompletedProcess[str], code: int = 2) -> str:
    """Return the one sentence about a refusal."""
    assert done.returncode == code, done
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr.strip()


def test_a_target_is_attached_shown_changed_and_detached(retarget: Cli, tmp_path: Path) -> None:
    root = tmp_path / "desk"
    made = retarget(
        *("target", "attach", "desk", "--kind", "local", "--root", root, "--memory", "2g"),
        *("--tag", "region=north", "--tag", "room=7", "--cpus=1"),
    )
    assert made.returncode == 0, made.stderr
    shown = retarget("target", "show", "desk").stdout
    assert _without_times(made.stdout) == _without_times(shown)
    assert "region=north, room=7" in shown
    assert "0 B / 2.0 GiB" in shown
    assert retarget("run", "--target", "desk", "--", "true").returncode == 0
    changed = retarget("target", "update", "desk", "--cpus", "2", "--json")
    assert json.loads(changed.stdout)["config"]["cpus"] == 2
    assert json.loads(changed.stdout)["tags"] == {"region": "north", "room": "7"}
    back = retarget("target", "update", "desk", "--unset", "cpus", "--unset=--linger", "--json")
    assert json.loads(back.stdout)["config"]["cpus"] is None
    wrong = said(retarget("target", "update", "desk", "--unset", "cpu"), 2)
    assert "local targets have no option --cpu; did you mean --cpus?" in wrong
    twice = said(retarget("target", "update", "desk", "--unset", "cpus", "--cpus", "1"), 2)
    assert "--cpus is given a value, and unset, too" in twice
    retarget("run", "-d", "--name", "late", "--target", "desk", "--", "sleep", "60")
    refusal = said(retarget("target", "detach", "desk"), 1)
    assert "target 'desk' has a job that did not end yet: late; " in refusal
    forced = retarget("target", "detach", "desk", "--force")
    assert (forced.returncode, forced.stderr) == (0, "detached desk; failed with it: late\n")
    assert "target 'desk' was detached" in retarget("job", "show", "late").stdout
    assert "desk" not in retarget("target", "list").stdout
    assert "cannot be detached" in said(retarget("target", "detach", "local"), 1)


def _without_times(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("checked ")]


def test_the_options_are_those_of_the_kind(retarget: Cli, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n")
    made = retarget(
        *("target", "create", "--address", "here", "--host", "a", "--host=b", "safe"),
        *("--kind=vault", "--memory", "1.5GiB", "--no-strict", "--label", "door=1"),
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
    assert made.returncode == 0, made.stderr
    told = json.loads(made.stdout)
    config = told["config"]
    assert (config["hosts"], config["memory"], config["strict"]) == (["a", "b"], 1610612736, False)
    assert (config["labels"], config["depth"]) == ({"door": "1", "lift": "2"}, -3)
    assert (config["level"], config["rooms"][0]["address"]) == ("high", "r")
    assert (config["key"], config["password"]) == ("********", "********")
    sizes = [len(SECRET), len(key.read_text())]
    assert told["facts"]["details"]["secrets"] == str(sizes)
    assert "SHA256:abc" in retarget("target", "show", "safe").stdout


def test_help_shows_the_options_of_a_kind(retarget: Cli) -> None:
    general = retarget("target", "attach", "--help")
    assert (general.returncode, "Options of" in general.stdout) == (0, False)
    text = retarget("target", "attach", "x", "--kind", "vault", "--help").stdout
    assert "Options of vault targets:" in text
    for row in (
        "--address TEXT                 Where it is  [required]",
        "--host TEXT                    Its machines  [repeatable]",
        "--password / --password-stdin  Opens it",
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


def test_a_secret_is_in_no_file_and_no_log(retarget: Cli, home: Path, tmp_path: Path) -> None:
    words = ("target", "attach", "safe", "--kind", "vault", "--password-stdin", "--address")
    assert retarget(*words, "nowhere", input=SECRET).returncode == 1
    assert retarget(*words, "here", input=SECRET).returncode == 0
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


def test_a_password_is_asked_for_without_echo(retarget: Cli) -> None:
    retarget("server", "start")
    pid, end = pty.fork()
    if pid == 0:
        words = ("attach", "safe", "--kind", "vault", "--address", "a", "--password")
        os.execv(COMMAND, [COMMAND, "target", *words])
    seen = b""
    while b"password: " not in seen:
        seen += os.read(end, 1024)
    time.sleep(0.2)  # it turns the echo off before it asks, and discards what came before
    os.write(end, SECRET.encode() + b"\n")
    try:
        while piece := os.read(end, 1024):
            seen += piece
    except OSError:  # it has left
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, seen
    os.close(end)
    assert SECRET.encode() not in seen
    assert f"[{len(SECRET)}]".encode() in seen
    assert b"checking safe" in seen


def test_ctrl_c_leaves_without_a_word(retarget: Cli) -> None:
    retarget("server", "start")
    words = ("target", "attach", "slow", "--kind", "vault", "--address", "slow")
    waiting = subprocess.Popen([COMMAND, *words], stderr=subprocess.PIPE, text=True)
    time.sleep(1.5)
    waiting.send_signal(signal.SIGINT)
    assert waiting.communicate(timeout=10)[1] == ""
    assert waiting.returncode == 130


def test_what_is_wrong_is_one_sentence(retarget: Cli, tmp_path: Path) -> None:
    public, empty = tmp_path / "id.pub", tmp_path / "empty"
    public.write_text("ssh-ed25519 AAAA me@here\n")
    empty.touch()
    attach = ("target", "attach", "x", "--kind", "vault", "--address", "a")
    for words, sentence in {
        (*attach, "--hots", "3"): "have no option --hots; did you mean --host? there",
        (*attach, "--memory", "lots"): "--memory: 'lots' is not an amount of memory; write 512m",
        (*attach, "--depth", "x"): "--depth: 'x' is not a whole number",
        (*attach, "--cpus", "nan"): "--cpus: 'nan' is not a number",
        (*attach, "--cpus", "0"): "--cpus: must be greater than 0",
        (*attach, "--level", "x"): "--level: 'x' is not one of low, high",
        (*attach, "--label", "x"): "--label 'x' is not K=V",
        (*attach, "--tag", "x"): "--tag 'x' is not K=V",
        (*attach, "--room", "{x"): "--room: this is not JSON: ",
        (*attach, "--room", '{"password": "b"}'): "others could read its password here",
        (*attach, "--room", "{}"): "--room: is needed",
        (*attach, "--host"): "--host needs a value (Its machines)",
        (*attach, "--host", "--json"): "--host needs a value (Its machines)",
        (*attach, "--strict=1"): "--strict takes no value; there are --strict and --no-strict",
        (*attach, "--password"): "on a terminal; from elsewhere use --password-stdin",
        (*attach, "--password-stdin"): "--password-stdin: nothing came",
        (*attach, "--key", "/nope/key"): "--key: cannot read /nope/key: No such file or directory",
        (*attach, "--key", str(tmp_path)): f"--key: cannot read {tmp_path}: Is a directory",
        (*attach, "--key", str(public)): f"name the private one, perhaps {tmp_path}/id",
        (*attach, "--key", str(empty)): f"--key: {empty} is empty",
        ("target", "attach", "x"): "of which kind is it? give --kind: ",
        ("target", "attach", "x", "--kind", "vault"): "--address: is needed (Where it is)",
        ("target", "attach", "x", "--kind", "vualt"): "unknown kind 'vualt'; this server knows ",
        ("target", "attach", "a/b", *attach[3:]): "name: 'a/b' is not a name; use 1 to 63 letters",
        ("target", "update", "local"): "what is to change? `retarget target update local",
        ("target", "update", "--cpus", "2"): "which target? name it first: retarget target",
        ("target", "update", "local", "--cpu", "2"): "have no option --cpu; did you mean --cpus?",
    }.items():  # fmt: skip
        assert sentence in said(retarget(*words)), words
    for words in ((*attach, f"--password={SECRET}"), (*attach, "--password", SECRET)):
        told = said(retarget(*words))
        assert "--password takes no value, as others could read it there" in told
        assert SECRET not in told
    nowhere = retarget("target", "attach", "x", "--kind", "vault", "--address", "nowhere")
    assert said(nowhere, 1) == "error: nowhere does not answer; is it switched on?"
    assert "exists already" in said(retarget("target", "attach", "local", *attach[3:]), 1)
    assert "no target named 'x'" in said(retarget("target", "detach", "x"), 1)
    assert "no target named 'x'" in said(retarget("target", "update", "x", "--cpus", "1"), 1)
    assert len(json.loads(retarget("target", "list", "--json").stdout)) == 1
