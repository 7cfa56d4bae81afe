"""stdout and stderr of a script on those of `retarget run`."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import COMMAND

Cli = Callable[..., subprocess.CompletedProcess[str]]

_SCRIPT = """
import json, sys
print("warning", file=sys.stderr)
print(json.dumps({"loss": 0.5}))
print("no end", end="", file=sys.stderr)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "code" / "x.py"
    path.parent.mkdir()
    path.write_text(_SCRIPT)
    return path


def test_a_pipe_gets_stdout_alone(retarget: Cli, script: Path) -> None:
    done = retarget("run", "--name", "a", str(script))
    assert json.loads(done.stdout) == {"loss": 0.5}
    assert "warning\nno end\na succeeded" in done.stderr
    assert retarget("job", "logs", "a", "--stream", "stdout").stdout == done.stdout
    assert retarget("job", "logs", "a", "--stream", "stderr").stdout == "warning\nno end"
    whole = retarget("job", "logs", "a").stdout
    assert sorted(whole) == sorted(f"{done.stdout}warning\nno end")
    assert retarget("job", "logs", "a", "-f").stdout == whole
    again = retarget("job", "rerun", "a")
    assert again.stdout == done.stdout


def test_both_in_one_file_are_one_log(retarget: Cli, script: Path, tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        subprocess.run(
            [COMMAND, "run", "--name", "a", str(script)], stdout=log, stderr=log, check=True
        )
    assert 'warning\n{"loss": 0.5}\nno end' in (tmp_path / "log").read_text()
    assert retarget("job", "logs", "a", "--stream", "stdout").returncode != 0


def test_a_detached_job_has_one_log_unless_asked(retarget: Cli, script: Path) -> None:
    retarget("run", "-d", "--name", "a", str(script))
    retarget("run", "-d", "--name", "b", "--split-stderr", str(script))
    retarget("job", "wait", "a", "b")
    assert "no stream 'stderr'" in retarget("job", "logs", "a", "--stream", "stderr").stderr
    assert retarget("job", "logs", "b", "--stream", "stderr").stdout == "warning\nno end"


def test_several_processes_have_one_stream_each(retarget: Cli, script: Path) -> None:
    done = retarget("run", "--processes-per-node", "2", str(script))
    assert done.stdout.count("warning") == 2
    refused = retarget("run", "--processes-per-node", "2", "--split-stderr", str(script))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "split_stderr is for a single process" in refused.stderr


def test_a_rerun_with_several_processes_is_not_split(retarget: Cli, script: Path) -> None:
    retarget("run", "--name", "a", str(script))
    again = retarget("job", "rerun", "a", "-d", "--processes-per-node", "2")
    assert again.returncode == 0, again.stderr
    # without its server, a runner that has not reported everything would outlive the test
    assert retarget("job", "wait", again.stdout.strip()).returncode == 0
