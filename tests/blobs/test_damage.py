"""Blobs that lost bytes, as after a power cut: they are found, moved away and sent again."""

import os
from pathlib import Path

import pytest

from retarget.blobs import disk
from retarget.blobs.folder import Blobs
from retarget.blobs.scrub import Scrub
from retarget.blobs.snapshots import Snapshots
from retarget.core.snapshots import Entry, Manifest, digest_bytes


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "blobs")


@pytest.mark.parametrize("content", [b"", b"cut", b"content and more"])
def test_a_blob_of_the_wrong_size_is_missing(blobs: Blobs, content: bytes) -> None:
    digest = blobs.put(b"content")
    blobs.path(digest).write_bytes(content)
    assert blobs.missing([digest], now=1, sizes={digest: 7}) == [digest]
    assert (blobs.root / "damaged" / digest).read_bytes() == content
    assert blobs.put(b"content") == digest
    assert blobs.missing([digest], now=1, sizes={digest: 7}) == []


def test_a_client_that_is_wrong_about_a_size_damages_nothing(blobs: Blobs) -> None:
    digest = blobs.put(b"content")
    assert blobs.missing([digest], now=1, sizes={digest: 3}) == []
    assert blobs.path(digest).read_bytes() == b"content"


def test_a_scrub_finds_damage_that_keeps_the_size(tmp_path: Path, blobs: Blobs) -> None:
    snapshots = Snapshots(tmp_path / "snapshots", blobs)
    digest = blobs.put(b"print(1)")
    manifest = Manifest((Entry("a.py", 8, digest),)).encode()
    snapshot = blobs.put(manifest)
    assert snapshots.missing(snapshot, lambda: {digest: 8}, now=1) == []
    scrub = Scrub(blobs, snapshots)
    assert scrub.round() == []
    assert snapshots.is_complete(snapshot, now=1)
    blobs.path(digest).write_bytes(b"\0" * 8)
    assert scrub.round() == [digest]
    assert not snapshots.is_complete(snapshot, now=1), "so that the client asks for every file"
    assert snapshots.missing(snapshot, lambda: {digest: 8}, now=1) == [digest]


def test_what_was_set_aside_is_pruned_later(blobs: Blobs) -> None:
    digest = blobs.put(b"content")
    blobs.path(digest).write_bytes(b"")
    assert not blobs.verify(digest)
    os.utime(blobs.root / "damaged" / digest, (10, 10))
    assert blobs.prune(set(), before=20) == (1, 0)


@pytest.mark.parametrize("count", [1, 3, 40])
def test_blobs_are_synced_before_they_get_their_names(
    blobs: Blobs, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    rename = os.rename

    def sync(_: object) -> None:
        events.append("sync")

    def record(part: str, path: str) -> None:
        events.append("name")
        rename(part, path)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(disk, "sync_file_system", sync)
    monkeypatch.setattr(os, "rename", record)
    batch = blobs.batch()
    digests = [batch.add(b"%d" % number) for number in range(count)]
    assert events == []
    batch.commit()
    assert events[0] == events[-1] == "sync"
    assert events.index("name") > 0
    assert events.count("sync") <= 2 * disk._FEW_FILES + len({d[:2] for d in digests})  # pyright: ignore[reportPrivateUsage]
    assert blobs.missing(digests, now=1) == []


def test_a_batch_that_is_discarded_leaves_nothing(blobs: Blobs) -> None:
    batch = blobs.batch()
    batch.add(b"content")
    batch.discard()
    assert list(blobs.root.iterdir()) == []
    assert blobs.missing([digest_bytes(b"content")], now=1) == [digest_bytes(b"content")]
