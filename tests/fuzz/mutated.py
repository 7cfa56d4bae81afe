"""Strategies for untrusted bytes: mutations of valid examples, and noise."""

from collections.abc import Callable

import pytest
from hypothesis import strategies as st

from retarget.core.errors import RetargetError

# Inputs that parsers often mishandle: ends, huge numbers, nesting, other encodings.
_NASTY = [
    *(
        b"",
        b"\0",
        b"\n",
        b"\r\n",
        b"\xff",
        b"\xef\xbb\xbf",
        b"\xed\xa0\x80",
        b"\\ud800",
        b'"',
        b"'",
    ),
    *(b"{", b"}", b"[", b"]", b":", b",", b"=", b"\\", b"/", b"../", b"*", b"#", b"!", b"%", b"&"),
    *(b"null", b"true", b"-1", b"1.5", b"1e999", b"NaN", b"Infinity", b"9" * 30, b"9" * 5000),
    *("²".encode(), "٣".encode(), "\u2028".encode(), b"[" * 3000, b'{"a":' * 3000, b"- " * 500),
]
_PIECES = st.one_of(st.sampled_from(_NASTY), st.binary(max_size=8))


@st.composite
def mutated(draw: st.DrawFn, *examples: bytes) -> bytes:
    """Draw one of these examples with up to four mutations."""
    content = draw(st.sampled_from(examples))
    for _ in range(draw(st.integers(0, 4))):
        begin, end = sorted((draw(_positions(content)), draw(_positions(content))))
        before, piece, after = content[:begin], content[begin:end], content[end:]
        change = draw(st.sampled_from(["insert", "replace", "cut", "double", "end"]))
        if change in ("insert", "replace"):
            piece = draw(_PIECES) + (piece if change == "insert" else b"")
        elif change == "end":
            after = b""
        else:
            piece *= 2 if change == "double" else 0
        content = before + piece + after
    return content


def noise(*examples: bytes) -> st.SearchStrategy[bytes]:
    """Draw mutations of these examples, and sometimes random bytes."""
    return st.one_of(mutated(*examples), mutated(*examples), st.binary(max_size=60))


def noisy_text(*examples: str) -> st.SearchStrategy[str]:
    return noise(*(example.encode() for example in examples)).map(
        lambda content: content.decode("utf-8", "replace")
    )


def read_or_refused(read: Callable[[], object], *errors: type[Exception]) -> None:
    """Fail unless this returns, or raises an expected error with a message."""
    try:
        read()
    except Exception as error:  # noqa: BLE001  any unexpected error fails the test
        is_expected = isinstance(error, errors or RetargetError)
        if not is_expected or not str(error):
            pytest.fail(f"{type(error).__name__}: {error}")


def _positions(content: bytes) -> st.SearchStrategy[int]:
    return st.integers(0, len(content))
