"""Errors of the command line: one style, one sentence, what to do next."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.commands import wait_until_connected

Cli = Callable[..., subprocess.CompletedProcess[str]]
COMMAND = str(Path(sys.executable).parent / "retarget")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ("job show", "missing argument 'NAME'; see `retarget job show --help`"),
        ("job show a b", "unexpected argument b; see `retarget job show --help`"),
        ("ps --limit x", "invalid value for '--limit': 'x' is not an integer; see `retarget ps "),
        ("job why --zzz x", "unknown option --zzz; see `retarget job why --help`"),
        (
            "job rerun a --lr 0.3",
            "unknown option --lr; arguments of the script go after `--`: retarget job rerun … -- "
            "--lr",
        ),
        (
            "run -m churnkit.train --lr 1",
            "to run a module, use: retarget run -- python -m churnkit.train --lr 1",
        ),
        ("job frobnicate", "unknown command 'frobnicate'; see `retarget job --help`"),
        ("frobnicate", "unknown command 'frobnicate'; see `retarget --help`"),
        ("job lst", "unknown command 'lst'; did you mean `retarget job list`?"),
        ("rn x.py", "unknown command 'rn'; did you mean `retarget run`?"),
        ("job list --stat failed", "unknown option --stat; did you mean --state?"),
        ("job stop x", "unknown command 'stop'; did you mean `retarget job cancel`?"),
        ("job rm x", "unknown command 'rm'; did you mean `retarget job delete`?"),
        ("target delete x", "unknown command 'delete'; did you mean `retarget target detach`?"),
        ("target rm x", "unknown command 'rm'; did you mean `retarget target detach`?"),
        ("job download x", "unknown command 'download'; did you mean `retarget job outputs`?"),
        ("model ls", "unknown command 'ls'; did you mean `retarget model list`?"),
        ("jobs --all", "unknown command 'jobs'; did you mean `retarget job list --all`?"),
        ("version", "unknown command 'version'; did you mean `retarget --version`?"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(retarget: Cli, args: str, sentence: str) -> None:
    done = retarget(*args.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {sentence}")
    assert done.stderr.count("\n") == 1


def test_a_group_without_a_command_shows_its_help(retarget: Cli) -> None:
    done = retarget("job")
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: retarget job ")


def test_ctrl_c_prints_one_line_and_exits_with_130(retarget: Cli) -> None:
    retarget("run", "-d", "--name", "s", "--", "sleep", "300")
    with subprocess.Popen([COMMAND, "job", "wait", "s"], stderr=subprocess.PIPE) as child:
        wait_until_connected(child.pid)
        child.send_signal(signal.SIGINT)
        assert child.communicate(timeout=200)[1] == b"interrupted\n"
        assert child.returncode == 130
    retarget("job", "cancel", "s")
    canceled = retarget("job", "wait", "s")  # the same exit code, but nobody pressed Ctrl-C
    assert (canceled.returncode, "interrupted" in canceled.stderr) == (130, False)


def test_no_to_a_question_says_that_nothing_was_deleted(retarget: Cli) -> None:
    retarget("run", "--name", "a", "--", "true")
    master, terminal = pty.openpty()
    command = [COMMAND, "job", "delete", "a"]
    with subprocess.Popen(command, stdin=terminal, stderr=subprocess.PIPE) as child:
        os.write(master, b"n\n")
        shown = child.communicate(timeout=200)[1]
    os.close(master)
    os.close(terminal)
    assert child.returncode == 1
    assert shown.endswith(b"nothing was deleted\n")
    assert b"Abort" not in shown


@pytest.mark.parametrize(
    ("args", "advice"),
    [
        (["nb.ipynb"], "cannot run 'nb.ipynb': it is not a notebook: Expecting value"),
        (["m.R"], "it is neither .py, .sh nor .ipynb; use: retarget run -- Rscript m.R"),
        (["x.dat"], "name its interpreter (retarget run -- PROGRAM x.dat), or begin it with "),
        (["sh sub/x.sh"], "to run a command: retarget run -- sh sub/x.sh"),
        (["--", "echo a && echo b"], "write: retarget run -- bash -c 'echo a && echo b'"),
        (["--", "echo a b"], "write: retarget run -- echo a b"),
    ],
)
def test_what_cannot_be_run_says_how_to_run_it(
    retarget: Cli, tmp_path: Path, args: list[str], advice: str
) -> None:
    for name in ("nb.ipynb", "m.R", "x.dat"):
        (tmp_path / name).touch()
    done = retarget("run", *args, cwd=tmp_path)
    assert done.returncode == 2
    assert advice in done.stderr
    assert done.stderr.count("\n") == 1


def test_one_file_is_not_files(retarget: Cli) -> None:
    retarget("run", "--name", "a", "--", "sh", "-c", "echo x > outputs/x")
    retarget("job", "delete", "a")
    pruned = retarget("server", "prune", "--keep", "0").stdout
    assert pruned.startswith("deleted ")
    assert "deleted 1 files" not in pruned
