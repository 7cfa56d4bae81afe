"""A forked command or server is like one that was started in the usual way."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import COMMAND, Cli, run_command
from tests.plugin import install_vault
from tests.preloaded import Program, preloaded


@pytest.mark.parametrize(
    "arguments", [("--version",), ("nope",), ("run", "--cpus", "many", "x.py")]
)
def test_its_output_and_exit_code_are_the_same(home: Path, arguments: tuple[str, ...]) -> None:
    forked = run_command(*arguments, folder=home.parent)
    started = subprocess.run([COMMAND, *arguments], cwd=home.parent, capture_output=True, text=True)
    assert forked.returncode == started.returncode
    assert (forked.stdout, forked.stderr) == (started.stdout, started.stderr)


def test_it_has_its_own_folder_input_and_variables(home: Path, server: None) -> None:
    code = "import os, sys; print(os.environ['COLOR'], sys.stdin.read())"
    (home.parent / "x.py").write_text(code)
    run = run_command("run", "--env", "COLOR", "x.py", folder=home.parent, env={"COLOR": "red"})
    assert run.stdout == "red \n"
    assert "COLOR" not in os.environ
    secret = run_command("secret", "set", "KEY", folder=home.parent, input="secret value\n")
    assert secret.returncode == 0, secret.stderr


def test_variables_that_python_reads_at_its_start_need_a_new_process() -> None:
    assert preloaded().can_run(os.environ | {"RETARGET_POLL_SECONDS": "1"})
    assert not preloaded().can_run(os.environ | {"PYTHONHASHSEED": "1"})


def test_it_finds_a_plugin(retarget: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", install_vault(tmp_path / "plugin"))
    assert preloaded().can_run(os.environ)
    assert "vault" in retarget("target", "kinds").stdout


def test_a_signal_ends_it(home: Path) -> None:
    home.mkdir(mode=0o700)
    program = Program("retarget.server", [], str(home), os.environ | {"RETARGET_HOME": str(home)})
    with open(os.devnull, "wb") as output:
        server = preloaded().start(program, output=output.fileno())
    while not (home / "servers/main/server.json").exists():
        assert server.poll() is None
        time.sleep(0.01)
    server.send_signal(signal.SIGKILL)
    assert server.wait(60) == -signal.SIGKILL


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = "from tests.preloaded import preloaded\nprint(preloaded().pid, flush=True)"
    code += "\nimport os; os._exit(1)"
    command = [sys.executable, "-c", code]
    root = Path(__file__).parents[2]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=200)
    path = Path("/proc", ended.stdout.strip())
    while path.exists():
        time.sleep(0.01)
