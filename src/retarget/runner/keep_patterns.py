"""Matches paths with the patterns of --keep: `*.pt`, `checkpoints/`, `runs/**/best.pt`."""

from __future__ import annotations

from fnmatch import fnmatchcase


def matches(pattern: str, path: str) -> bool:
    """Return whether a pattern names this file, or a folder that it is in.

    A pattern without a slash in the middle matches at any depth, as in ignore files.
    """
    is_folder, names = pattern.endswith("/"), pattern.strip("/").split("/")
    if len(names) == 1 and not pattern.startswith("/"):
        names = ["**", *names]
    parts = path.rstrip("/").split("/")
    last = len(parts) if path.endswith("/") or not is_folder else len(parts) - 1
    return _matches_start(names, parts[:last])


def _matches_start(names: list[str], parts: list[str]) -> bool:
    """Return whether the names match the first parts of a path; `**` is any number of parts."""
    positions = _skip_stars(names, {0})
    for part in parts:
        reached: set[int] = set()
        for position in positions - {len(names)}:
            if names[position] == "**":
                reached.add(position)
            elif fnmatchcase(part, names[position]):
                reached.add(position + 1)
        positions = _skip_stars(names, reached)
        if len(names) in positions:
            return True
    return False


def _skip_stars(names: list[str], positions: set[int]) -> set[int]:
    """Add the positions behind every `**`, which may stand for nothing."""
    reached = set(positions)
    for position, name in enumerate(names):
        if name == "**" and position in reached:
            reached.add(position + 1)
    return reached
