"""What commands look like on a terminal, and that they stay plain in a pipe."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

Cli = Callable[..., subprocess.CompletedProcess[str]]
COMMAND = str(Path(sys.executable).parent / "retarget")
LONG = "a-job-with-quite-a-long-name-that-goes-on-and-on-up-to-60-cha"
EXPERIMENT = "an-experiment-with-a-name-that-is-longer-than-any-column-of-a-table-could-be"
TRANSFER = """
import time
from retarget.cli.live_bar import Transfer
with Transfer("sending " + "folder/" * 20, "sent it") as transfer:
    transfer.update(10, 100); time.sleep(1.2); transfer.update(50, 100); transfer.update(100, 100)
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "hello.py").write_text("print('hello')")
    (folder / "bad.py").write_text("raise ValueError('no data')")
    (folder / "long.py").write_text(
        "import os; from retarget import track\n"
        "path = 'outputs/' + '/'.join(['a-folder-with-a-long-name'] * 4); os.makedirs(path)\n"
        "open(f'{path}/model.bin', 'w').close()\n"
        "track.log({'a_metric_with_a_name_that_is_longer_than_the_column_of_a_table': 0.5})\n"
        "track.param({'a_parameter_with_a_name_that_is_longer_than_a_column': 'and-a-value' * 9})\n"
    )
    return folder


def on_terminal(
    *args: str, cwd: Path | None = None, variables: dict[str, str] | None = None
) -> tuple[int, str]:
    """Run a command on a terminal of 80 columns; return its exit code and all it has written."""
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    env = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR")}
    env |= {"TERM": "xterm", **(variables or {})}
    child = subprocess.Popen(
        list(args), cwd=cwd, stdin=terminal, stdout=terminal, stderr=terminal, env=env
    )
    os.close(terminal)
    shown = b""
    with suppress(OSError):  # Linux raises it when the other side is closed
        while piece := os.read(master, 65536):
            shown += piece
    os.close(master)
    return child.wait(timeout=200), shown.decode().replace("\r\n", "\n")


def test_a_terminal_shows_how_a_job_ended_apart_from_its_output(retarget: Cli, code: Path) -> None:
    retarget("server", "start")
    code_of_job, shown = on_terminal(COMMAND, "run", "--name", "h", "hello.py", cwd=code)
    assert code_of_job == 0
    assert "hello\n\n\x1b[32m✓\x1b[0m \x1b[1mh\x1b[0m succeeded in " in shown
    assert re.search(r"(ms| s)\x1b\[2m  see `retarget job show h`\x1b\[0m\n$", shown)
    code_of_job, shown = on_terminal(COMMAND, "run", "--name", "b", "bad.py", cwd=code)
    assert code_of_job == 1
    assert "ValueError: no data\n\n\x1b[31m✗\x1b[0m \x1b[1mb\x1b[0m failed after " in shown
    assert "exit code 1: ValueError: no data (bad.py:1)\n" in shown
    _, shown = on_terminal(COMMAND, "job", "wait", "h")
    assert shown.startswith("\x1b[32m✓\x1b[0m \x1b[1mh\x1b[0m succeeded in ")


def test_help_has_bold_headings_on_a_terminal_only(retarget: Cli) -> None:
    for args in (["--help"], ["run", "--help"], ["job"]):
        _, shown = on_terminal(COMMAND, *args)
        assert "\n\x1b[1mOptions:\x1b[0m\n" in shown
        _, plain = on_terminal(COMMAND, *args, variables={"NO_COLOR": "1"})
        assert plain == re.sub(r"\x1b\[[01]m", "", shown)
    assert "\x1b" not in retarget("run", "--help").stdout


def test_no_color_keeps_the_mark_and_nothing_else(retarget: Cli, code: Path) -> None:
    retarget("server", "start")
    plain = {"NO_COLOR": "1"}
    _, shown = on_terminal(COMMAND, "run", "--name", "h", "hello.py", cwd=code, variables=plain)
    assert not re.search(r"\x1b\[[\d;]*m", shown)
    assert "hello\n\n✓ h succeeded in " in shown
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    _, shown = on_terminal(COMMAND, "job", "wait", "h", variables=plain | ascii_only)
    assert shown.startswith("h succeeded in ")


