"""Ctrl-C and other signals, sent to the real command; on a real terminal for questions."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.commands import wait_until_connected

Cli = Callable[..., subprocess.CompletedProcess[str]]
COMMAND = str(Path(sys.executable).parent / "retarget")
CTRL_C = b"\x03"


class Terminal:
    """A command on its own terminal."""

    def __init__(self, args: list[str], cwd: Path) -> None:
        self.pid, self._master = pty.fork()
        if not self.pid:
            os.chdir(cwd)
            os.execvpe(COMMAND, [COMMAND, *args], os.environ | {"TERM": "xterm"})
        self.shown = ""

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def wait_for(self, text: str, *, timeout: float = 200) -> None:
        deadline = time.monotonic() + timeout
        while text not in self.shown:
            assert time.monotonic() < deadline, f"no {text!r} in {self.shown!r}"
            self._read(0.1)

    def exit_code(self, *, timeout: float = 200) -> int:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            self._read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._read(0.05)
                os.close(self._master)
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise AssertionError(f"the command did not exit; it showed {self.shown!r}")

    def _read(self, timeout: float) -> None:
        if select.select([self._master], [], [], timeout)[0]:
            try:
                self.shown += os.read(self._master, 65536).decode(errors="replace")
            except OSError:  # the other side is closed
                time.sleep(timeout)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "sleep.py").write_text("import time; print('begun', flush=True); time.sleep(60)")
    count = "for n in range(20): print('line', n, flush=True); time.sleep(0.2); n == 9 and wait()"
    (folder / "count.py").write_text(f"{_wait_for(folder / 'go')}\n{count}")
    return folder


def _wait_for(gate: Path) -> str:
    """Return the source of a function that waits until the file exists."""
    return (
        f"import os, time\ndef wait():\n while not os.path.exists({str(gate)!r}): time.sleep(0.05)"
    )


@pytest.fixture
def sleeping(retarget: Cli, code: Path) -> Iterator[Terminal]:
    """A `run` on a terminal, of the job `s`, whose script has started."""
    retarget("server", "start")
    terminal = Terminal(["run", "--name", "s", "sleep.py"], code)
    terminal.wait_for("begun")
    yield terminal
    retarget("job", "cancel", "s")
    retarget("job", "wait", "s")


def test_detach_leaves_the_job_running(sleeping: Terminal, retarget: Cli) -> None:
    sleeping.type(CTRL_C)
    sleeping.wait_for("[d]etach, [c]ancel")
    sleeping.type(b"d\n")
    assert sleeping.exit_code() == 0
    assert "retarget job logs s -f" in sleeping.shown
    assert '"running"' in retarget("job", "show", "s", "--json").stdout


def test_cancel_ends_the_job(sleeping: Terminal) -> None:
    sleeping.type(CTRL_C)
    sleeping.wait_for("[d]etach, [c]ancel")
    sleeping.type(b"c\n")
    assert sleeping.exit_code() == 130
    assert "was canceled" in sleeping.shown


def test_a_second_ctrl_c_at_the_question_cancels(sleeping: Terminal) -> None:
    sleeping.type(CTRL_C)
    sleeping.wait_for("[d]etach, [c]ancel")
    sleeping.type(CTRL_C)
    assert sleeping.exit_code() == 130
    assert "was canceled" in sleeping.shown


def test_the_next_ctrl_c_asks_again(sleeping: Terminal) -> None:
    for _ in range(2):
        sleeping.shown = ""
        sleeping.type(CTRL_C)
        sleeping.wait_for("job s: [d]etach, [c]ancel, or Enter to keep waiting?")
        sleeping.type(b"\n")
        time.sleep(0.5)
    sleeping.shown = ""
    sleeping.type(CTRL_C)
    sleeping.wait_for("keep waiting?")
    sleeping.type(b"c\n")
    assert sleeping.exit_code() == 130


def test_an_invalid_answer_repeats_the_question(sleeping: Terminal, retarget: Cli) -> None:
    sleeping.type(CTRL_C)
    sleeping.wait_for("keep waiting?")
    sleeping.type(b"x\n")
    sleeping.wait_for("please answer d or c, or press Enter; [d]etach")
    sleeping.type(b"d\n")
    assert sleeping.exit_code() == 0
    assert '"running"' in retarget("job", "show", "s", "--json").stdout


def test_the_question_is_withdrawn_when_the_job_ends(retarget: Cli, code: Path) -> None:
    (code / "many.py").write_text(
        f"{_wait_for(code / 'go')}\nprint('begun', flush=True); wait()\n"
        "for n in range(3000): print('x' * 1000, n, flush=True)\nprint('through')"
    )
    retarget("server", "start")
    terminal = Terminal(["run", "--name", "m", "many.py"], code)
    terminal.wait_for("begun")
    terminal.type(CTRL_C)
    terminal.wait_for("keep waiting? ")
    (code / "go").touch()
    assert terminal.exit_code() == 0
    assert "keep waiting? \r\x1b[K" in terminal.shown
    assert "through\r\n" in terminal.shown
    assert "m\x1b[0m succeeded" in terminal.shown


def test_waiting_on_loses_no_line(retarget: Cli, code: Path) -> None:
    retarget("server", "start")
    terminal = Terminal(["run", "count.py"], code)
    terminal.wait_for("line 3\r\n")
    terminal.type(CTRL_C)
    terminal.wait_for("keep waiting?")
    (code / "go").touch()
    time.sleep(1)
    terminal.type(b"\n")
    assert terminal.exit_code() == 0
    assert re.findall(r"line (\d+)\r\n", terminal.shown) == [str(n) for n in range(20)]


def test_without_a_terminal_sigint_cancels(retarget: Cli, code: Path) -> None:
    with _running(code, "run", "--name", "s", "sleep.py") as child:
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=200) == 130
    assert '"canceled"' in retarget("job", "show", "s", "--json").stdout


def test_sigterm_detaches(retarget: Cli, code: Path) -> None:
    with _running(code, "run", "--name", "s", "sleep.py") as child:
        child.send_signal(signal.SIGTERM)
        assert child.wait(timeout=200) == 143
    assert '"running"' in retarget("job", "show", "s", "--json").stdout
    retarget("job", "cancel", "s")
    assert retarget("job", "wait", "s").returncode == 130


def _wait_until_running(retarget: Cli, name: str) -> None:
    deadline = time.monotonic() + 200
    while '"running"' not in (shown := retarget("job", "show", name, "--json").stdout):
        assert time.monotonic() < deadline, shown
        time.sleep(0.1)


@pytest.mark.parametrize("args", [("logs", "s", "-f"), ("wait", "s")])
def test_ctrl_c_stops_watching_and_the_job_keeps_running(
    retarget: Cli, code: Path, args: tuple[str]
) -> None:
    retarget("run", "-d", "--name", "s", "sleep.py", cwd=code)
    _wait_until_running(retarget, "s")
    with subprocess.Popen([COMMAND, "job", *args], stderr=subprocess.PIPE) as child:
        wait_until_connected(child.pid)
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=200) == 130
        assert child.stderr is not None
        assert b"Traceback" not in child.stderr.read()
    assert '"running"' in retarget("job", "show", "s", "--json").stdout
    retarget("job", "cancel", "s")
    assert retarget("job", "wait", "s").returncode == 130


def test_a_waiting_job_is_shown_by_a_spinner(retarget: Cli, code: Path) -> None:
    cpus = str(os.cpu_count())
    retarget("run", "-d", "--name", "s", "--cpus", cpus, "sleep.py", cwd=code)
    terminal = Terminal(["run", "--name", "t", "--cpus", cpus, "count.py"], code)
    terminal.wait_for(" waiting")
    retarget("job", "cancel", "s")
    terminal.wait_for("line 3")
    terminal.type(CTRL_C)
    terminal.wait_for("keep waiting?")
    terminal.type(CTRL_C)
    assert terminal.exit_code() == 130


def test_reading_a_folder_shows_one_line_that_is_redrawn(retarget: Cli, code: Path) -> None:
    retarget("server", "start")
    with (code / "large.bin").open("wb") as file:
        file.truncate(200 * 2**30)  # sparse: needs no disk space, but takes long to read
    terminal = Terminal(["run", "sleep.py"], code)
    terminal.wait_for("reading ")
    time.sleep(1)
    terminal.type(CTRL_C)
    assert terminal.exit_code() == 130
    lines = terminal.shown.split("\r\x1b[K")
    assert len([line for line in lines if line.startswith("reading ")]) > 1
    assert re.sub(r"\x1b\[\d*m", "", lines[-1]) == "interrupted\r\n"


def _running(code: Path, *args: str) -> "subprocess.Popen[str]":
    child = subprocess.Popen(
        [COMMAND, *args], cwd=code, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "begun\n"
    return child


_SIGNAL_AT_IMPORT = """\
import os, signal, sys
class Interrupter:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupter)
"""
_SIGNAL_AT_EXIT = """\
import atexit, os, signal
atexit.register(os.kill, os.getpid(), signal.SIGINT)
"""


@pytest.mark.parametrize(
    "source",
    [
        _SIGNAL_AT_IMPORT.format(module="typer"),
        _SIGNAL_AT_IMPORT.format(module="retarget.cli.jobs"),
        _SIGNAL_AT_EXIT,
    ],
    ids=["while loading", "while loading a group", "while exiting"],
)
def test_ctrl_c_prints_no_traceback(tmp_path: Path, source: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(source)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [COMMAND, "job", "list", "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_a_canceled_build_leaves_no_job(retarget: Cli, code: Path) -> None:
    retarget("server", "start")
    busy = retarget(
        "run", "-d", "--name", "busy", "--cpus", str(os.cpu_count()), "sleep.py", cwd=code
    )
    assert busy.returncode == 0, busy.stderr
    (code / "requirements.txt").write_text("# nothing\n")
    terminal = Terminal(["environment", "build", "requirements.txt"], code)
    terminal.wait_for("on local")
    terminal.type(CTRL_C)
    terminal.wait_for("etach, ")
    terminal.type(b"c\n")
    assert terminal.exit_code() != 0
    assert "canceled the build on local" in terminal.shown
    listed = retarget("job", "list", "--all").stdout
    assert [line.split()[0] for line in listed.splitlines()[1:]] == ["busy"]
    retarget("job", "cancel", "busy")
    retarget("job", "wait", "busy")
