"""Only this user can put files into the folder whose files are sent to hosts."""

import os
import stat
import tempfile
from pathlib import Path

import pytest

from retarget.core.errors import TargetUnreachable
from retarget.drivers._tmpdir import user_tmpdir


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"retarget-{os.getuid()}"


def test_other_users_have_no_access(folder: Path) -> None:
    folder.mkdir(mode=0o777)
    assert user_tmpdir() == user_tmpdir() == folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    folder.symlink_to(tmp_path)
    with pytest.raises(TargetUnreachable, match="belongs to another user"):
        user_tmpdir()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(folder: Path) -> None:
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    with pytest.raises(TargetUnreachable, match="belongs to another user"):
        user_tmpdir()
