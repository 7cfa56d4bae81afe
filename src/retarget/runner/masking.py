"""Masks secrets in text: every byte of a secret becomes `*`, so lengths and offsets stay true.

In names it becomes `_`, because not every name may contain `*`.

A byte is masked if it is part of any occurrence of a value, or of a line of a value. So whether a
byte is masked depends only on the bytes near it, and text may be masked in parts of any size.
"""

from __future__ import annotations

import json
import re

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from typing import Any, Callable, Iterable, Iterator

MIN_BYTES = 6  # shorter values and lines would also mask parts of ordinary words and numbers
_NAME_FIELDS = ("key", "path")  # of tracking: what they contain is a name
# a string in JSON: perhaps the value of such a field, or a key, which a colon follows
_STRING = re.compile(rb'("(?:key|path)"\s*:\s*)?("(?:[^"\\]|\\.)*")(\s*:)?')
_ALL_BUT_LINE_BREAK = bytes(code for code in range(256) if code != 10)
_IN_TEXT = bytes.maketrans(_ALL_BUT_LINE_BREAK, b"*" * 255)
_IN_NAMES = bytes.maketrans(_ALL_BUT_LINE_BREAK, b"_" * 255)  # `*` is not valid in every name


class Masker:
    """Masks some values. Pure: it keeps no state between calls."""

    def __init__(self, values: Iterable[str]) -> None:
        self._needles = _needles(values)
        # how many bytes before and after a part decide what is masked in it
        self.context = max((len(needle) for needle in self._needles), default=1) - 1

    def __bool__(self) -> bool:
        return bool(self._needles)

    def mask(self, content: bytes, table: bytes = _IN_TEXT) -> bytes:
        """Return text in which the secrets are masked. Line breaks stay."""
        spans = list(self.spans(content))
        if not spans:
            return content
        masked = bytearray(content)
        for begin, end in spans:
            masked[begin:end] = content[begin:end].translate(table)
        return bytes(masked)

    def spans(self, content: bytes) -> Iterator[tuple[int, int]]:
        """Yield the begin and the end of each part to mask. They may overlap."""
        for needle in self._needles:
            begin = content.find(needle)
            while begin >= 0:
                yield begin, begin + len(needle)
                begin = content.find(needle, begin + 1)

    def undecided(self, content: bytes) -> int:
        """Return how many bytes at the end may be the beginning of a secret."""
        return max((_overlap(content, needle) for needle in self._needles), default=0)

    def part(
        self, read: Callable[[int, int], bytes], offset: int, length: int, *, final: bool
    ) -> bytes:
        """Return masked text from `offset` on: up to `length` bytes of what `read(at, count)` has.

        What may be the beginning of a secret is left for a later call, unless the text is final.
        """
        begin = max(0, offset - self.context)
        count = offset - begin + length + self.context
        content = read(begin, count)
        is_end = final and len(content) < count
        decided = len(content) if is_end else len(content) - self.undecided(content)
        return self.mask(content)[offset - begin : min(decided, offset - begin + length)]

    def text(self, text: str) -> str:
        content = text.encode("utf-8", "surrogatepass")
        return self.mask(content).decode("utf-8", "surrogatepass")

    def name(self, text: str) -> str:
        """Mask the name of a metric or a file: every byte of a secret becomes `_`."""
        content = text.encode("utf-8", "surrogatepass")
        return self.mask(content, _IN_NAMES).decode("utf-8", "surrogatepass")

    def path(self, path: str) -> str:
        """Mask the path of a file, relative to the folder of its kind."""
        return self.name(path)

    def lines(self, content: bytes) -> bytes:
        """Mask the strings in lines of JSON. The lines keep their lengths and stay JSON."""
        return b"".join(self._line(line) for line in content.splitlines(True))

    def _line(self, line: bytes) -> bytes:
        try:
            json.loads(line)
        except (ValueError, RecursionError):
            return self.mask(line)
        return _STRING.sub(self._string, line)

    def _string(self, match: re.Match[bytes]) -> bytes:
        field, token, colon = match.groups(default=b"")
        text = str(json.loads(token))
        masked = self.name(text) if field or colon else self.text(text)
        if masked == text:
            return match.group()
        # no encoding is shorter than this one; spaces after a string mean nothing
        encoded = json.dumps(masked, ensure_ascii=False).encode("utf-8", "surrogatepass")
        return field + encoded.ljust(len(token)) + colon


class MaskEverything(Masker):
    """Masks all text: the values are unknown, and the text may contain them."""

    def __init__(self) -> None:
        super().__init__(())

    def __bool__(self) -> bool:
        return True

    def spans(self, content: bytes) -> Iterator[tuple[int, int]]:
        yield 0, len(content)

    def path(self, path: str) -> str:
        """Return a name that tells nothing about the path, but differs from that of others."""
        import hashlib

        content = path.encode("utf-8", "surrogatepass")
        return f"masked-{hashlib.sha256(content).hexdigest()[:16]}"


def mask_values(masker: Masker, value: Any) -> Any:
    """Return a JSON value in which all strings are masked, keys too."""
    if isinstance(value, str):
        return masker.text(value)
    if isinstance(value, dict):
        pairs: dict[Any, Any] = value  # pyright: ignore[reportUnknownVariableType]
        return {masker.name(str(key)): _mask_field(masker, key, pairs[key]) for key in pairs}
    if isinstance(value, list):
        items: list[Any] = value  # pyright: ignore[reportUnknownVariableType]
        return [mask_values(masker, item) for item in items]
    return value


def _mask_field(masker: Masker, key: Any, value: Any) -> Any:
    is_name = key in _NAME_FIELDS and isinstance(value, str)
    return masker.name(value) if is_name else mask_values(masker, value)


def _needles(values: Iterable[str]) -> list[bytes]:
    needles: dict[bytes, None] = {}
    for value in values:
        content = value.encode("utf-8", "surrogatepass")
        for needle in (content, *(line.strip() for line in content.split(b"\n"))):
            if len(needle) >= MIN_BYTES:
                needles[needle] = None
    return list(needles)


def _overlap(content: bytes, needle: bytes) -> int:
    """Return the length of the longest end of the text that is a beginning of `needle`."""
    at = max(0, len(content) - len(needle) + 1)
    while True:
        at = content.find(needle[:1], at)
        if at < 0:
            return 0
        if needle.startswith(content[at:]):
            return len(content) - at
        at += 1
