"""Recognizes requirements that are paths: packages of the user's own, in the code folder."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from retarget.core.errors import Invalid

_NAMED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\s*(?:\[([^\]]*)\])?\s*@\s*(\S.*)")
_UNNAMED = re.compile(r"([^;]*?)\s*(?:\[([^\]]*)\])?")
# how build tools write the folder of a project
_FOLDER = re.compile(r"\{root:uri\}|file:///?\$\{PROJECT_ROOT\}")


@dataclass(frozen=True, slots=True)
class LocalPath:
    """A required path. `source` says where it is required."""

    source: str
    path: Path  # absolute
    extras: frozenset[str] = frozenset()


def read_local_path(source: str, text: str, folder: Path) -> LocalPath | None:
    """Return the path that a requirement names; None if it is to be downloaded.

    A relative path is relative to `folder`, that of the file, or else to the current folder.
    """
    requirement = re.split(r"\s+(?=--[a-z])", _FOLDER.sub(f"file://{folder}", text))[0].strip()
    named = _NAMED.fullmatch(requirement)
    if named:
        extras, location = named[1], named[2]
        if "://" in location and not location.startswith("file:"):
            return None
        if re.match(r"file:/.*\.(whl|zip|tar\.gz)\b", location):
            return None  # a file that the target has
    elif is_local(requirement):
        extras, location = None, requirement
    else:
        return None
    location, semicolon, _ = location.partition(";")
    if semicolon:
        raise Invalid(
            f"{source}: {text!r} has a condition, which a path cannot have; remove it",
            field="environment",
        )
    unnamed = _UNNAMED.fullmatch(location.strip())
    path = unnamed[1] if unnamed else location.strip()
    extras = (unnamed[2] if unnamed else None) or extras or ""
    names = frozenset(re.sub(r"[-_.]+", "-", name.strip()).lower() for name in extras.split(","))
    return LocalPath(source, _absolute(path, folder), names - {""})


def is_local(text: str) -> bool:
    """Return whether a requirement is a path, as pip does."""
    if text.startswith("file:"):
        return True
    path = re.split(r"[@;\s\[]", text, maxsplit=1)[0]
    return (
        path.startswith((".", "/", "~"))
        or ("/" in path and "://" not in path)
        or path.endswith((".whl", ".zip", ".tar.gz"))
    )


def is_folder(name: str, folder: Path = Path()) -> bool:
    """Return whether an environment is named by its folder. A plain word is a registered name."""
    return (name in (".", "..") or "/" in name) and os.path.isdir(folder / name)


def with_extras(name: str, folder: Path = Path()) -> str | None:
    """Return the requirement that names a project with extras: `.[dev]`; None for other names."""
    path, bracket, extras = name.partition("[")
    if not (bracket and extras.endswith("]") and path and os.path.exists(folder / path)):
        return None
    if not os.path.isdir(folder / path):
        path = os.path.dirname(path)  # of a pyproject.toml
    return f"{os.path.abspath(folder / path)}[{extras}"


def _absolute(path: str, folder: Path) -> Path:
    if path.startswith("file:"):
        path = unquote(re.sub(r"^file:(//(localhost)?)?", "", path))
    expanded = os.path.expanduser(path)
    candidates = [os.path.abspath(folder / expanded), os.path.abspath(expanded)]
    existing = [candidate for candidate in candidates if os.path.exists(candidate)]
    return Path(existing[0] if existing else candidates[0])