def test_a_pipe_gets_one_plain_line(retarget: Cli, code: Path) -> None:
    done = retarget("run", "--name", "h", "hello.py", cwd=code)
    assert done.stdout == "hello\n"
    last = done.stderr.splitlines()[-1]
    assert re.fullmatch(r"h succeeded in .+; see `retarget job show h`", last)
    assert not any(mark in done.stderr for mark in ("\x1b", "✓", "\n\n"))


def test_a_build_is_one_line_on_a_terminal_and_two_in_a_pipe(retarget: Cli, code: Path) -> None:
    (code / "requirements.txt").write_text("# nothing\n")  # needs no package index
    command = ("run", "--name", "t", "-e", "requirements.txt", "hello.py")
    _, shown = on_terminal(COMMAND, *command, cwd=code)
    lasting = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown.rpartition("\x1b[2K")[2])
    assert re.match(r"environment \w{12}: ready after [\d.]+ m?s\nhello\n\n✓ t ", lasting)
    (code / "requirements.txt").write_text("# nothing else\nretarget-no-such-package\n")
    done = retarget("run", "--name", "p", "-e", "requirements.txt", "hello.py", cwd=code)
    lines = done.stderr.splitlines()
    assert re.fullmatch(r"environment \w{12}: building", lines[1])
    assert "retarget-no-such-package" in done.stderr  # the details of a build that fails
    log = retarget("job", "logs", "t", "--stream", "prepare").stdout.splitlines()
    assert log[0].endswith(": building")


def test_a_build_that_succeeds_has_two_lines_in_a_pipe(retarget: Cli, code: Path) -> None:
    (code / "requirements.txt").write_text("# nothing\n")
    done = retarget("run", "--name", "p", "-e", "requirements.txt", "hello.py", cwd=code)
    lines = [re.sub(r"[\d.]+ m?s$|\b\w{12}\b", "N", line) for line in done.stderr.splitlines()]
    assert lines[:3] == ["p on local", "environment N: building", "environment N: ready after N"]
    assert len(lines) == 4


def test_a_transfer_is_one_live_line(home: Path) -> None:
    _, shown = on_terminal(sys.executable, "-c", TRANSFER)
    assert "━━━━━" in shown
    assert "…" in shown  # the long name is cut, so that the line can be erased
    assert re.search(r"\x1b\[2msent it: 100 B in 1\.\d s\x1b\[0m\n$", shown)
    piped = subprocess.run([sys.executable, "-c", TRANSFER], capture_output=True, text=True)
    lines = r"sending (folder/){20}: 100 B\nsent it: 100 B in \d\.\d s\n"
    assert re.fullmatch(lines, piped.stderr)


def test_no_table_breaks_a_word_at_80_columns(retarget: Cli, code: Path) -> None:
    retarget("run", "--name", LONG, "--experiment", EXPERIMENT, "long.py", cwd=code)
    retarget("run", "--name", "short", "bad.py", cwd=code)
    logged = "metrics.a_metric_with_a_name_that_is_longer_than_the_column_of_a_table"
    for args in (
        ["job", "list"],
        ["job", "list", "--sort", logged],
        ["job", "list", "--columns", f"name,state,experiment,target,{logged}"],
        ["job", "outputs", LONG],
        ["job", "metrics", LONG],
        ["job", "compare", LONG, "short"],
        ["experiment", "list"],
        ["target", "list"],
        ["target", "kinds"],
        ["env", "list"],
        ["config", "list"],
        ["secret", "list"],
        ["model", "list"],
    ):
        code_of_command, shown = on_terminal(COMMAND, *args, cwd=code)
        lines = re.sub(r"\x1b\[[\d;]*m", "", shown).splitlines()
        assert code_of_command == 0, shown
        assert [line for line in lines if len(line.rstrip()) > 80] == [], args
        whole = " ".join(lines)
        for name in (LONG, EXPERIMENT, "a-folder-with-a-long-name", "processes"):
            cut = [word for word in whole.split() if word.startswith(name[:6])]
            assert all(word.startswith(name) or "…" in word for word in cut if len(word) > 6), args
