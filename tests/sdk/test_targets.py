"""`workspace.targets` on a real server."""

from pathlib import Path
from typing import Any

import pytest

from retarget import Conflict, Invalid, JobState, NotFound, TargetUnreachable, Workspace
from tests.plugin import install_vault


@pytest.fixture
def workspace(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("PYTHONPATH", install_vault(tmp_path / "plugin"))
    return Workspace()


def test_a_target_comes_changes_and_goes(workspace: Workspace, tmp_path: Path) -> None:
    targets = workspace.targets
    made = targets.attach("desk", kind="local", root=tmp_path / "desk", cpus=1, tags={"a": "b"})
    assert (made.name, made.kind, made.tags) == ("desk", "local", {"a": "b"})
    assert made.config["root"] == str(tmp_path / "desk")
    assert made.facts is not None
    assert targets["desk"].config == made.config
    assert targets.update("desk", cpus=2).config["cpus"] == 2
    assert targets.update("desk", tags={}).tags == {}
    job = workspace.submit(["sleep", "60"], target="desk")
    with pytest.raises(Conflict, match=f"did not end yet: {job.name}"):
        targets.detach("desk")
    assert targets.detach("desk", force=True) == [job.name]
    assert job.wait(timeout=10) is JobState.FAILED
    assert [target.name for target in targets] == ["local"]
    with pytest.raises(NotFound, match="no target named 'desk'"):
        targets.detach("desk")


def test_creating_is_another_word_for_attaching(workspace: Workspace) -> None:
    made = workspace.targets.create("safe", kind="vault", address="a", password="open sesame")
    assert made.config["password"] == "********"
    assert workspace.targets.update("safe", password="********", depth=2).facts == made.facts


def test_what_is_wrong_is_told(workspace: Workspace) -> None:
    targets: Any = workspace.targets
    with pytest.raises(TargetUnreachable, match="is it switched on"):
        targets.attach("x", kind="vault", address="nowhere")
    with pytest.raises(Invalid, match=r"config.depth: must be a valid integer") as raised:
        targets.attach("x", kind="vault", address="a", depth="deep")
    assert raised.value.field == "config.depth"
    for name, call in {
        "name: 3 is not a text": lambda: targets.attach(3, kind="vault"),
        "kind: None is not a text": lambda: targets.attach("x", kind=None),
        "tags: ": lambda: targets.attach("x", kind="vault", tags=["a"]),
        "cannot be sent": lambda: targets.attach("x", kind="vault", address=object()),
        "name of a target": lambda: targets.detach(None),
        "unknown kind 'slrm'": lambda: targets.attach("x", kind="slrm"),
    }.items():
        with pytest.raises(Invalid, match=name):
            call()
    assert [target.name for target in targets] == ["local"]
