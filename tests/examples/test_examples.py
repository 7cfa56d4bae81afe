"""Runs every example as a reader would."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Cli

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PROGRAMS = str(Path(sys.executable).parent)


def test_hello_prints_and_writes_an_output(retarget: Cli, tmp_path: Path) -> None:
    result = retarget("run", "--name", "hello", "--env", "WHO=you", EXAMPLES / "hello/hello.py")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("hello you, from hello on Python 3.")
    retarget("job", "outputs", "hello", "--download", tmp_path)
    assert (tmp_path / "outputs/hello.txt").read_text() == "hello you\n"


def test_ranks_communicate(retarget: Cli) -> None:
    result = retarget("run", "--processes-per-node", "3", EXAMPLES / "ranks/ranks.py")
    assert result.returncode == 0, result.stderr
    assert "[rank 0] the sum is 6\n" in result.stdout
    for rank in range(3):
        assert f"[rank {rank}] rank {rank} of 3, threads 1\n" in result.stdout


def test_a_script_submits_through_the_sdk(home: Path) -> None:
    result = subprocess.run(
        [sys.executable, EXAMPLES / "sdk/submit.py"], capture_output=True, text=True, timeout=200
    )
    assert result.returncode == 0, result.stderr
    assert "hello SDK, from " in result.stdout
    assert result.stdout.endswith("outputs/hello.txt: hello SDK\n")


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("definition", ["requirements.txt", "conda.yml"])
def test_iris_is_trained_in_its_own_environment(
    retarget: Cli, tmp_path: Path, definition: str
) -> None:
    folder = EXAMPLES / "iris"
    arguments = [
        "--environment",
        definition,
        "--name",
        "iris",
        "train.py",
        "--",
        "--regularization",
        "2",
    ]
    result = retarget("run", *arguments, cwd=folder, timeout=600)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("training on 105 flowers, regularization 2\n")
    retarget("job", "outputs", "iris", "--download", tmp_path)
    metrics = json.loads(retarget("job", "metrics", "iris", "--json").stdout)
    assert [(metric["key"], metric["min"] > 0.9) for metric in metrics] == [("accuracy", True)]
    assert (tmp_path / "outputs/model.pkl").stat().st_size > 500


@pytest.mark.timeout(1200)
def test_the_demo_works_with_a_fresh_home_twice(home: Path, tmp_path: Path) -> None:
    for _ in range(2):
        result = subprocess.run(
            [EXAMPLES / "demo.sh"],
            cwd=tmp_path,
            env=os.environ | {"PATH": f"{PROGRAMS}:{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        assert "accuracy=0.9" in result.stdout
        assert "outputs/model.pkl" in result.stdout
        assert "retarget server stop" in result.stdout
