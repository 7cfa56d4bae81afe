"""Reads the files that define an environment: conda files and pyproject.toml."""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from retarget.core.errors import Invalid
from retarget.sdk.environment_draft import (
    EnvironmentDraft,
    as_list,
    as_mapping,
    as_string,
    as_strings,
    python_version,
    read_text,
    wrong,
)
from retarget.sdk.local_paths import LocalPath
from retarget.sdk.requirements import Line, from_lines, read_requirement

_CONDA_KEYS = ("name", "channels", "dependencies", "prefix")


def read_conda(path: Path) -> EnvironmentDraft:
    content = as_mapping(path, _yaml(path))
    if "variables" in content:
        raise wrong(f"{path}: variables", "are not read from the file; set them with --env")
    for key in content:
        if key not in _CONDA_KEYS:
            raise wrong(f"{path}: {key!r}", f"is unknown; keys are {', '.join(_CONDA_KEYS)}")
    if not isinstance(content.get("name", ""), str | None):
        raise wrong(f"{path}: name", "must be a string")
    channels = as_strings(f"{path}: channels", content.get("channels"))
    draft = EnvironmentDraft(channels=tuple(name for name in channels if name != "nodefaults"))
    dependencies = as_list(f"{path}: dependencies", content.get("dependencies"))
    if not dependencies:
        raise wrong(f"{path}: dependencies", "is empty; list packages there")
    for number, item in enumerate(dependencies, 1):
        draft += _conda_item(path, f"{path}: dependencies, item {number}", item)
    return draft


def _conda_item(path: Path, source: str, item: object) -> EnvironmentDraft:
    if isinstance(item, str):
        return _conda_package(source, item)
    if isinstance(item, dict) and list(cast("dict[object, object]", item)) == ["pip"]:
        lines = as_strings(f"{source}: pip", cast("dict[str, object]", item)["pip"])
        return from_lines((Line(f"{source}: pip", text) for text in lines), path.parent)
    raise wrong(source, f"{item!r} is neither a package such as numpy=1.26 nor a `pip:` list")


def _conda_package(source: str, text: str) -> EnvironmentDraft:
    from retarget.core.conda import parse_spec

    try:
        spec = parse_spec(text)
    except Invalid as error:
        raise wrong(source, str(error)) from error
    if spec.name == "pip":
        return EnvironmentDraft()
    if spec.name != "python":
        return EnvironmentDraft(conda=(str(spec),))
    if spec.version is None:
        return EnvironmentDraft()
    version = python_version(source, spec.version)
    return EnvironmentDraft(pythons=((source, version),) if version else ())


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


def read_pyproject(path: Path) -> EnvironmentDraft:
    project = _project(path)
    if "name" in project and path.name == "pyproject.toml":
        return EnvironmentDraft(paths=(LocalPath(str(path), path.absolute().parent),))
    source = f"{path}: project.dependencies"
    if "dependencies" in as_strings(f"{path}: project.dynamic", project.get("dynamic")):
        raise wrong(
            source,
            "are dynamic, so only the build tool knows them; write them to a requirements file",
        )
    lines = [Line(source, text) for text in as_strings(source, project.get("dependencies"))]
    draft = EnvironmentDraft(pip=tuple(read_requirement(line) for line in lines))
    if "requires-python" in project:
        source = f"{path}: project.requires-python"
        version = python_version(source, as_string(source, project["requires-python"]))
        draft += EnvironmentDraft(pythons=((source, version),) if version else ())
    return draft


def _project(path: Path) -> Mapping[str, object]:
    import tomllib

    try:
        content = tomllib.loads(read_text(path))
    except (
        ValueError,
        RecursionError,
    ) as error:  # a number of 5,000 digits raises a ValueError, not a TOML error
        raise wrong(str(path), f"is not TOML: {error}") from error
    tool: object = content.get("tool")
    if "project" not in content and isinstance(tool, dict) and "poetry" in tool:
        raise wrong(
            str(path),
            "lists the dependencies only for Poetry; write them to a requirements file with "
            "`poetry export -o requirements.txt` and use that, or add a [project] table",
        )
    if "project" not in content:
        raise wrong(str(path), "has no [project] table, which lists the dependencies")
    return as_mapping(f"{path}: project", content["project"])
