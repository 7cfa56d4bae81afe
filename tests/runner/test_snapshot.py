"""Blobs on a host are kept while they are used."""

import os
import time
from pathlib import Path

from retarget.runner.snapshot import trim

MONTH = 31 * 86400


def _blob(cache: Path, name: str, *, read: float, made: float) -> Path:
    path = cache / name[:2] / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x")
    now = time.time()
    os.utime(path, (now - read, now - made))
    return path


def test_blobs_unused_for_a_month_are_removed(tmp_path: Path) -> None:
    old = _blob(tmp_path, "aa0", read=MONTH, made=MONTH)
    read = _blob(tmp_path, "aa1", read=60, made=MONTH)
    new = _blob(tmp_path, "bb0", read=MONTH, made=60)
    trim(str(tmp_path))
    assert [path.exists() for path in (old, read, new)] == [False, True, True]


def test_trimming_happens_once_a_day(tmp_path: Path) -> None:
    trim(str(tmp_path))
    old = _blob(tmp_path, "aa0", read=MONTH, made=MONTH)
    trim(str(tmp_path))
    assert old.exists()
    yesterday = time.time() - 2 * 86400
    os.utime(tmp_path / "trimmed", (yesterday, yesterday))
    trim(str(tmp_path))
    assert not old.exists()


def test_a_missing_cache_is_not_an_error(tmp_path: Path) -> None:
    trim(str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()
