"""The help of the command, and the time that it costs."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from retarget.cli.terminal import append_clause
from retarget.core.states import JobState
from tests.conftest import run_command

Cli = Callable[..., subprocess.CompletedProcess[str]]
COMMAND = str(Path(sys.executable).parent / "retarget")
HEAVY = ("pydantic", "httpx", "rich", "yaml", "fastapi", "sqlalchemy")
GROUPS = {
    "job": "list show logs wait cancel outputs metrics compare rerun why delete",
    "experiment": "list show",
    "model": "list show register download alias delete",
    "target": "list show kinds check attach create update detach",
    "size": "list",
    "environment": "list show versions update build delete",
    "server": "start stop status run logs prune",
}


def help_of(*args: str) -> str:
    done = run_command(*args, "--help", folder=Path.cwd())
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_check_of_a_target_promises_no_new_login(retarget: Cli) -> None:
    shown = " ".join(retarget("target", "check", "--help").stdout.split())
    assert "The server logs in only if it has no open connection" in shown


def test_help_names_every_command() -> None:
    top = help_of()
    assert all(f"\n  {group} " in top for group in ("run", *GROUPS))
    for group, commands in GROUPS.items():
        text = help_of(group)
        assert all(f"\n  {command} " in text for command in commands.split())
        assert "..." not in text.partition("Commands:")[2]  # nothing is cut


SHORT_FORMS = {
    "ps": "job list",
    "ls": "job list",
    "logs": "job logs",
    "stop": "job cancel",
    "rm": "job delete",
    "env": "environment",
}


def test_short_forms_have_their_own_heading() -> None:
    commands, _, short_forms = help_of().partition("\nShort forms:\n")
    rows = [line.split(maxsplit=1) for line in short_forms.splitlines()]
    assert {name: text for name, text in rows} == {
        name: f"Short for `retarget {command}`." for name, command in SHORT_FORMS.items()
    }
    assert not [line for line in commands.splitlines() if line.split()[:1] == ["env"]]


@pytest.mark.parametrize("short_form", SHORT_FORMS)
def test_a_short_form_has_the_help_of_its_command(short_form: str) -> None:
    command = SHORT_FORMS[short_form]
    assert help_of(short_form) == help_of(*command.split()).replace(
        f"Usage: retarget {command} ", f"Usage: retarget {short_form} "
    )


def test_short_forms_do_what_their_commands_do(retarget: Cli, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert retarget("run", "--name", name, "--", "echo", f"I am {name}").returncode == 0
    assert retarget("ps", "--columns", "name,state").stdout.split() == [
        *("NAME", "STATE", "b", "succeeded", "a", "succeeded")
    ]
    assert retarget("ls", "--json").stdout == retarget("job", "list", "--json").stdout
    assert retarget("logs", "a", "--stream", "output").stdout == "I am a\n"
    stopped = retarget("stop", "a")
    assert stopped.returncode == 1
    assert stopped.stderr == retarget("job", "cancel", "a").stderr
    assert "has already ended" in stopped.stderr
    assert retarget("rm", "a", "b").stderr == "deleted a\ndeleted b\n"
    assert retarget("env", "list", "--json").stdout == "[]\n"


def test_run_has_every_option() -> None:
    text = help_of("run")
    options = """--target -t --code --environment -e --python --pip --image --dockerfile --context
    --name --experiment --env --env-file --cpus --memory --gpus --nodes --processes-per-node
    --retries --timeout --priority --detach -d --dry-run --json"""
    headings = re.findall(r"^(\S.+):$", text, re.M)
    assert headings == ["Arguments", "Where to run", "Environment", "Job", "Limits", "Options"]
    shown = re.findall(r"(?<!\S)--?[a-z-]+", text.partition("Arguments:")[2])
    assert [option for option in options.split() if option not in shown] == []
    assert "retarget run -e conda.yml train.py -- --lr 0.1" in text


@pytest.mark.parametrize("args", [["--help"], ["run", "--help"], ["job", "list", "--limit", "x"]])
def test_no_command_line_imports_a_heavy_package(args: list[str]) -> None:
    program = (
        "import sys\nfrom retarget.cli import main\n"
        "try: main(sys.argv[1:])\n"
        f"finally: print([m for m in sys.modules if m.split('.')[0] in {HEAVY}], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *args], capture_output=True, text=True, timeout=200
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


def test_help_shows_the_forms_of_values() -> None:
    assert "[SCRIPT [-- ARGS]]" in help_of("run")
    assert "no stdin" in help_of("run")
    assert "90s, 15m, 1h30m," in help_of("run")
    assert "compare [OPTIONS] NAMES…\n" in help_of("job", "compare")
    listing = " ".join(help_of("job", "list").split())
    assert "--state STATE" in listing
    assert ", ".join(JobState) in listing


@pytest.mark.parametrize(
    ("args", "suggestion"),
    [
        (["list"], "retarget job list"),
        (["why", "x"], "retarget job why x"),
        (["build", "conda.yml"], "retarget environment build conda.yml"),
        (["status"], "retarget server status"),
        (["train.py", "--cpus", "2"], "retarget run train.py --cpus 2"),
    ],
)
def test_a_command_without_its_group_gets_a_suggestion(
    retarget: Cli, tmp_path: Path, args: list[str], suggestion: str
) -> None:
    (tmp_path / "train.py").touch()
    done = retarget(*args)
    assert done.returncode == 2
    assert done.stderr == f"error: unknown command {args[0]!r}; did you mean `{suggestion}`?\n"


def test_a_clause_replaces_the_full_stop_of_a_sentence() -> None:
    sentence = "requirements are unsatisfiable."
    assert append_clause(sentence, "see x") == "requirements are unsatisfiable; see x"
    assert append_clause("exit code 3", "see x") == "exit code 3; see x"


def test_version_prints_the_version_of_the_package(retarget: Cli) -> None:
    from importlib.metadata import version

    assert retarget("--version").stdout == f"retarget {version('retarget')}\n"


def test_a_traceback_is_shown_only_with_retarget_debug(retarget: Cli, home: Path) -> None:
    (home / "servers/main").mkdir(parents=True)
    (home / "servers/main/server.json").write_bytes(b"\xff")
    (home / "servers/main/server.log").mkdir()  # the server cannot write its log
    done = retarget("job", "list")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    debugged = retarget("job", "list", env={"RETARGET_DEBUG": "1"})
    assert "Traceback" in debugged.stderr
    (home / "servers/main/server.log").rmdir()
