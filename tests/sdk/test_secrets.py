"""`workspace.secrets` on a real server."""

from typing import Any

import pytest

from retarget import Invalid, JobState, NotFound, Workspace

VALUE = "correct-horse"


@pytest.fixture
def workspace(server: None) -> Workspace:
    return Workspace()


def test_secrets_are_set_used_and_deleted(workspace: Workspace) -> None:
    secrets = workspace.secrets
    stored = secrets.set("HF_TOKEN", VALUE)
    assert [secret.name for secret in secrets] == ["HF_TOKEN"]
    assert repr(stored) == "<Secret HF_TOKEN>"
    assert "HF_TOKEN" in secrets
    job = workspace.submit(["sh", "-c", "echo $HF_TOKEN"], code=".", secrets=["HF_TOKEN"])
    assert job.wait() is JobState.SUCCEEDED
    assert "".join(job.logs()) == "*" * len(VALUE) + "\n"
    assert job.to_json()["secrets"] == ["HF_TOKEN"]
    secrets.delete("HF_TOKEN")
    assert secrets.list() == []
    with pytest.raises(NotFound, match="no secret named 'HF_TOKEN'"):
        secrets.delete("HF_TOKEN")
    with pytest.raises(Invalid, match="retarget secret set HF_TOKEN"):
        job.rerun()


def test_wrong_arguments_are_named_and_values_are_not_repeated(workspace: Workspace) -> None:
    secrets: Any = workspace.secrets
    for name, value in [("A", "short"), ("A", 123456789), ("A", b"bytes-value"), ("a b", VALUE)]:
        with pytest.raises(Invalid) as raised:
            secrets.set(name, value)
        assert str(value) not in str(raised.value)
    with pytest.raises(Invalid, match="secrets: 'HF_TOKEN' is not a list of names"):
        workspace.submit(["true"], secrets="HF_TOKEN")
    assert secrets.list() == []
