"""Finds git submodules whose files were never fetched."""

import os
import re
from pathlib import Path

_PATH = re.compile(r"^\s*path\s*=\s*\"?(.+?)\"?\s*$", re.MULTILINE)
_MAX_BYTES = 2**20


def empty_submodules(folder: Path) -> list[str]:
    """Return the submodules in a code folder that have no files, as paths in the folder."""
    try:
        with (folder / ".gitmodules").open(encoding="utf-8", errors="replace") as file:
            paths = _PATH.findall(file.read(_MAX_BYTES))
    except OSError:
        return []
    return [path for path in paths if _is_empty(folder / path)]


def _is_empty(path: Path) -> bool:
    try:
        return not os.listdir(path)
    except OSError:
        return False
