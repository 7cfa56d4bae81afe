"""Snapshots that are here as a whole, and collections that come in between."""

import os
from collections.abc import Callable, Iterable
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
    """Have a snapshot of these files sent, long ago; return its digest and theirs."""
    files = [blobs.put(content) for content in contents]
    entries = [Entry(f"f{number}", 1, digest) for number, digest in enumerate(files)]
    digest = blobs.put(Manifest(tuple(entries)).encode())
    for each in (digest, *files):
        os.utime(blobs.path(each), (10, 10))
    return digest, files


def never() -> list[str]:
    raise AssertionError("it was looked at file by file")


def test_one_that_was_seen_whole_is_not_looked_at_again(snapshots: Snapshots, blobs: Blobs) -> None:
    digest, files = send(blobs, b"a", b"b")
    assert not snapshots.is_whole(digest, now=20)
    assert snapshots.missing(digest, lambda: files, now=20) == []
    assert snapshots.is_whole(digest, now=30)
    assert snapshots.missing(digest, never, now=30) == []
    assert not snapshots.is_whole("../../etc/passwd", now=30)


def test_one_that_lacks_a_file_is_not_whole(snapshots: Snapshots, blobs: Blobs) -> None:
    digest, files = send(blobs, b"a")
    gone = "f" * 64
    assert snapshots.missing(digest, lambda: [*files, gone], now=20) == [gone]
    assert not snapshots.is_whole(digest, now=20)


def test_a_collection_spares_what_was_asked_for(snapshots: Snapshots, blobs: Blobs) -> None:
    digest, files = send(blobs, b"a", b"b")
    snapshots.missing(digest, lambda: files, now=20)
    for each in (digest, *files):
        os.utime(blobs.path(each), (10, 10))
    assert snapshots.is_whole(digest, now=100)
    assert snapshots.collect(set(), before=50) == (0, 0)
    assert snapshots.is_whole(digest, now=100)
    assert snapshots.collect(set(), before=200)[0] == 3
    assert not snapshots.is_whole(digest, now=300)
    assert blobs.missing([digest, *files], now=300) == [digest, *files]


def test_what_a_job_needs_keeps_its_mark(snapshots: Snapshots, blobs: Blobs) -> None:
    digest, files = send(blobs, b"a")
    snapshots.missing(digest, lambda: files, now=20)
    assert snapshots.collect({digest, *files}, before=500) == (0, 0)
    assert snapshots.is_whole(digest, now=600)


class Racing(Blobs):
    """Blobs with whom something else happens right after they were looked at, or collected."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.after_looking: Callable[[], object] = list
        self.after_collecting: Callable[[], object] = list

    def missing(self, digests: Iterable[str], *, now: float) -> list[str]:
        found = super().missing(digests, now=now)
        self.after_looking()
        return found

    def collect(self, wanted: set[str], *, before: float) -> tuple[int, int]:
        collected = super().collect(wanted, before=before)
        self.after_collecting()
        return collected


def test_no_mark_is_set_when_a_collection_came_in_between(tmp_path: Path) -> None:
    """What was there when it was looked at may be gone when the mark is set."""
    blobs = Racing(tmp_path / "blobs")
    snapshots = Snapshots(tmp_path / "snapshots", blobs)
    digest, files = send(blobs, b"a", b"b")
    blobs.after_looking = lambda: snapshots.collect(set(), before=1000)
    assert snapshots.missing(digest, lambda: files, now=20) == []
    assert not snapshots.is_whole(digest, now=20)


def test_no_mark_is_set_while_a_collection_is_under_way(tmp_path: Path) -> None:
    blobs = Racing(tmp_path / "blobs")
    snapshots = Snapshots(tmp_path / "snapshots", blobs)
    digest, files = send(blobs, b"a", b"b")
    seen: list[list[str]] = []
    blobs.after_collecting = lambda: seen.append(snapshots.missing(digest, lambda: files, now=20))
    assert snapshots.collect(set(), before=5) == (0, 0)
    assert seen == [[]]
    assert not snapshots.is_whole(digest, now=20)
