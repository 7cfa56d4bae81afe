"""What the command says about itself, and what that costs."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from retarget.cli.terminal import joined
from retarget.core.states import JobState

Cli = Callable[..., subprocess.CompletedProcess[str]]
COMMAND = str(Path(sys.executable).parent / "retarget")
HEAVY = ("pydantic", "httpx", "rich", "yaml", "fastapi", "sqlalchemy")
GROUPS = {
    "job": "list show logs wait cancel outputs metrics compare rerun why delete",
    "experiment": "list show",
    "model": "list show register download alias delete",
    "target": "list show kinds check attach create update detach",
    "env": "list show build delete",
    "server": "start stop status run logs collect",
}


def help_of(*args: str) -> str:
    return subprocess.run(
        [COMMAND, *args, "--help"], capture_output=True, text=True, check=True, timeout=30
    ).stdout


def test_help_names_every_command() -> None:
    top = help_of()
    assert all(f"\n  {group} " in top for group in ("run", *GROUPS))
    for group, commands in GROUPS.items():
        text = help_of(group)
        assert all(f"\n  {command} " in text for command in commands.split())


def test_run_knows_every_option_of_the_issue() -> None:
    text = help_of("run")
    options = """--target -t --code --env -e --python --pip --name --experiment --set-env --cpus
    --memory --gpus --nodes --processes-per-node --retries --timeout --priority --detach -d
    --dry-run --json"""
    assert [each for each in options.split() if each not in text] == []
    assert "retarget run --env conda.yml train.py -- --lr 0.1" in text


@pytest.mark.parametrize("args", [["--help"], ["run", "--help"], ["job", "list", "--limit", "x"]])
def test_no_command_line_costs_a_heavy_import(args: list[str]) -> None:
    program = (
        "import sys\nfrom retarget.cli import main\n"
        "try: main(sys.argv[1:])\n"
        f"finally: print([m for m in sys.modules if m.split('.')[0] in {HEAVY}], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *args], capture_output=True, text=True, timeout=30
    )
    assert done.stderr.splitlines()[-1] == "[]"


def test_importing_the_package_is_cheap() -> None:
    program = (
        "import sys; before = set(sys.modules); import retarget; print(set(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "retarget.sdk" not in done.stdout
    assert "retarget.core" not in done.stdout


def every_help() -> Iterator[str]:
    yield help_of()
    yield help_of("run")
    for group, commands in GROUPS.items():
        yield from (help_of(group, command) for command in commands.split())


def test_help_fits_80_columns_and_names_no_python_type() -> None:
    for text in every_help():
        assert [line for line in text.splitlines() if len(line) > 80] == []
        assert re.findall(r"<\w+|\{\w+\}|list\[", text) == []


def test_help_says_what_may_be_written() -> None:
    assert "[SCRIPT [-- ARGS]]" in help_of("run")
    assert "no stdin" in help_of("run")
    assert "90s, 15m, 1h30m; a plain number" in help_of("run")
    assert "cancel [OPTIONS] NAMES…\n" in help_of("job", "cancel")
    listing = " ".join(help_of("job", "list").split())
    assert "--state STATE" in listing
    assert ", ".join(JobState) in listing


@pytest.mark.parametrize(
    ("args", "meant"),
    [
        (["list"], "retarget job list"),
        (["logs", "x", "-f"], "retarget job logs x -f"),
        (["build", "conda.yml"], "retarget env build conda.yml"),
        (["status"], "retarget server status"),
        (["train.py", "--cpus", "2"], "retarget run train.py --cpus 2"),
    ],
)
def test_a_command_without_its_group_is_guessed(
    retarget: Cli, tmp_path: Path, args: list[str], meant: str
) -> None:
    (tmp_path / "train.py").touch()
    done = retarget(*args)
    assert done.returncode == 2
    assert done.stderr == f"error: there is no command {args[0]!r}; did you mean `{meant}`?\n"


def test_a_sentence_that_goes_on_has_no_full_stop_in_it() -> None:
    assert (
        joined("requirements are unsatisfiable.", "see x")
        == "requirements are unsatisfiable; see x"
    )
    assert joined("exit code 3", "see x") == "exit code 3; see x"


def test_the_version_is_the_packages(retarget: Cli) -> None:
    from importlib.metadata import version

    assert retarget("--version").stdout == f"retarget {version('retarget')}\n"


def test_a_fault_of_ours_is_one_sentence_unless_it_is_asked_for(retarget: Cli, home: Path) -> None:
    home.mkdir()
    (home / "server.json").write_bytes(b"\xff")
    (home / "server.log").mkdir()  # nothing can be written there
    done = retarget("job", "list")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    asked = retarget("job", "list", env={"RETARGET_DEBUG": "1"})
    assert "Traceback" in asked.stderr
    (home / "server.log").rmdir()
