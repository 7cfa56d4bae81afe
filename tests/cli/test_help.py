"""What the command says about itself, and what that costs."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., subprocess.CompletedProcess[str]]
COMMAND = str(Path(sys.executable).parent / "retarget")
HEAVY = ("pydantic", "httpx", "rich", "yaml", "fastapi", "sqlalchemy")
GROUPS = {
    "job": "list show logs wait cancel outputs rerun why delete",
    "target": "list show kinds check",
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
    --dry-run"""
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
