"""Packing the runner into one file."""

import tempfile
from pathlib import Path

import pytest

from retarget.runner.package import build_zipapp


def test_packing_leaves_nothing_in_the_temp_folder_even_if_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert build_zipapp(tmp_path / "runners").exists()
