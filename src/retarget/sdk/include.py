"""The paths and patterns of `include`: what a user sends although a rule excludes it."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from retarget.core.errors import Invalid
from retarget.runner.keep_patterns import below, matches, reaches
from retarget.sdk import arguments

_WILDCARDS = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class Include:
    """Paths and patterns, relative to the code folder."""

    paths: frozenset[bytes] = frozenset()
    patterns: tuple[str, ...] = ()
    origin: str = "include"  # where the user wrote them, for messages
    is_optional: bool = False  # patterns may match nothing: the code folder is a part of a project

    def patterns_of(self, path: bytes, *, is_folder: bool) -> list[str]:
        """Return the patterns that name this path itself, and not a folder that it is in."""
        if not self.patterns:
            return []
        name = os.fsdecode(path)
        above, _, _ = name.rpartition("/")
        return [
            pattern
            for pattern in self.patterns
            if matches(pattern, f"{name}/" if is_folder else name)
            and not (above and matches(pattern, f"{above}/"))
        ]

    def reaches(self, folder: bytes) -> bool:
        """Return whether a pattern can name a path in this folder."""
        name = os.fsdecode(folder)
        return any(reaches(pattern, name) for pattern in self.patterns)


NO_INCLUDE = Include()


class ExcludedPaths:
    """Collects the excluded paths. A folder of which nothing is sent is one path."""

    def __init__(self) -> None:
        self._rules: dict[bytes, str] = {}
        self._searched: dict[bytes, str] = {}  # excluded folders that were read nevertheless
        self._sent: set[bytes] = set()  # folders with a file that is sent

    def add(self, path: bytes, rule: str) -> None:
        self._rules[path] = rule

    def search(self, folder: bytes, rule: str) -> None:
        """Add a folder, with a slash, that may contain an included path."""
        self._searched[folder[:-1]] = rule
        self.add(folder, rule)

    def send(self, path: bytes) -> None:
        if self._searched:
            self._sent.update(parents(path))

    def rules(self) -> dict[bytes, str]:
        """Return the rules of the topmost excluded paths."""
        if not self._searched:
            return self._rules
        rules: dict[bytes, str] = {}
        for path, rule in self._rules.items():
            name = path.rstrip(b"/")
            folder = self._excluded_folder(name)
            if folder is not None:
                rules[folder + b"/"] = self._searched[folder]
            elif name not in self._searched:
                rules[path] = rule
        return rules

    def _excluded_folder(self, path: bytes) -> bytes | None:
        """Return the topmost searched folder of which nothing is sent: the path or one above."""
        folders = [*reversed(list(parents(path))), path]
        unsent = (folder for folder in folders if folder not in self._sent)
        return next((folder for folder in unsent if folder in self._searched), None)


def parents(path: bytes) -> Iterator[bytes]:
    """Yield the folders that a path is in, the deepest first, without the root."""
    while path := path.rpartition(b"/")[0]:
        yield path


def resolve_include(folder: Path, include: object) -> Include:
    """Return paths and patterns relative to the folder; raise Invalid for one that is not in it.

    A string with `*`, `?` or `[` is a pattern, unless a file or folder has exactly this path.
    """
    if isinstance(include, Include):
        return include
    expected = "a list of paths and patterns, such as ['data/', '*.csv']"
    texts = arguments.strings("include", include, expected) if include is not None else ()
    root = os.path.realpath(folder)
    patterns = [text for text in texts if is_pattern(root, text)]
    paths = frozenset(_inside(root, text) for text in texts if text not in patterns)
    return Include(paths, tuple(_pattern_inside(root, text) for text in patterns))


def include_below(folder: Path, code: Path, include: object, origin: str) -> Include:
    """Return what a folder includes of the code folder in it: both may be the same.

    Raise Invalid, which names the origin, for a path that is not in the folder.
    """
    try:
        whole = replace(resolve_include(folder, include), origin=origin)
    except Invalid as error:
        raise Invalid(str(error).replace("include", origin, 1), field="include") from None
    if code == folder:
        return whole
    name = os.path.relpath(code, folder)
    paths = (_path_below(os.fsencode(name), path) for path in whole.paths)
    patterns = [inside for pattern in whole.patterns for inside in below(pattern, name)]
    return replace(
        whole,
        paths=frozenset(path for path in paths if path is not None),
        patterns=tuple(patterns),
        is_optional=True,
    )


def _path_below(code: bytes, path: bytes) -> bytes | None:
    """Return a path relative to the code folder; an empty one if the code folder is in it."""
    if path in (b"", code, *parents(code)):
        return b""
    return path.removeprefix(code + b"/") if path.startswith(code + b"/") else None


def is_pattern(folder: str, text: str) -> bool:
    """Return whether a string is a pattern, and not a path that exists in the folder."""
    return not _WILDCARDS.isdisjoint(text) and not os.path.lexists(os.path.join(folder, text))


def _pattern_inside(root: str, text: str) -> str:
    pattern = text.removeprefix(root if text.startswith(f"{root}/") else "")
    if ".." in pattern.split("/"):
        raise Invalid(f"include: {text!r} is not in {root}", field="include")
    names = [name for name in pattern.split("/") if name not in ("", ".")]
    is_anchored = pattern.startswith(("/", "./"))
    return f"{'/' * is_anchored}{'/'.join(names)}{'/' * pattern.endswith('/')}"


def _inside(root: str, path: str) -> bytes:
    full = os.path.normpath(os.path.join(root, path))
    parent = os.path.realpath(os.path.dirname(full))
    if os.path.commonpath([root, full]) != root:
        raise Invalid(f"include: {path!r} is not in {root}", field="include")
    if not path.strip() or not os.path.lexists(full):
        raise Invalid(f"include: {path!r} does not exist in {root}", field="include")
    if full != root and parent != os.path.dirname(full):
        raise Invalid(
            f"include: {path!r} leads through a link; name the path that the link leads to",
            field="include",
        )
    return b"" if full == root else os.fsencode(os.path.relpath(full, root))
