"""Finds where the dependencies of the user's packages are: in a folder, at an address, or near."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retarget.runner.default_exclusions import ENVIRONMENT_MARKS, is_excluded
from retarget.sdk.environment_draft import read_text, wrong
from retarget.sdk.package_metadata import entries, table

_PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg")
_MAX_DEPTH = 3  # of a package in its repository: `libs/python/core`
_CONDITIONS = ("marker", "extra", "group")
_ORIGINS = ("index", "source", "url", "git")


@dataclass(frozen=True, slots=True)
class Sources:
    """What uv and Poetry say about dependencies, by name."""

    folders: dict[str, Path] = field(default_factory=dict[str, Path])
    addresses: dict[str, str] = field(default_factory=dict[str, str])
    ignored: dict[str, str] = field(default_factory=dict[str, str])  # what cannot be followed


def read_sources(folder: Path, content: Mapping[str, Any]) -> Sources:
    """Read `tool.uv.sources` and the dependencies of Poetry."""
    tables = {
        **table(content, "tool", "poetry", "dependencies"),
        **table(content, "tool", "uv", "sources"),
    }
    sources = Sources()
    for name, value in tables.items():
        _add(sources, folder, canonical(name), value)
    return sources


def repository(folder: Path) -> Path | None:
    """Return the root of the git repository that a folder is in."""
    roots = (root for root in (folder, *folder.parents) if os.path.exists(root / ".git"))
    return next(roots, None)


def package_folders(root: Path) -> Iterator[Path]:
    """Yield the folders of packages in a folder, the topmost first; none of other repositories."""
    folders = [root]
    for _ in range(_MAX_DEPTH + 1):
        children: list[Path] = []
        for folder in folders:
            if any(os.path.isfile(folder / name) for name in _PROJECT_FILES):
                yield folder
            children += _children(folder)
        folders = children


def read_toml(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise wrong(str(path), f"is not TOML: {error}") from error


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _add(sources: Sources, folder: Path, name: str, value: object) -> None:
    if isinstance(value, list):
        sources.ignored[name] = "it has several"
        return
    source = table({name: value}, name)
    if isinstance(source.get("path"), str):
        sources.folders[name] = Path(os.path.abspath(folder / source["path"]))
    elif source.get("workspace"):
        sources.folders[name] = _member(folder, name)
    elif any(key in source for key in _ORIGINS):
        address = None if any(key in source for key in _CONDITIONS) else _address(source)
        if address is not None:
            sources.addresses[name] = address
        else:
            keys = [key for key in (*_ORIGINS, *_CONDITIONS) if key in source]
            sources.ignored[name] = ", ".join(f"{key} = {source[key]!r}" for key in keys)


def _address(source: Mapping[str, Any]) -> str | None:
    """Return the address in the form of pip; None if only uv or Poetry can find the package."""
    if isinstance(source.get("url"), str):
        address = str(source["url"])
    elif isinstance(source.get("git"), str):
        revision = next((source[key] for key in ("rev", "tag", "branch") if key in source), None)
        address = f"git+{source['git']}" + (f"@{revision}" if revision else "")
    else:
        return None
    subdirectory = source.get("subdirectory")
    return address + (f"#subdirectory={subdirectory}" if subdirectory else "")


def _member(folder: Path, name: str) -> Path:
    """Return the folder of a member of the uv workspace that `folder` is in."""
    for root in (folder, *folder.parents):
        file = root / "pyproject.toml"
        settings = table(read_toml(file), "tool", "uv", "workspace") if file.is_file() else {}
        if not settings:
            continue
        for member in (root, *_members(root, settings)):
            project = member / "pyproject.toml"
            names = table(read_toml(project), "project") if project.is_file() else {}
            if canonical(str(names.get("name"))) == name:
                return member
        raise wrong(f"{file}: tool.uv.workspace", f"no member is named {name}; check `members`")
    source = f"{folder / 'pyproject.toml'}: tool.uv.sources"
    raise wrong(source, f"{name} is in a workspace, but no folder above has [tool.uv.workspace]")


def _members(root: Path, settings: Mapping[str, Any]) -> Iterator[Path]:
    for pattern in entries(settings.get("members")):
        try:
            yield from sorted(root.glob(str(pattern)))
        except (OSError, ValueError, NotImplementedError) as error:
            source = f"{root / 'pyproject.toml'}: tool.uv.workspace.members"
            raise wrong(source, f"{pattern!r} is not a pattern of folders: {error}") from error


def _children(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as rows:
            names = sorted(row.name for row in rows if row.is_dir(follow_symlinks=False))
    except OSError:
        return []
    return [folder / name for name in names if _is_code(folder / name)]


def _is_code(folder: Path) -> bool:
    if folder.name.startswith(".") or is_excluded(folder.name, is_folder=True):
        return False
    marks = (*ENVIRONMENT_MARKS, ".git/HEAD")  # not a submodule, whose `.git` is a file
    return not any(os.path.exists(folder / mark) for mark in marks)
