"""Complete snapshots, and pruning at the same time."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

from retarget.blobs.folder import Blobs
from retarget.blobs.snapshots import Snapshots
from retarget.core.snapshots import Entry, Manifest


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "blobs")


@pytest.fixture
def snapshots(tmp_path: Path, blobs: Blobs) -> Snapshots:
    return Snapshots(tmp_path / "snapshots", blobs)


def send(blobs: Blobs, *contents: bytes) -> tuple[str, list[str]]:
    """Store a snapshot of these files with old times. Return its digest and theirs."""
    files = [blobs.put(content) for content in contents]
    entries = [Entry(f"f{number}", 1, digest) for number, digest in enumerate(files)]
    digest = blobs.put(Manifest(tuple(entries)).encode())
    for stored in (digest, *files):
        os.utime(blobs.path(stored), (10, 10))
    return digest, files


def fail() -> dict[str, int]:
    raise AssertionError("the files were checked one by one")


def test_a_complete_snapshot_is_not_checked_again(snapshots: Snapshots, blobs: Blobs) -> None:
    digest, files = send(blobs, b"a", b"b")
    assert not snapshots.is_complete(digest, now=20)
    assert snapshots.missing(digest, lambda: dict.fromkeys(files, 1), now=20) == []
    assert snapshots.is_complete(digest, now=30)
    assert snapshots.missing(digest, fail, now=30) == []
    assert not snapshots.is_complete("../../etc/passwd", now=30)


def test_a_snapshot_without_one_file_is_not_complete(snapshots: Snapshots, blobs: Blobs) -> None:
    digest, files = send(blobs, b"a")
    absent = "f" * 64
    assert snapshots.missing(digest, lambda: dict.fromkeys([*files, absent], 1), now=20) == [absent]
    assert not snapshots.is_complete(digest, now=20)


def test_prune_keeps_what_was_requested_recently(snapshots: Snapshots, blobs: Blobs) -> None:
    digest, files = send(blobs, b"a", b"b")
    snapshots.missing(digest, lambda: dict.fromkeys(files, 1), now=20)
    for stored in (digest, *files):
        os.utime(blobs.path(stored), (10, 10))
    assert snapshots.is_complete(digest, now=100)
    assert snapshots.prune(set(), before=50) == (0, 0)
    assert snapshots.is_complete(digest, now=100)
    assert snapshots.prune(set(), before=200)[0] == 3
    assert not snapshots.is_complete(digest, now=300)
    assert blobs.missing([digest, *files], now=300) == [digest, *files]


def test_a_referenced_snapshot_keeps_its_mark(snapshots: Snapshots, blobs: Blobs) -> None:
    digest, files = send(blobs, b"a")
    snapshots.missing(digest, lambda: dict.fromkeys(files, 1), now=20)
    assert snapshots.prune({digest, *files}, before=500) == (0, 0)
    assert snapshots.is_complete(digest, now=600)


class Racing(Blobs):
    """Blobs that call a function right after they were checked or pruned."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.after_checking: Callable[[], object] = list
        self.after_pruning: Callable[[], object] = list

    def missing(
        self, digests: Iterable[str], *, now: float, sizes: Mapping[str, int] | None = None
    ) -> list[str]:
        missing = super().missing(digests, now=now, sizes=sizes)
        self.after_checking()
        return missing

    def prune(self, referenced: set[str], *, before: float) -> tuple[int, int]:
        pruned = super().prune(referenced, before=before)
        self.after_pruning()
        return pruned


def test_no_mark_is_set_if_a_prune_came_in_between(tmp_path: Path) -> None:
    """A file that existed during the check may be gone when the mark is set."""
    blobs = Racing(tmp_path / "blobs")
    snapshots = Snapshots(tmp_path / "snapshots", blobs)
    digest, files = send(blobs, b"a", b"b")
    blobs.after_checking = lambda: snapshots.prune(set(), before=1000)
    assert snapshots.missing(digest, lambda: dict.fromkeys(files, 1), now=20) == []
    assert not snapshots.is_complete(digest, now=20)


def test_no_mark_is_set_during_a_prune(tmp_path: Path) -> None:
    blobs = Racing(tmp_path / "blobs")
    snapshots = Snapshots(tmp_path / "snapshots", blobs)
    digest, files = send(blobs, b"a", b"b")
    results: list[list[str]] = []
    blobs.after_pruning = lambda: results.append(
        snapshots.missing(digest, lambda: dict.fromkeys(files, 1), now=20)
    )
    assert snapshots.prune(set(), before=5) == (0, 0)
    assert results == [[]]
    assert not snapshots.is_complete(digest, now=20)
