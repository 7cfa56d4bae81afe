"""Streams by offset: repeated, overlapping, early or cut writes keep the bytes correct."""

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retarget.blobs.streams import Streams
from retarget.core.errors import Invalid

_KEY = "0" * 32
_CONTENTS = st.binary(min_size=1, max_size=80)
_PIECES = st.lists(st.tuples(st.integers(0, 90), st.integers(0, 30)), max_size=20)


@contextmanager
def fresh() -> Generator[Streams]:
    with tempfile.TemporaryDirectory() as folder:
        yield Streams(Path(folder))


@given(_CONTENTS, _PIECES)
def test_a_stream_is_always_a_prefix_of_what_was_sent(
    content: bytes, pieces: list[tuple[int, int]]
) -> None:
    with fresh() as streams:
        size = 0
        for offset, length in pieces:
            piece = content[offset : offset + length]
            reported = streams.append(_KEY, "output", offset, piece)
            fits = offset <= size < offset + len(piece)
            size = offset + len(piece) if fits else size
            assert reported == size == streams.size(_KEY, "output")
            assert streams.read(_KEY, "output", 0, 1000) == content[:size]


@given(_CONTENTS, _PIECES, st.integers(1, 30))
def test_a_sender_that_continues_at_the_reported_size_sends_everything(
    content: bytes, before: list[tuple[int, int]], max_bytes: int
) -> None:
    with fresh() as streams:
        for offset, length in before:  # by a killed runner, or a request sent twice
            streams.append(_KEY, "output", offset, content[offset : offset + length])
        size = streams.append(_KEY, "output", 0, b"")
        while size < len(content):
            later = streams.append(_KEY, "output", size, content[size : size + max_bytes])
            assert later > size
            size = later
        assert streams.read(_KEY, "output", 0, 1000) == content


@given(_CONTENTS, st.integers(0, 2**60), st.integers(0, 100))
def test_a_reader_gets_the_part_it_asks_for(content: bytes, offset: int, max_bytes: int) -> None:
    with fresh() as streams:
        streams.append(_KEY, "output", 0, content)
        assert (
            streams.read(_KEY, "output", offset, max_bytes) == content[offset : offset + max_bytes]
        )
        assert streams.read(_KEY, "prepare", offset, max_bytes) == b""


@given(st.text(max_size=300), st.sampled_from([_KEY, "..", "", "a/b", "é"]))
def test_a_name_is_a_file_of_its_attempt_or_refused(name: str, key: str) -> None:
    with fresh() as streams:
        try:
            path = streams.path(key, name)
        except Invalid:
            return
        assert path.parent == streams.root / key
        assert path.resolve().is_relative_to(streams.root.resolve())
        streams.append(key, name, 0, b"x")
        assert streams.names(key) == [name]


def test_stored_bytes_are_never_replaced(tmp_path: Path) -> None:
    streams = Streams(tmp_path)
    streams.append(_KEY, "output", 0, b"abc")
    assert streams.append(_KEY, "output", 0, b"XYZd") == 4
    assert streams.read(_KEY, "output", 0, 10) == b"abcd"


@pytest.mark.parametrize("key", ["..", "", "a/b", "a\0"])
def test_an_invalid_key_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(Invalid, match="is not a stream name"):
        Streams(tmp_path).append(key, "output", 0, b"x")


_TIMES = st.lists(st.tuples(st.integers(1, 90), st.floats(0, 2e9)), max_size=5)


@given(_CONTENTS, st.lists(st.tuples(st.integers(0, 90), _TIMES), max_size=10))
def test_sizes_have_times_in_order_each_once(
    content: bytes, parts: list[tuple[int, list[tuple[int, float]]]]
) -> None:
    with fresh() as streams:
        for offset, marks in parts:
            streams.append(_KEY, "output", offset, content[offset : offset + 20], marks)
        sizes = [size for size, _ in streams.marks(_KEY, "output")]
        assert sizes == sorted(set(sizes))
        assert streams.names(_KEY) in ([], ["output"])
        streams.remove(_KEY)
        assert not list(streams.root.iterdir())
