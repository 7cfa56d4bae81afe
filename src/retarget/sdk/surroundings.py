"""Finds what is next to a code folder. The server uses it only for hints."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from retarget.core.exclusions import MAX_SURROUNDINGS
from retarget.runner.default_exclusions import is_always_excluded
from retarget.sdk import notebooks
from retarget.sdk.code_folder import is_too_much
from retarget.sdk.project import folders_of_repository

_MAX_SCRIPT_BYTES = 1 << 20
# a string that begins with `..`, also in a notebook, where quotes are escaped; not its pattern
_REFERENCE = re.compile(r"""["'](\.\.(?:/\.\.)*(?:/[\w.@+-]+)?)(?=[/"'\\])""")


def surroundings_of(folder: Path) -> dict[str, Any]:
    """Return the name of the code folder, and what its git repository has outside of it.

    These are names only: the folders and Python files beside the code folder and beside its
    parents, and what `src` has there.
    """
    names = (name for name in _outside(folder) if name.isprintable())
    paths = [name for _, name in zip(range(MAX_SURROUNDINGS), names, strict=False)]
    return {"folder": folder.name if folder.name.isprintable() else "", "paths": paths}


def outside_references(folder: Path, script: str | None) -> list[str]:
    """Return a message if the script refers to files outside of the code folder, which it lacks."""
    if script is None or not script.endswith((".py", notebooks.SUFFIX)):
        return []
    # a notebook runs in its own folder, a script in the code folder
    start = (folder / script).parent if script.endswith(notebooks.SUFFIX) else folder
    paths = [path for path in _references(folder / script) if _is_outside(folder, start / path)]
    if not paths:
        return []
    common = os.path.commonpath([_folder_with(start / path) for path in paths])
    shown = ", ".join(paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")
    verb = "is" if len(paths) == 1 else "are"
    advice = f"; to send the folder above it, use --code {os.path.relpath(common, folder)}"
    advice = "" if is_too_much(Path(common)) else advice
    return [
        f"{script} refers to {shown}, which {verb} outside of the code folder {folder.name}/ and "
        f"not sent{advice}"
    ]


def _folder_with(path: Path) -> str:
    return os.path.normpath(path if path.name == ".." else path.parent)


def _references(script: Path) -> list[str]:
    try:
        with open(script, encoding="utf-8", errors="replace") as file:
            text = file.read(_MAX_SCRIPT_BYTES)
    except OSError:
        return []
    return sorted(set(_REFERENCE.findall(text)))


def _is_outside(folder: Path, path: Path) -> bool:
    full = os.path.normpath(path)
    return os.path.exists(full) and not f"{full}/".startswith(f"{folder}/")


def _outside(folder: Path) -> Iterator[str]:
    inner, prefix = folder, ".."
    for parent in folders_of_repository(folder)[1:]:
        for name in _names_in(parent):
            if name != f"{inner.name}/":
                yield f"{prefix}/{name}"
            if name == "src/" and inner.name != "src":
                yield from (f"{prefix}/src/{module}" for module in _names_in(parent / "src"))
        inner, prefix = parent, f"../{prefix}"


def _names_in(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            listed = [(entry.name, entry.is_dir()) for entry in entries]
    except OSError:
        return []
    return sorted(
        f"{name}/" if is_folder else name
        for name, is_folder in listed
        if (is_folder or name.endswith(".py"))
        and not name.startswith(".")
        and not is_always_excluded(name, is_folder)
    )
