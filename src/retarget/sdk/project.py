"""Reads retarget.toml, the settings of a project, and fills in what the caller did not set."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from retarget.core.errors import Invalid
from retarget.core.toml import check_keys, parse_toml, suggest
from retarget.core.units import parse_duration, parse_memory
from retarget.sdk import arguments
from retarget.sdk.ignore import ProjectRules
from retarget.sdk.include import include_below
from retarget.sdk.toml_files import read_settings_file

NAME = "retarget.toml"
_PROFILES, _RESOURCE_TABLE = "profiles", "resources"
# merged by key: those of the file, of the profile and of the caller
_MERGED_TABLES = ("variables", "tags")


@dataclass(frozen=True, slots=True)
class Project:
    """The settings of a project by the name of their option, with those of the profile."""

    folder: Path
    profile: str | None
    settings: Mapping[str, Any]
    code: Path  # the code folder: this one, or one below it

    def fill(self, target: str | None, options: Mapping[str, Any]) -> "Filled":
        """Return target and options, with the project's settings where the caller set none."""
        used = {name: value for name, value in self.settings.items() if options.get(name) is None}
        if target is not None or os.environ.get("RETARGET_TARGET"):
            used.pop("target", None)
        for table in _MERGED_TABLES:
            used.pop(table, None)
        shown = [f"profile={self.profile}"] if self.profile else []
        shown += [f"{name}={_shown(value)}" for name, value in used.items()]
        for table in _MERGED_TABLES:
            merged, own_keys = self._merged(table, options.get(table))
            used |= {table: merged} if merged else {}
            shown += [f"{table}.{key}" for key in own_keys]  # values of variables may be private
        if "environment" in used:
            used["environment"] = self._environment(str(used["environment"]))
        if "include" in used:
            origin = f"{self.folder / NAME}: include"
            used["include"] = include_below(self.folder, self.code, used["include"], origin)
        patterns = used.pop("ignore", None)
        ignore = None if patterns is None else ProjectRules(self.folder, tuple(patterns))
        chosen = used.pop("target", target)
        return Filled(chosen, {**options, **used}, tuple(shown), ignore)

    def _merged(self, table: str, callers: Any) -> tuple[dict[str, Any], list[str]]:
        """Return a table with what the caller sets, and which of its keys are the project's."""
        own: dict[str, str] = self.settings.get(table, {})
        if callers is not None:
            arguments.check(table, callers, arguments.MAPPING)
        return {**own, **(callers or {})}, [key for key in own if key not in (callers or {})]

    def _environment(self, name: str) -> Any:
        from retarget.sdk.environments import Environment
        from retarget.sdk.local_paths import is_folder, with_extras

        path = self.folder / name
        if path.is_file() or is_folder(name, self.folder) or with_extras(name, self.folder):
            return Environment.from_file(path)
        if "/" in name or name.endswith((".yml", ".yaml", ".txt", ".toml")):
            raise Invalid(f"{self.folder / NAME}: environment: the file {path} does not exist")
        return name


@dataclass(frozen=True, slots=True)
class Filled:
    """A request with the settings of its project, and which of its values those are."""

    target: str | None
    options: Mapping[str, Any]
    project_settings: tuple[str, ...] = ()
    ignore: ProjectRules | None = None


def fill_from_project(folder: Path, target: str | None, options: Mapping[str, Any]) -> Filled:
    """Apply the project's settings, those of the profile first, to what the caller did not set."""
    rest = {name: value for name, value in options.items() if name != "profile"}
    project = _load(folder, options.get("profile"))
    return Filled(target, rest) if project is None else project.fill(target, rest)


def _load(folder: Path, profile: str | None) -> Project | None:
    if profile is not None:
        arguments.check("profile", profile, arguments.TEXT)
    for candidate in folders_of_repository(folder):
        path = candidate / NAME
        content = read_settings_file(path)
        if content is not None:
            name = profile or os.environ.get("RETARGET_PROFILE") or None
            return Project(candidate, name, _read(content, str(path), name), folder)
    if profile is not None:
        raise Invalid(
            f"profile: unknown profile {profile!r}; {folder} has no {NAME}", field="profile"
        )
    return None


