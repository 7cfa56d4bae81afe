"""Matches paths with the patterns of --keep and --include: `*.pt`, `runs/**/best.pt`."""

from __future__ import annotations

from fnmatch import fnmatchcase


def matches(pattern: str, path: str) -> bool:
    """Return whether a pattern names this file, or a folder that it is in.

    A pattern without a slash in the middle matches at any depth, as in ignore files.
    """
    parts = path.rstrip("/").split("/")
    last = len(parts) if path.endswith("/") or not pattern.endswith("/") else len(parts) - 1
    return _matches_start(_names(pattern), parts[:last])


def reaches(pattern: str, folder: str) -> bool:
    """Return whether a pattern can name a path in this folder."""
    names = _names(pattern)
    positions = _skip_stars(names, {0})
    for part in folder.strip("/").split("/"):
        positions = _advance(names, positions, part)
    return bool(positions - {len(names)})


def below(pattern: str, folder: str) -> list[str]:
    """Return the pattern relative to this folder: several, if a `**` may stand for more names.

    The list is empty if the pattern can name nothing in the folder. `/**` is all of it.
    """
    names = _names(pattern)
    positions = _skip_stars(names, {0})
    for part in folder.strip("/").split("/"):
        positions = _advance(names, positions, part)
        if len(names) in positions:
            return ["/**"]
    end = "/" * pattern.endswith("/")
    return [f"/{'/'.join(names[position:])}{end}" for position in sorted(positions)]


def _names(pattern: str) -> list[str]:
    names = pattern.strip("/").split("/")
    return ["**", *names] if len(names) == 1 and not pattern.startswith("/") else names


def _matches_start(names: list[str], parts: list[str]) -> bool:
    """Return whether the names match the first parts of a path; `**` is any number of parts."""
    positions = _skip_stars(names, {0})
    for part in parts:
        positions = _advance(names, positions, part)
        if len(names) in positions:
            return True
    return False


def _advance(names: list[str], positions: set[int], part: str) -> set[int]:
    """Return the positions in the names behind one more part of a path."""
    reached: set[int] = set()
    for position in positions - {len(names)}:
        if names[position] == "**":
            reached.add(position)
        elif fnmatchcase(part, names[position]):
            reached.add(position + 1)
    return _skip_stars(names, reached)


def _skip_stars(names: list[str], positions: set[int]) -> set[int]:
    """Add the positions behind every `**`, which may stand for nothing."""
    reached = set(positions)
    for position, name in enumerate(names):
        if name == "**" and position in reached:
            reached.add(position + 1)
    return reached
