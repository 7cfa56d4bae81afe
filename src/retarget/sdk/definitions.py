"""Reads the files that define an environment: conda's and pyproject.toml."""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from retarget.core.errors import Invalid
from retarget.sdk.requirements import Line, from_lines, read_requirement
from retarget.sdk.wanted import (
    Wanted,
    as_list,
    as_mapping,
    as_text,
    as_texts,
    python_version,
    read_text,
    wrong,
)

_CONDA_KEYS = ("name", "channels", "dependencies", "prefix")


def read_conda(path: Path) -> Wanted:
    found = as_mapping(path, _yaml(path))
    if "variables" in found:
        raise wrong(f"{path}: variables", "are not taken from the file; set them with --set-env")
    for key in found:
        if key not in _CONDA_KEYS:
            raise wrong(f"{path}: {key!r}", f"is not known; known are {', '.join(_CONDA_KEYS)}")
    if not isinstance(found.get("name", ""), str | None):
        raise wrong(f"{path}: name", "must be a text")
    channels = as_texts(f"{path}: channels", found.get("channels"))
    wanted = Wanted(channels=tuple(name for name in channels if name != "nodefaults"))
    dependencies = as_list(f"{path}: dependencies", found.get("dependencies"))
    if not dependencies:
        raise wrong(f"{path}: dependencies", "is empty; list packages there")
    for number, item in enumerate(dependencies, 1):
        wanted += _conda_item(path, f"{path}: dependencies, item {number}", item)
    return wanted


def _conda_item(path: Path, where: str, item: object) -> Wanted:
    if isinstance(item, str):
        return _conda_package(where, item)
    if isinstance(item, dict) and list(cast("dict[object, object]", item)) == ["pip"]:
        lines = as_texts(f"{where}: pip", cast("dict[str, object]", item)["pip"])
        return from_lines((Line(f"{where}: pip", text) for text in lines), path.parent)
    raise wrong(where, f"{item!r} is neither a package such as numpy=1.26 nor a `pip:` list")


def _conda_package(where: str, text: str) -> Wanted:
    from retarget.core.conda import parse_spec

    try:
        spec = parse_spec(text)
    except Invalid as error:
        raise wrong(where, str(error)) from error
    if spec.name == "pip":
        return Wanted()
    if spec.name != "python":
        return Wanted(conda=(str(spec),))
    if spec.version is None:
        return Wanted()
    version = python_version(where, spec.version)
    return Wanted(pythons=((where, version),) if version else ())


def _yaml(path: Path) -> object:
    import yaml

    try:
        return yaml.safe_load(read_text(path))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" line {mark.line + 1}" if mark is not None else ""
        raise wrong(f"{path}{line}", f"is not YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise wrong(str(path), f"is not YAML: {error}") from error


# -- pyproject files --------------------------------------------------------------------------


def read_pyproject(path: Path) -> Wanted:
    project = _project(path)
    if "dependencies" in as_texts(f"{path}: project.dynamic", project.get("dynamic")):
        raise wrong(
            f"{path}: project.dependencies",
            "are dynamic, known to the build tool alone; write them to a requirements file",
        )
    where = f"{path}: project.dependencies"
    lines = [Line(where, text) for text in as_texts(where, project.get("dependencies"))]
    wanted = Wanted(pip=tuple(read_requirement(line) for line in lines))
    if "requires-python" in project:
        where = f"{path}: project.requires-python"
        version = python_version(where, as_text(where, project["requires-python"]))
        wanted += Wanted(pythons=((where, version),) if version else ())
    return wanted


def _project(path: Path) -> Mapping[str, object]:
    import tomllib

    try:
        found = tomllib.loads(read_text(path))
    except (ValueError, RecursionError) as error:  # numbers of 5,000 digits are no TOML error
        raise wrong(str(path), f"is not TOML: {error}") from error
    if "project" not in found:
        raise wrong(str(path), "has no [project] table, where dependencies are listed")
    return as_mapping(f"{path}: project", found["project"])


# -- requirements -----------------------------------------------------------------------------
