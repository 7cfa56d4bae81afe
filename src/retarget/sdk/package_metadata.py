"""Reads the metadata of a package from its pyproject.toml, and decides whether it must be built."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

UNKNOWN_VERSION = "0+unknown"
# backends that only copy Python files, unless they are configured to do more
_COPYING_BACKENDS = (
    "hatchling", "setuptools", "flit_core", "flit", "poetry", "uv_build", "pdm",
)  # fmt: skip
_COMPILES = re.compile(r"ext_modules|Extension\(|cmdclass|rust_extensions|cffi_modules|cythonize")
_VERSION = re.compile(r"""^__version__(?:\s*:\s*\w+)?\s*=\s*["']([^"']+)["']""", re.MULTILINE)
_VERSION_FILES = ("__init__.py", "__about__.py", "_version.py", "version.py", "__version__.py")


def table(content: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return a nested table; empty if it does not exist."""
    value: Any = content
    for name in names:
        value = cast("dict[str, Any]", value).get(name) if isinstance(value, Mapping) else None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def entries(value: object) -> list[Any]:
    """Return the entries of a list; none if it is something else."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def needs_build(folder: Path, content: Mapping[str, Any]) -> bool:
    """Return whether a package is more than its files: some are compiled, or written at build."""
    backend = str(table(content, "build-system").get("build-backend", "setuptools"))
    if backend.partition(".")[0] not in _COPYING_BACKENDS:
        return True
    return any(
        (
            table(content, "tool", "hatch", "build", "hooks"),
            table(content, "tool", "hatch", "build", "targets", "wheel", "hooks"),
            table(content, "tool", "setuptools").get("ext-modules"),
            table(content, "tool", "setuptools", "cmdclass"),
            table(content, "tool", "poetry", "build").get("script"),
            table(content, "tool", "setuptools_scm").get("write_to"),
            table(content, "tool", "setuptools_scm").get("version_file"),
            any(name for name in table(content, "tool", "setuptools", "package-dir")),
            os.path.isfile(folder / "pdm_build.py"),
            _COMPILES.search(_text(folder / "setup.py")),
        )
    )


def import_roots(folder: Path, content: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the folders, relative to the package's, that its modules are imported from."""
    roots = [root for root in _configured_roots(content) if os.path.isdir(folder / root)]
    if roots:
        return tuple(dict.fromkeys(os.path.normpath(root) for root in roots))
    return ("src",) if has_modules(folder / "src") else (".",)


def has_modules(folder: Path) -> bool:
    """Return whether a folder has something to import."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return False
    return any(
        entry.name.endswith(".py") or (entry.name.isidentifier() and _is_package(entry))
        for entry in entries
    )


def version(folder: Path, content: Mapping[str, Any], roots: tuple[str, ...]) -> str:
    """Return the version, also one that is written in a file; else `UNKNOWN_VERSION`."""
    project = table(content, "project")
    if isinstance(project.get("version"), str):
        return str(project["version"])
    for path in _version_files(folder, content, roots, str(project.get("name", ""))):
        text = _text(path)
        match = _VERSION.search(text)
        if match:
            return match[1]
        if path.suffix != ".py" and re.fullmatch(r"\s*\d\S*\s*", text):
            return text.strip()
    return UNKNOWN_VERSION


def _configured_roots(content: Mapping[str, Any]) -> Iterator[str]:
    setuptools = table(content, "tool", "setuptools")
    yield from map(str, entries(table(setuptools, "packages", "find").get("where")))
    if "" in table(setuptools, "package-dir"):
        yield str(setuptools["package-dir"][""])
    wheel = table(content, "tool", "hatch", "build", "targets", "wheel")
    yield from (os.path.dirname(str(path)) or "." for path in entries(wheel.get("packages")))
    for package in entries(table(content, "tool", "poetry").get("packages")):
        yield str(table({"": package}, "").get("from", "."))
    module_root = table(content, "tool", "uv", "build-backend").get("module-root")
    if isinstance(module_root, str):
        yield module_root or "."


def _is_package(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir() and any(name.endswith(".py") for name in os.listdir(entry.path))
    except OSError:
        return False


def _version_files(
    folder: Path, content: Mapping[str, Any], roots: tuple[str, ...], name: str
) -> Iterator[Path]:
    hatch = table(content, "tool", "hatch", "version").get("path")
    if isinstance(hatch, str):
        yield folder / hatch
    dynamic = table(content, "tool", "setuptools", "dynamic", "version")
    if isinstance(dynamic.get("attr"), str):
        parts = dynamic["attr"].split(".")[:-1]
        for root in roots:
            yield folder.joinpath(root, *parts).with_suffix(".py")
            yield folder.joinpath(root, *parts, "__init__.py")
    files = dynamic.get("file")
    for file in [files] if isinstance(files, str) else entries(files):
        yield folder / str(file)
    module = re.sub(r"[-.]+", "_", name)
    for root in roots:
        yield from (folder / root / module / file for file in _VERSION_FILES)
        yield folder / root / f"{module}.py"


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError):
        return ""
