"""The user's own packages: packages in the code folder that a job can import."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from retarget.core.values import Value

_MAX_CHARACTERS = 4096
_SCRIPT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_OBJECT = re.compile(r"[\w.]+(\s*:\s*[\w.]+)?(\s*\[.*\])?")
_SCRIPT_GROUPS = ("console_scripts", "gui_scripts")


def _check_line(value: str) -> str:
    if not value.strip() or not value.isprintable() or len(value) > _MAX_CHARACTERS:
        raise ValueError(f"{value[:80]!r} is not a single line, or it is too long")
    return value


def _check_path(value: str) -> str:
    if value != "." and {"", ".", ".."} & set(_check_line(value).split("/")):
        raise ValueError(f"{value[:80]!r} is not a path in the code folder")
    return value


def _check_name(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,200}[a-z0-9])?", value):
        raise ValueError(f"{value[:80]!r} is not the normal form of a package name")
    return value


def _check_version(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.+!_-]{0,100}", value):
        raise ValueError(f"{value[:80]!r} is not a version")
    return value


def _check_points(value: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    for group, points in value.items():
        _check_line(group)
        for name, target in points.items():
            _check_line(name)
            is_script = group in _SCRIPT_GROUPS
            if (is_script and not _SCRIPT.fullmatch(name)) or not _OBJECT.fullmatch(target):
                raise ValueError(f"{name[:80]!r} = {target[:80]!r} is not an entry point")
    return value


_Line = Annotated[str, AfterValidator(_check_line)]
_Path = Annotated[str, AfterValidator(_check_path)]
PackageName = Annotated[str, AfterValidator(_check_name)]


class OwnPackage(Value):
    """A package in the code folder. Its `roots` are put on the path, or it is built."""

    path: _Path
    name: PackageName
    version: Annotated[str, AfterValidator(_check_version)] = "0+unknown"
    roots: Annotated[tuple[_Path, ...], Field(max_length=100)] = ()
    requires: Annotated[tuple[_Line, ...], Field(max_length=10_000)] = ()
    entry_points: Annotated[dict[str, dict[str, str]], AfterValidator(_check_points)] = {}
    build: bool = False  # it is built and installed, once per snapshot
    with_dependencies: bool = False  # then also what only its build tool knows that it requires
    implicit: bool = False  # nothing requires it: its root is only put on the path
