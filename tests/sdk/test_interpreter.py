"""A client in a job names the interpreter under the job's layer, which outlives the job."""

import sys
from pathlib import Path

import pytest

from retarget.sdk.environments import Environment
from retarget.sdk.interpreter import own_interpreter
from tests.conftest import Cli

_ASK = (
    "from retarget.sdk.interpreter import own_interpreter as o; import sys; print(o(), sys.prefix)"
)


def test_outside_of_a_job_it_is_the_python_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RETARGET_LAUNCH", raising=False)
    assert own_interpreter() == sys.executable == Environment().to_json()["prefer"]


def test_in_a_job_it_is_the_python_under_the_layer(retarget: Cli, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    done = retarget("run", "--", "python", "-c", _ASK, cwd=tmp_path / "code")
    interpreter, prefix = done.stdout.split()
    assert interpreter == sys.executable
    assert prefix.endswith("/layer")


def test_a_run_says_if_the_activated_environment_is_not_used(retarget: Cli, tmp_path: Path) -> None:
    code, other = tmp_path / "code", tmp_path / "other"
    code.mkdir()
    (other / "bin").mkdir(parents=True)
    python = other / "bin/python"
    python.symlink_to(sys.executable)
    activated = {"VIRTUAL_ENV": str(other)}
    ran = retarget("run", "--", "true", cwd=code, env=activated)
    line = f"runs with {sys.executable}, not with the activated environment"
    assert f"{line}; to use that: --python {python}" in ran.stderr.splitlines()
    conda = retarget("run", "--", "true", cwd=code, env={"CONDA_PREFIX": str(other)})
    assert line in conda.stderr
    for options, env in (
        (["--python", sys.executable], activated),
        ([], {"VIRTUAL_ENV": sys.prefix, "CONDA_PREFIX": str(other)}),
        ([], {"VIRTUAL_ENV": str(tmp_path / "removed")}),
    ):
        silent = retarget("run", *options, "--", "true", cwd=code, env=env)
        assert (silent.returncode, "activated" in silent.stderr) == (0, False)


def test_allow_pip_is_refused_for_a_built_environment(retarget: Cli, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    refused = retarget("run", "--allow-pip", "--pip", "six", "--", "true", cwd=tmp_path / "code")
    assert refused.returncode == 2
    assert "allow_pip is for an interpreter of your own" in refused.stderr


def test_allow_pip_is_shown(retarget: Cli, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    command = ("--", "python", "-c", "import sys; print(sys.prefix)")
    ran = retarget("run", "--allow-pip", "--name", "n", *command, cwd=tmp_path / "code")
    assert ran.stdout == f"{sys.prefix}\n"
    assert "pip may change the interpreter" in retarget("job", "show", "n").stdout
