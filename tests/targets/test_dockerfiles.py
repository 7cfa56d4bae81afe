"""A Dockerfile on a target of containers: built by its engine, once."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.testbeds.engines import IMAGE, Engine
from tests.testbeds.namespaces import wait_until

pytestmark = pytest.mark.targets

SCRIPT = """\
import os
print(open("/built/word").read(), os.path.exists("/built/secret"))
"""


@pytest.fixture(params=["docker", "podman"])
def box(retarget: Cli, request: pytest.FixtureRequest) -> Iterator[tuple[Cli, Engine]]:
    engine: Engine = request.getfixturevalue(request.param)
    words = ("box", "--kind", "container", "--engine", engine.url, "--image", IMAGE)
    made = retarget("target", "create", *words)
    assert made.returncode == 0, made.stderr
    yield retarget, engine
    gone = retarget("target", "detach", "box", "--force")
    assert gone.returncode == 0, gone.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    code = tmp_path / "code"
    code.mkdir()
    (code / "word").write_text("same as ever")
    (code / "secret").write_text("not for the image")
    (code / ".dockerignore").write_text("secret\n")
    (code / "Dockerfile").write_text(f"FROM {IMAGE}\nCOPY . /built\nRUN echo one step\n")
    (code / "train.py").write_text(SCRIPT)
    return code


def test_one_is_built_with_its_steps_in_the_log_and_used_again(
    box: tuple[Cli, Engine], folder: Path
) -> None:
    retarget, engine = box
    before = _images(engine)
    words = ("run", "-t", "box", "--dockerfile", "Dockerfile", "train.py")
    first = retarget(*words, cwd=folder, timeout=100)
    assert first.returncode == 0, first.stderr
    assert first.stdout.endswith("same as ever False\n")
    assert "one step" in first.stdout + first.stderr
    second = retarget(*words, cwd=folder, timeout=100)
    assert (second.returncode, second.stdout) == (0, "same as ever False\n")
    assert len(_images(engine) - before) == 1


def test_one_that_cannot_be_built_is_named_with_the_reason(
    box: tuple[Cli, Engine], folder: Path
) -> None:
    retarget, _ = box
    (folder / "Dockerfile").write_text(f"FROM {IMAGE}\nRUN echo why; exit 7\n")
    words = ("-t", "box", "--name", "bad", "--dockerfile", "Dockerfile", "train.py")
    ran = retarget("run", *words, cwd=folder)
    assert ran.returncode != 0
    assert "Dockerfile cannot be built: " in ran.stderr
    assert "7" in ran.stderr.partition("cannot be built")[2]
    said = retarget("job", "logs", "bad")
    assert "RUN echo why; exit 7" in said.stdout
    assert "\nwhy\n" in said.stdout


def test_one_that_was_built_is_listed_and_deleted(box: tuple[Cli, Engine], folder: Path) -> None:
    retarget, engine = box
    (folder / "Dockerfile").write_text(f"FROM {IMAGE}\nCOPY . /built\nENV listed=1\n")
    words = ("run", "-t", "box", "--dockerfile", "Dockerfile", "train.py")
    ran = retarget(*words, cwd=folder, timeout=100)
    assert ran.returncode == 0, ran.stderr
    known = json.loads(retarget("env", "list", "--json").stdout)
    (mine,) = [each for each in known if [built["target"] for built in each["built"]] == ["box"]]
    # its container goes a little after its job
    wait_until(lambda: retarget("env", "delete", mine["digest"]).returncode == 0, "it is deleted")
    assert mine["digest"] not in engine.cli("images", "--format", "{{.Repository}}")


def _images(engine: Engine) -> set[str]:
    """Name what was built; other tests have built there, too."""
    names = engine.cli("images", "--format", "{{.Repository}}").split()
    return {name for name in names if "retarget-" in name}
