"""`retarget job rerun` with changes."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("import os, sys; print(sys.argv[1:], os.environ.get('A'))")
    (folder / "retarget.toml").write_text(
        'experiment = "trial"\n[resources]\ncpus = 0.5\n[variables]\nA = "project"\n'
    )
    return folder


def job(retarget: Cli, name: str) -> dict[str, Any]:
    return json.loads(retarget("job", "show", name, "--json").stdout)


def test_arguments_after_the_dashes_replace_those_of_the_script(retarget: Cli, code: Path) -> None:
    retarget("run", "--name", "a", "train.py", "--", "--lr", "0.1", "--", "x", cwd=code)
    assert job(retarget, "a")["arguments_index"] == 2
    for args, printed in (
        ((), "['--lr', '0.1', '--', 'x'] project\n"),
        (("--",), "['--lr', '0.1', '--', 'x'] project\n"),
        (("--env", "A=mine", "--", "--lr", "0.2"), "['--lr', '0.2'] mine\n"),
    ):
        done = retarget("job", "rerun", "a", *args)
        assert (done.returncode, done.stdout) == (0, printed), done.stderr


def test_options_change_the_job_and_what_it_shows(retarget: Cli, code: Path) -> None:
    retarget("run", "--name", "a", "train.py", cwd=code)
    shown = retarget("job", "show", "a").stdout
    assert "experiment=trial, cpus=0.5, variables.A" in shown
    options = ("--cpus", "1", "--experiment", "other", "--timeout", "5m", "--priority", "3")
    done = retarget("job", "rerun", "a", "-d", "--json", "--name", "b", *options)
    changed = json.loads(done.stdout)
    assert (changed["name"], changed["cpus"], changed["experiment"]) == ("b", 1, "other")
    assert (changed["timeout"], changed["priority"]) == (300, 3)
    assert changed["project_settings"] == ["variables.A"]
    assert retarget("job", "wait", "b").returncode == 0
    assert retarget("job", "logs", "b").stdout == "[] project\n"
    refused = retarget("job", "rerun", "a", "--cpus", "100000")
    assert (refused.returncode, "cpus" in refused.stderr) == (2, True)


def test_of_a_command_the_whole_command_is_replaced(retarget: Cli, code: Path) -> None:
    retarget("run", "--name", "c", "--", "python", "train.py", "--lr", "3", cwd=code)
    assert job(retarget, "c")["arguments_index"] is None
    done = retarget("job", "rerun", "c", "--", "python", "train.py", "4")
    assert done.stdout == "['4'] project\n"
    assert done.stderr.startswith(
        "running `python train.py 4` instead of the command `python train.py --lr 3`\n"
    )
    refused = retarget("job", "rerun", "c", "--", "--lr", "4")
    assert refused.returncode == 2
    assert refused.stderr == (
        "error: c runs a command, not a script, so `--` must be followed by the whole "
        "new command, such as: retarget job rerun c -- python train.py --lr 3\n"
    )


def test_another_environment_replaces_the_old_one(retarget: Cli, code: Path) -> None:
    (code / "bare.txt").write_text("# nothing\n")
    (code / "where.py").write_text("import sys; print('/environments/' in str(sys.path))")
    retarget("run", "--name", "a", "where.py", cwd=code)
    done = retarget("job", "rerun", "a", "-e", "bare.txt", cwd=code)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
