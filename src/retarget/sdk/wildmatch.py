"""The patterns of ignore files: git's `wildmatch`, translated to regular expressions over bytes.

A test compares them with git itself. `pathspec` is not used: there `!src/` re-includes `src/logs`
after `logs`, it does not support `[[:digit:]]`, and it takes 60 ms to import.
"""

import re
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Pattern:
    """One line of an ignore file."""

    text: bytes
    negated: bool
    folders_only: bool
    by_name: bool  # a pattern without a slash is matched against the name, else against the path

    @property
    def is_literal(self) -> bool:
        return _literal_length(self.text) == len(self.text)

    @property
    def is_suffix(self) -> bool:
        return (
            self.by_name
            and self.text[:1] == b"*"
            and _literal_length(self.text[1:]) == (len(self.text) - 1)
        )

    @property
    def has_letters(self) -> bool:
        """Whether the last name in the pattern has a letter or a digit: `*.pem`, but not `*`."""
        return has_letters(self.text.rpartition(b"/")[2])

    @cached_property
    def expression(self) -> bytes:
        return _expression(self.text)

    @cached_property
    def regex(self) -> re.Pattern[bytes]:
        return re.compile(self.expression, re.DOTALL)


def has_letters(name: bytes) -> bool:
    """Return whether a pattern has a letter or a digit that stands for itself."""
    without_sets = re.sub(rb"\[[!^]?\]?[^\]]*\]", b"", name)
    return re.search(rb"[a-zA-Z0-9\x80-\xff]", without_sets) is not None


class IgnoreFile:
    """The patterns of one ignore file. The last pattern that matches decides."""

    def __init__(self, content: bytes) -> None:
        self._last_first = list(_patterns(content))[::-1]
        literals = [pattern for pattern in self._last_first if pattern.is_literal]
        suffixes = [pattern for pattern in self._last_first if pattern.is_suffix]
        globs = [
            pattern
            for pattern in self._last_first
            if not pattern.is_literal and not pattern.is_suffix
        ]
        self._names = frozenset(pattern.text for pattern in literals if pattern.by_name)
        self._paths = frozenset(pattern.text for pattern in literals if not pattern.by_name)
        self._suffixes = tuple(pattern.text[1:] for pattern in suffixes)
        self._name_globs = _any_of([pattern for pattern in globs if pattern.by_name])
        self._path_globs = _any_of([pattern for pattern in globs if not pattern.by_name])

    def match(self, path: bytes, name: bytes, is_folder: bool) -> Pattern | None:
        """Return the pattern that decides about `path`, relative to this file's folder, or None."""
        if not self._may_match(path, name):
            return None
        for pattern in self._last_first:
            if pattern.folders_only and not is_folder:
                continue
            if pattern.regex.fullmatch(name if pattern.by_name else path):
                return pattern
        return None

    def _may_match(self, path: bytes, name: bytes) -> bool:
        # most paths match no pattern: for them, a few set lookups must suffice
        return (
            name in self._names
            or name.endswith(self._suffixes)
            or path in self._paths
            or (self._name_globs is not None and self._name_globs.fullmatch(name) is not None)
            or (self._path_globs is not None and self._path_globs.fullmatch(path) is not None)
        )


def _any_of(patterns: list[Pattern]) -> re.Pattern[bytes] | None:
    if not patterns:
        return None
    return re.compile(b"|".join(pattern.expression for pattern in patterns), re.DOTALL)


def _patterns(content: bytes) -> Iterator[Pattern]:
    for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        text = line.removesuffix(b"\r").partition(b"\0")[0]
        if text and not line.startswith(b"#"):
            yield _pattern(_without_trailing_spaces(text))


def _without_trailing_spaces(text: bytes) -> bytes:
    stripped = text.rstrip(b" ")
    backslashes = len(stripped) - len(stripped.rstrip(b"\\"))
    return text[
        : len(stripped) + backslashes % 2
    ]  # an odd number of them escapes the space that follows


