"""Every example is run as its reader would run it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Cli

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PROGRAMS = str(Path(sys.executable).parent)


def test_hello_says_hello_and_leaves_a_file(retarget: Cli, tmp_path: Path) -> None:
    ran = retarget("run", "--name", "hello", "--set-env", "WHO=you", EXAMPLES / "hello/hello.py")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("hello you, from hello on Python 3.")
    retarget("job", "outputs", "hello", "--download", tmp_path)
    assert (tmp_path / "outputs/hello.txt").read_text() == "hello you\n"


def test_ranks_find_each_other(retarget: Cli) -> None:
    ran = retarget("run", "--processes-per-node", "3", EXAMPLES / "ranks/ranks.py")
    assert ran.returncode == 0, ran.stderr
    assert "[rank 0] the sum is 6\n" in ran.stdout
    for rank in range(3):
        assert f"[rank {rank}] rank {rank} of 3, threads 1\n" in ran.stdout


def test_a_script_submits_through_the_sdk(home: Path) -> None:
    ran = subprocess.run(
        [sys.executable, EXAMPLES / "sdk/submit.py"], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    assert "hello SDK, from " in ran.stdout
    assert ran.stdout.endswith("outputs/hello.txt: hello SDK\n")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("definition", ["requirements.txt", "conda.yml"])
def test_iris_is_trained_in_an_environment_of_its_own(
    retarget: Cli, tmp_path: Path, definition: str
) -> None:
    folder = EXAMPLES / "iris"
    words = ["--env", definition, "--name", "iris", "train.py", "--", "--regularization", "2"]
    ran = retarget("run", *words, cwd=folder, timeout=200)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("training on 105 flowers, regularization 2\n")
    retarget("job", "outputs", "iris", "--download", tmp_path)
    shown = json.loads(retarget("job", "metrics", "iris", "--json").stdout)
    assert [(each["key"], each["min"] > 0.9) for each in shown] == [("accuracy", True)]
    assert (tmp_path / "outputs/model.pkl").stat().st_size > 500


@pytest.mark.timeout(300)
def test_the_demo_works_with_a_fresh_home_twice(home: Path, tmp_path: Path) -> None:
    for _ in range(2):
        ran = subprocess.run(
            [EXAMPLES / "demo.sh"],
            cwd=tmp_path,
            env=os.environ | {"PATH": f"{PROGRAMS}:{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert "accuracy=0.9" in ran.stdout
        assert "outputs/model.pkl" in ran.stdout
        assert "retarget server stop" in ran.stdout
