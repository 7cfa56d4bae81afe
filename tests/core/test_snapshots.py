"""Manifests: canonical bytes, and no hostile entry is accepted."""

import json
import os
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retarget.core.errors import Invalid
from retarget.core.snapshots import Entry, Manifest, decode, digest_bytes, is_digest, stays_inside

_DIGEST = digest_bytes(b"x")
_NAMES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=6
).filter(lambda name: name not in (".", ".."))
_FILES = st.builds(
    Entry,
    path=st.lists(_NAMES, min_size=1, max_size=3).map("/".join),
    size=st.integers(0, 2**60),
    digest=st.binary(max_size=4).map(digest_bytes),
    executable=st.booleans(),
)
_LINKS = st.builds(Entry, path=st.lists(_NAMES, min_size=1, max_size=3).map("/".join), link=_NAMES)


def without_collisions(entries: list[Entry]) -> Manifest:
    kept: dict[str, Entry] = {}
    for entry in entries:
        above = {str(parent) for parent in PurePosixPath(entry.path).parents}
        if not above & kept.keys() and not any(path.startswith(f"{entry.path}/") for path in kept):
            kept.setdefault(entry.path, entry)
    return Manifest(tuple(kept.values()))


_MANIFESTS = st.lists(st.one_of(_FILES, _LINKS), max_size=8).map(without_collisions)


@given(_MANIFESTS)
def test_a_manifest_is_decoded_to_the_same_manifest(manifest: Manifest) -> None:
    decoded = decode(manifest.encode())
    assert set(decoded.entries) == set(manifest.entries)
    assert (decoded.digest, decoded.size) == (manifest.digest, manifest.size)
    assert decoded.digests() == manifest.digests()


@given(_MANIFESTS, st.randoms())
def test_the_order_of_entries_does_not_change_the_digest(manifest: Manifest, rng: Any) -> None:
    shuffled = list(manifest.entries)
    rng.shuffle(shuffled)
    assert Manifest(tuple(shuffled)).encode() == manifest.encode()


@given(_MANIFESTS, st.data())
def test_any_difference_changes_the_digest(manifest: Manifest, data: st.DataObject) -> None:
    other = data.draw(_MANIFESTS)
    same = set(other.entries) == set(manifest.entries)
    assert (other.digest == manifest.digest) == same


def encoded(*rows: object) -> bytes:
    return json.dumps({"version": 1, "entries": rows}).encode()


def file(path: str, **fields: object) -> dict[str, object]:
    return {"path": path, "size": 1, "digest": _DIGEST, **fields}


@pytest.mark.parametrize(
    "path",
    ["", "/", "/etc/passwd", "..", "../x", "a/../../x", "a/..", ".", "./a", "a//b", "a/", "a\0"],
)
def test_a_path_that_could_leave_the_folder_is_refused(path: str) -> None:
    with pytest.raises(Invalid, match="is not a path inside the folder"):
        decode(encoded(file(path)))


@pytest.mark.parametrize(
    ("path", "link"),
    [
        ("a", "/etc"),
        ("a", ".."),
        ("a", "../x"),
        ("a/b", "../../x"),
        ("a", "b/../../c"),
        ("a", "x\0"),
    ],
)
def test_a_link_that_leaves_the_folder_is_refused(path: str, link: str) -> None:
    with pytest.raises(Invalid, match="leaves the folder"):
        decode(encoded({"path": path, "link": link}))


@pytest.mark.parametrize(
    "rows",
    [
        [file("a"), file("a")],
        [file("a"), {"path": "a", "link": "b"}],
        [file("a"), file("a/b")],
        [file("a/b/c"), file("a/b"), file("d")],
        [{"path": "a", "link": "b"}, file("a/c")],  # written through the link
    ],
)
def test_entries_that_would_overwrite_each_other_are_refused(rows: list[object]) -> None:
    with pytest.raises(Invalid, match=r"appears twice|is both a file and a folder"):
        decode(encoded(*rows))


@pytest.mark.parametrize(
    "row",
    [
        file("a", digest=""),
        file("a", digest="../../etc/passwd"),
        file("a", digest=_DIGEST.upper()),
        file("a", digest=_DIGEST + "\n"),
        file("a", size=-1),
        file("a", size=1.5),
        file("a", size=True),
        file("a", size="1"),
        file("a", digest=1),
        file("a", link="b"),
        {"path": 1},
        {"path": ["a"], "digest": _DIGEST},
        {},
        [],
        None,
        "a",
    ],
)
def test_a_malformed_entry_is_refused(row: object) -> None:
    with pytest.raises(Invalid, match=r"^snapshot: "):
        decode(encoded(row))


@pytest.mark.parametrize("path", ["\ud800", "a/\udcff"])
def test_a_name_that_no_file_system_accepts_is_refused(path: str) -> None:
    with pytest.raises(Invalid, match=r"^snapshot: "):
        decode(encoded(file(path)))
    with pytest.raises(Invalid, match=r"^snapshot: "):
        decode(encoded({"path": "a", "link": path}))


@pytest.mark.parametrize("version", [None, 0, 2, "1"])
def test_a_manifest_of_another_version_is_refused(version: object) -> None:
    with pytest.raises(Invalid, match="version"):
        decode(json.dumps({"version": version, "entries": []}).encode())


_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["path", "size", "digest", "link", "entries", "version", "executable"]),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)


@given(st.one_of(st.binary(max_size=40), _JSON.map(lambda value: json.dumps(value).encode())))
def test_any_other_content_is_refused_without_a_crash(content: bytes) -> None:
    try:
        decode(content)
    except Invalid as error:
        assert error.field == "snapshot"  # noqa: PT017


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b"\xff", b"{}", b"null", b'{"entries":{"a":1}}']
)
def test_a_malformed_manifest_is_refused(content: bytes) -> None:
    with pytest.raises(Invalid, match=r"^snapshot: "):
        decode(content)


@given(
    st.lists(st.sampled_from(["a", "b", ".."]), min_size=1, max_size=4).filter(
        lambda p: ".." not in p
    ),
    st.lists(st.sampled_from(["a", "..", ".", ""]), min_size=1, max_size=6).map("/".join),
)
def test_a_link_stays_inside_exactly_if_none_of_its_steps_leaves(
    path: list[str], link: str
) -> None:
    at, inside = ["/", "root", *path[:-1]], not link.startswith("/")
    for step in link.split("/"):
        at = os.path.normpath(os.path.join(*at, step)).split("/")
        at = ["/", *at[1:]]
        inside = inside and at[1:2] == ["root"]
    assert stays_inside("/".join(path), link) == inside


def test_a_digest_is_64_lower_case_hex_digits() -> None:
    assert is_digest(_DIGEST)
    assert not is_digest(_DIGEST[:-1])
    assert not is_digest(_DIGEST + "\n")
    assert not is_digest(_DIGEST.upper())
