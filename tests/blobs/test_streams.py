"""Logs by offset: sent again, overlapping, too early or cut off, the bytes are right."""

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
def test_what_is_there_is_always_a_beginning_of_what_was_sent(
    content: bytes, pieces: list[tuple[int, int]]
) -> None:
    with fresh() as streams:
        size = 0
        for offset, length in pieces:
            piece = content[offset : offset + length]
            told = streams.append(_KEY, "output", offset, piece)
            fits = offset <= size < offset + len(piece)
            size = offset + len(piece) if fits else size
            assert told == size == streams.size(_KEY, "output")
            assert streams.read(_KEY, "output", 0, 1000) == content[:size]


@given(_CONTENTS, _PIECES, st.integers(1, 30))
def test_a_sender_that_goes_on_from_what_it_is_told_gets_all_of_it_there(
    content: bytes, before: list[tuple[int, int]], most: int
) -> None:
    with fresh() as streams:
        for offset, length in before:  # by a runner that was killed, or a request sent twice
            streams.append(_KEY, "output", offset, content[offset : offset + length])
        size = streams.append(_KEY, "output", 0, b"")
        while size < len(content):
            later = streams.append(_KEY, "output", size, content[size : size + most])
            assert later > size
            size = later
        assert streams.read(_KEY, "output", 0, 1000) == content


@given(_CONTENTS, st.integers(0, 2**60), st.integers(0, 100))
def test_a_reader_gets_the_part_it_asks_for(content: bytes, offset: int, most: int) -> None:
    with fresh() as streams:
        streams.append(_KEY, "output", 0, content)
        assert streams.read(_KEY, "output", offset, most) == content[offset : offset + most]
        assert streams.read(_KEY, "prepare", offset, most) == b""


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


def test_bytes_that_differ_from_those_here_do_not_replace_them(tmp_path: Path) -> None:
    streams = Streams(tmp_path)
    streams.append(_KEY, "output", 0, b"abc")
    assert streams.append(_KEY, "output", 0, b"XYZd") == 4
    assert streams.read(_KEY, "output", 0, 10) == b"abcd"


@pytest.mark.parametrize("key", ["..", "", "a/b", "a\0"])
def test_a_key_that_is_none_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(Invalid, match="is not the name of a stream"):
        Streams(tmp_path).append(key, "output", 0, b"x")
