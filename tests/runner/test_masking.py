"""Masking is the same for any division of a text into parts, and keeps every offset."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retarget.runner.masking import Masker, MaskEverything, mask_values

# few letters, so that values overlap each other and themselves
_values = st.lists(st.text('ab\n*é"\\', min_size=6, max_size=12), min_size=1, max_size=3)
_noise = st.text('ab\n*é"\\ ', max_size=8)


@st.composite
def texts(draw: st.DrawFn) -> tuple[list[str], bytes]:
    """Values, and a text that contains some of them or parts of them."""
    values = draw(_values)
    pieces = draw(st.lists(st.one_of(_noise, st.sampled_from(values)), max_size=8))
    return values, "".join(pieces).encode()


def masked_in_parts(masker: Masker, content: bytes, cuts: list[int], length: int) -> bytes:
    """Mask a text that grows up to each of the cuts, in parts of at most `length` bytes."""
    sent = b""
    for size in [*sorted(cut for cut in cuts if cut < len(content)), len(content)]:
        seen = content[:size]
        final = size == len(content)
        while True:
            part = masker.part(
                lambda at, count, seen=seen: seen[at : at + count], len(sent), length, final=final
            )
            if not part:
                break
            sent += part
    return sent


@given(texts(), st.lists(st.integers(0, 100), max_size=6), st.integers(1, 40))
def test_masking_any_division_equals_masking_the_whole(
    case: tuple[list[str], bytes], cuts: list[int], length: int
) -> None:
    values, content = case
    masker = Masker(values)
    assert masked_in_parts(masker, content, cuts, length) == masker.mask(content)


@given(texts())
def test_no_value_remains_and_the_length_stays(case: tuple[list[str], bytes]) -> None:
    values, content = case
    masked = Masker(values).mask(content)
    assert len(masked) == len(content)
    assert masked.count(b"\n") == content.count(b"\n")
    for value in values:
        for line in value.encode().split(b"\n"):
            plain = line.strip()
            if len(plain) >= 6 and set(plain) != {ord("*")}:
                assert plain not in masked or b"*" in plain


@given(texts(), st.integers(0, 60))
def test_a_part_can_begin_anywhere(case: tuple[list[str], bytes], offset: int) -> None:
    values, content = case
    masker = Masker(values)
    part = masker.part(lambda at, count: content[at : at + count], offset, 1000, final=True)
    assert part == masker.mask(content)[offset:]


@given(texts(), st.booleans())
def test_lines_of_json_stay_json_of_the_same_length(
    case: tuple[list[str], bytes], ascii_only: bool
) -> None:
    values, content = case
    record = {"p": {content.decode(): content.decode()}, "s": 1.5e300}
    line = json.dumps(record, ensure_ascii=ascii_only).encode() + b"\n"
    masker = Masker(values)
    masked = masker.lines(line)
    assert len(masked) == len(line)
    assert json.loads(masked) == mask_values(masker, record)


@pytest.mark.parametrize(
    ("values", "text", "masked"),
    [
        (["hunter2"], b"it is hunter2!", b"it is *******!"),
        (["short"], b"short", b"short"),  # too short to be masked
        (["aaaaaa"], b"xaaaaaaaax", b"x********x"),  # occurrences that overlap
        (["first line\nab\nthird line\n"], b"ab third line", b"ab **********"),
        (
            ["first line\nab\nthird line"],
            b"first line\nab\nthird line",
            b"*" * 10 + b"\n**\n" + b"*" * 10,
        ),
        (["  indented"], b"indented", b"********"),
        (["pässword"], "pässword".encode(), b"*********"),
        ([], b"nothing", b"nothing"),
    ],
)
def test_what_is_masked(values: list[str], text: bytes, masked: bytes) -> None:
    assert Masker(values).mask(text) == masked


def test_only_a_possible_beginning_of_a_secret_waits() -> None:
    masker = Masker(["hunter2"])
    assert masker.undecided(b"an ordinary line\n") == 0
    assert masker.undecided(b"the password is hunt") == 4
    assert masker.undecided(b"hunter2") == 0
    assert masker.undecided(b"hunter2h") == 1


def test_a_damaged_line_is_masked_as_text() -> None:
    assert Masker(["hunter2"]).lines(b'{"p": hunter2\n') == b'{"p": *******\n'


def test_everything_can_be_masked() -> None:
    masker = MaskEverything()
    assert masker.mask(b"a line\nanother\n") == b"******\n*******\n"
    value: Any = {"a": ["b", 1]}
    assert mask_values(masker, value) == {"_": ["*", 1]}
    assert len({masker.path(name) for name in ("a", "b", "c")}) == 3  # no file replaces another


def test_names_are_masked_by_what_a_name_may_contain() -> None:
    masker = Masker(["hunter2"])
    line = b'{"m":{"loss-hunter2" : 1},"a":{"path": "hunter2.json"},"note":"hunter2"}\n'
    masked = b'{"m":{"loss-_______" : 1},"a":{"path": "_______.json"},"note":"*******"}\n'
    assert masker.lines(line) == masked
    body = {"metrics": [{"key": "hunter2", "value": "hunter2"}]}
    assert mask_values(masker, body) == {"metrics": [{"key": "_______", "value": "*******"}]}


def test_a_long_text_is_masked_in_time() -> None:
    masker = Masker(["a" * 100, *(f"line {number} of many" for number in range(200))])
    assert masker.mask(b"a" * (1 << 18)) == b"*" * (1 << 18)
