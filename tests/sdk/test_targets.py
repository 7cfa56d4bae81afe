"""`workspace.targets` on a real server."""

from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from retarget import Conflict, Invalid, JobState, NotFound, TargetUnreachable, Workspace
from tests.plugin import install_vault


@pytest.fixture
def workspace(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("PYTHONPATH", install_vault(tmp_path / "plugin"))
    return Workspace()


def test_a_target_is_attached_updated_and_detached(workspace: Workspace, tmp_path: Path) -> None:
    targets = workspace.targets
    target = targets.attach("desk", kind="local", root=tmp_path / "desk", cpus=1, tags={"a": "b"})
    assert (target.name, target.kind, target.tags) == ("desk", "local", {"a": "b"})
    assert target.config["root"] == str(tmp_path / "desk")
    assert target.inventory is not None
    assert target.checked_at is not None
    assert target.checked_at.tzinfo is UTC
    assert targets["desk"].config == target.config
    assert targets.update("desk", cpus=2).config["cpus"] == 2
    assert targets.update("desk", tags={}).tags == {}
    job = workspace.submit(["sleep", "60"], target="desk")
    with pytest.raises(Conflict, match=f"unfinished job: {job.name}"):
        targets.detach("desk")
    assert targets.detach("desk", force=True) == [job.name]
    assert job.wait(timeout=200) is JobState.FAILED
    assert [target.name for target in targets] == ["local"]
    with pytest.raises(NotFound, match="no target named 'desk'"):
        targets.detach("desk")


def test_create_is_an_alias_of_attach(workspace: Workspace) -> None:
    target = workspace.targets.create("safe", kind="vault", address="a", password="open sesame")
    assert target.config["password"] == "********"
    assert (
        workspace.targets.update("safe", password="********", depth=2).inventory == target.inventory
    )


def test_wrong_arguments_are_named(workspace: Workspace) -> None:
    targets: Any = workspace.targets
    with pytest.raises(TargetUnreachable, match="is it switched on"):
        targets.attach("x", kind="vault", address="nowhere")
    with pytest.raises(Invalid, match=r"config.depth: must be a valid integer") as raised:
        targets.attach("x", kind="vault", address="a", depth="deep")
    assert raised.value.field == "config.depth"
    for name, call in {
        "name: 3 is not a string": lambda: targets.attach(3, kind="vault"),
        "kind: None is not a string": lambda: targets.attach("x", kind=None),
        "tags: ": lambda: targets.attach("x", kind="vault", tags=["a"]),
        "cannot be sent as JSON": lambda: targets.attach("x", kind="vault", address=object()),
        "name of a target": lambda: targets.detach(None),
        "unknown kind 'slrm'": lambda: targets.attach("x", kind="slrm"),
    }.items():
        with pytest.raises(Invalid, match=name):
            call()
    assert [target.name for target in targets] == ["local"]