def _pattern(text: bytes) -> Pattern:
    negated = text.startswith(b"!")
    text = text[1:] if negated else text
    folders_only = text.endswith(b"/")
    text = text[:-1] if folders_only else text
    by_name = b"/" not in text
    return Pattern(text.removeprefix(b"/"), negated, folders_only, by_name)


def _literal_length(text: bytes) -> int:
    wildcard = re.search(rb"[*?[\\]", text)
    return len(text) if wildcard is None else wildcard.start()


_NO_MATCH = rb"(?!)"


def _expression(text: bytes) -> bytes:
    """Translate a pattern to a regular expression; a malformed one matches nothing, as in git."""
    # git matches the part before the first wildcard separately: `a**/b` is `a` and then `**/b`
    length = _literal_length(text)
    pieces, text = [re.escape(text[:length])], text[length:]
    at = 0
    while at < len(text):
        piece, at = _WILDCARDS.get(text[at], _literal)(text, at)
        pieces.append(piece)
    return _NO_MATCH if _NO_MATCH in pieces else b"".join(pieces)


def _literal(text: bytes, at: int) -> tuple[bytes, int]:
    return re.escape(text[at : at + 1]), at + 1


def _escaped(text: bytes, at: int) -> tuple[bytes, int]:
    return re.escape(text[at + 1 : at + 2]) or _NO_MATCH, at + 2


def _question_mark(_text: bytes, at: int) -> tuple[bytes, int]:
    return b"[^/]", at + 1


def _stars(text: bytes, at: int) -> tuple[bytes, int]:
    end = at
    while text[end : end + 1] == b"*":
        end += 1
    crosses_folders = end - at > 1 and (at == 0 or text[at - 1 : at] == b"/")
    if crosses_folders and text[end : end + 1] == b"/":
        return b"(?:.*/)?", end + 1
    if crosses_folders and (end == len(text) or text[end : end + 2] == rb"\/"):
        return b".*", end
    return b"[^/]*", end


_ITEM = re.compile(rb"\[:([^\]]*):\]|(\\.|[^\\])-(\\.|[^\]\\])|(\\.|[^\\])", re.DOTALL)
_CLASSES = {
    b"alnum": string.ascii_letters + string.digits,
    b"alpha": string.ascii_letters,
    b"blank": " \t",
    b"cntrl": "".join(map(chr, range(32))) + "\x7f",
    b"digit": string.digits,
    b"graph": string.ascii_letters + string.digits + string.punctuation,
    b"lower": string.ascii_lowercase,
    b"print": string.ascii_letters + string.digits + string.punctuation + " ",
    b"punct": string.punctuation,
    b"space": " \t\n\r",
    b"upper": string.ascii_uppercase,
    b"xdigit": string.hexdigits,
}


def _bracket(text: bytes, at: int) -> tuple[bytes, int]:
    at += 1
    negated = text[at : at + 1] in (b"!", b"^")
    first = at = at + negated
    members: set[int] = set()
    while at == first or text[at : at + 1] != b"]":
        item = _ITEM.match(text, at)
        if item is None or (item[1] is not None and item[1] not in _CLASSES):
            return _NO_MATCH, len(text)
        members |= _bytes_of(item)
        at = item.end()
    matching = (set(range(256)) - members if negated else members) - {ord("/")}
    escaped = b"".join(rb"\x%02x" % byte for byte in sorted(matching))
    return b"[" + escaped + b"]" if escaped else _NO_MATCH, at + 1


def _bytes_of(item: re.Match[bytes]) -> set[int]:
    if item[1] is not None:
        return set(_CLASSES[item[1]].encode())
    if item[4] is not None:
        return {item[4][-1]}
    return set(range(item[2][-1], item[3][-1] + 1))


_WILDCARDS: dict[int, Callable[[bytes, int], tuple[bytes, int]]] = {
    ord("*"): _stars,
    ord("?"): _question_mark,
    ord("["): _bracket,
    ord("\\"): _escaped,
}
