"""A container target builds a Dockerfile once, with its engine."""

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
    options = ("box", "--kind", "container", "--engine", engine.url, "--image", IMAGE)
    created = retarget("target", "create", *options)
    assert created.returncode == 0, created.stderr
    yield retarget, engine
    detached = retarget("target", "detach", "box", "--force")
    assert detached.returncode == 0, detached.stderr


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


def test_an_image_is_built_with_its_steps_in_the_log_and_reused(
    box: tuple[Cli, Engine], folder: Path
) -> None:
    retarget, engine = box
    before = _images(engine)
    command = ("run", "-t", "box", "--dockerfile", "Dockerfile", "train.py")
    first = retarget(command[0], "--name", "first", *command[1:], cwd=folder, timeout=200)
    assert first.returncode == 0, first.stderr
    assert first.stdout.endswith("same as ever False\n")
    assert "one step" in retarget("job", "logs", "first", "--stream", "prepare").stdout
    second = retarget(*command, cwd=folder, timeout=200)
    assert (second.returncode, second.stdout) == (0, "same as ever False\n")
    assert len(_images(engine) - before) == 1


def test_a_failed_build_is_reported_with_its_reason(box: tuple[Cli, Engine], folder: Path) -> None:
    retarget, _ = box
    (folder / "Dockerfile").write_text(f"FROM {IMAGE}\nRUN echo why; exit 7\n")
    options = ("-t", "box", "--name", "bad", "--dockerfile", "Dockerfile", "train.py")
    ran = retarget("run", *options, cwd=folder)
    assert ran.returncode != 0
    assert "Dockerfile cannot be built: " in ran.stderr
    assert "7" in ran.stderr.partition("cannot be built")[2]
    logs = retarget("job", "logs", "bad")
    assert "RUN echo why; exit 7" in logs.stdout
    assert "\nwhy\n" in logs.stdout


def test_a_built_image_is_listed_and_deleted(box: tuple[Cli, Engine], folder: Path) -> None:
    retarget, engine = box
    (folder / "Dockerfile").write_text(f"FROM {IMAGE}\nCOPY . /built\nENV listed=1\n")
    command = ("run", "-t", "box", "--dockerfile", "Dockerfile", "train.py")
    ran = retarget(*command, cwd=folder, timeout=200)
    assert ran.returncode == 0, ran.stderr
    environments = json.loads(retarget("env", "list", "--json").stdout)
    (environment,) = [
        environment
        for environment in environments
        if [built["target"] for built in environment["built"]] == ["box"]
    ]
    # the container is removed a little after the job ends
    wait_until(
        lambda: retarget("env", "delete", environment["digest"]).returncode == 0, "it is deleted"
    )
    assert environment["digest"] not in engine.cli("images", "--format", "{{.Repository}}")


def _images(engine: Engine) -> set[str]:
    """Name the built images; other tests may have built some, too."""
    names = engine.cli("images", "--format", "{{.Repository}}").split()
    return {name for name in names if "retarget-" in name}
