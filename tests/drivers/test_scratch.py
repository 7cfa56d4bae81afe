"""What is brought to machines elsewhere is nobody else's to lay there."""

import os
import stat
import tempfile
from pathlib import Path

import pytest

from retarget.core.errors import TargetUnreachable
from retarget.drivers._scratch import scratch


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"retarget-{os.getuid()}"


def test_it_is_closed_to_others(temporary: Path) -> None:
    temporary.mkdir(mode=0o777)
    assert scratch() == scratch() == temporary
    assert stat.S_IMODE(temporary.stat().st_mode) == 0o700


def test_a_link_is_not_followed(temporary: Path, tmp_path: Path) -> None:
    temporary.symlink_to(tmp_path)
    with pytest.raises(TargetUnreachable, match="is not this server's own"):
        scratch()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_that_of_another_user_is_refused(temporary: Path) -> None:
    temporary.mkdir()
    os.chown(temporary, 12345, 12345)
    with pytest.raises(TargetUnreachable, match="is not this server's own"):
        scratch()
