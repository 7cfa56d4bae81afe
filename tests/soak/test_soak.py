"""`make soak`, in a few seconds."""

from pathlib import Path

import pytest

from tests.soak.__main__ import soak
from tests.soak.load import Size

_SMALL = Size(jobs=15, followers=10, lines=1_000, clients=4, seconds=2)


def test_under_load_every_job_is_correct_and_nothing_is_left_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETARGET_HOME", str(tmp_path / "home"))
    assert soak(tmp_path, _SMALL) == []