def folders_of_repository(folder: Path) -> list[Path]:
    """Return the folder and its parents up to the root of the repository that it is in."""
    chain = [folder, *folder.parents]
    for index, candidate in enumerate(chain):
        if os.path.lexists(candidate / ".git"):
            return chain[: index + 1]
    return chain[:1]


def _read(content: bytes, path: str, profile: str | None) -> dict[str, Any]:
    tables = parse_toml(content, path)
    check_keys(tables, [*_RULES, *_MERGED_TABLES, _RESOURCE_TABLE, _PROFILES], path)
    profiles = _table(tables.pop(_PROFILES, {}), f"{path}: {_PROFILES}")
    by_name = {
        name: _settings(_table(value, f"{path}: profiles.{name}"), f"{path}: profiles.{name}")
        for name, value in profiles.items()
    }
    base = _settings(tables, path)
    if profile is None:
        return base
    if profile not in by_name:
        hint = suggest(profile, by_name) if by_name else "it has no profiles"
        raise Invalid(f"{path}: unknown profile {profile!r}; {hint}", field="profile")
    chosen = by_name[profile]
    merged = {name: {**base.get(name, {}), **chosen.get(name, {})} for name in _MERGED_TABLES}
    return {**base, **chosen, **{name: table for name, table in merged.items() if table}}


def _settings(table: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the checked settings of the file or of a profile, resources among them."""
    check_keys(table, [*_RULES, *_MERGED_TABLES, _RESOURCE_TABLE], where)
    resources = _table(table.get(_RESOURCE_TABLE, {}), f"{where}: {_RESOURCE_TABLE}")
    check_keys(resources, _RESOURCE_RULES, f"{where}: {_RESOURCE_TABLE}")
    simple = {name: value for name, value in table.items() if name in _RULES}
    result: dict[str, Any] = {}
    for name, value in {**simple, **resources}.items():
        result[name] = _checked(name, value, where)
    for merged in _MERGED_TABLES:
        items = _table(table.get(merged, {}), f"{where}: {merged}").items()
        if items:
            result[merged] = {key: _string(f"{merged}.{key}", item, where) for key, item in items}
    return result


def _checked(name: str, value: Any, where: str) -> Any:
    rule = {**_RULES, **_RESOURCE_RULES}[name]
    try:
        arguments.check(name, value, rule)
        if name == "memory":
            parse_memory(value)
        if name == "timeout":
            parse_duration(value)
        if name in ("include", "ignore"):
            arguments.strings(name, value, rule[1])
        if name == "keep":
            arguments.keep(value)
    except Invalid as error:
        raise Invalid(f"{where}: {error}", field=name) from None
    return value


def _string(name: str, value: object, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        field = name.partition(".")[0]
        raise Invalid(f"{where}: {name} is not a string or a number", field=field)
    return str(value)


def _shown(value: object) -> str:
    """Return a value for people: `data/, models/` for a list."""
    if isinstance(value, list):
        return ", ".join(str(item) for item in cast("list[object]", value))
    return str(value)


def _table(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Invalid(f"{where} is not a table")
    return dict(cast("dict[str, Any]", value))


_RULES = {
    "target": arguments.TEXT,
    "environment": arguments.TEXT,
    "experiment": arguments.TEXT,
    "retries": arguments.COUNT,
    "timeout": arguments.DURATION,
    "priority": arguments.COUNT,
    "include": ((list,), "a list of paths and patterns, such as ['data/', '*.csv']"),
    "ignore": ((list,), "a list of patterns as in .gitignore, such as ['*.bin']"),
    "keep": ((str, list), "'none', 'all' or a list of patterns, such as ['*.pt']"),
}
_RESOURCE_RULES = {
    "cpus": arguments.NUMBER,
    "memory": arguments.MEMORY,
    "gpus": arguments.COUNT,
    "nodes": arguments.COUNT,
    "processes_per_node": arguments.COUNT,
}
