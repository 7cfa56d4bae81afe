"""The user's own packages: finds those that an environment requires, and what they require."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from retarget.core.errors import Invalid
from retarget.sdk.code_folder import is_too_much
from retarget.sdk.environment_draft import (
    EnvironmentDraft,
    as_mapping,
    as_strings,
    python_version,
    wrong,
)
from retarget.sdk.local_paths import LocalPath, read_local_path
from retarget.sdk.package_metadata import (
    UNKNOWN_VERSION,
    has_modules,
    import_roots,
    needs_build,
    table,
    version,
)
from retarget.sdk.package_sources import (
    canonical,
    package_folders,
    read_sources,
    read_toml,
    repository,
)
from retarget.sdk.requirements import Line, name_of, read_requirement

_NAME = re.compile(r"""(?:^|[(,])\s*name\s*=\s*["']?([\w.-]+)""", re.MULTILINE)
_ARCHIVES = (".whl", ".zip", ".tar.gz")


@dataclass(frozen=True, slots=True)
class OwnPackage:
    """A package in the code folder. Paths in `roots` are relative to its own folder.

    Other packages are built once per snapshot: `build` installs the package alone,
    `with_dependencies` also what only its build tool knows that it requires.
    """

    source: str  # where it is required
    path: Path
    name: str
    version: str = UNKNOWN_VERSION
    roots: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    entry_points: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Any])
    build: bool = False
    with_dependencies: bool = False
    implicit: bool = False  # nothing requires it: it is only put on the path

    def to_json(self, code: Path) -> dict[str, Any]:
        """Return it with paths relative to the code folder; raise Invalid if it is outside."""
        root = os.path.realpath(code)
        inside = os.path.relpath(os.path.realpath(self.path), root)
        if inside.split(os.sep)[0] == "..":
            raise wrong(
                self.source,
                f"{os.path.normpath(self.path)} is outside of the code folder {code}; "
                f"{_advice_outside(self.path, code)}",
            )
        roots = [os.path.normpath(os.path.join(inside, root)) for root in self.roots]
        fields = {"name": self.name, "version": self.version, "requires": list(self.requires)}
        switches = {
            name: getattr(self, name) for name in ("build", "with_dependencies", "implicit")
        }
        points = {group: dict(names) for group, names in self.entry_points.items()}
        return {"path": inside, "roots": roots, "entry_points": points, **fields, **switches}


@dataclass(frozen=True, slots=True)
class Expanded:
    """A draft with what the user's own packages require, without these packages themselves."""

    draft: EnvironmentDraft
    packages: tuple[OwnPackage, ...] = ()
    warnings: tuple[str, ...] = ()  # where a dependency comes from, if that may surprise


def with_own_packages(draft: EnvironmentDraft, code: Path | None) -> Expanded:
    """Read the packages that a draft names by path, and those that they name.

    No index is asked for them, nor for a requirement with the name of a package in the code folder
    or in the repository of one of them.
    """
    if not draft.paths and (code is None or not draft.pip):
        return Expanded(draft)
    reader = _Reader(code)
    for path in draft.paths:
        reader.add(path)
    for line in draft.pip:
        reader.add_named(f"requirement {line}", line)
    own = reader.packages
    pip = [line for line in (*draft.pip, *reader.requirements()) if name_of(line) not in own]
    pythons = (*draft.pythons, *reader.pythons)
    expanded = replace(draft, pip=tuple(pip), pythons=pythons)
    return Expanded(expanded, tuple(own.values()), tuple(dict.fromkeys(reader.warnings)))


def with_implicit(packages: tuple[OwnPackage, ...], code: Path) -> tuple[OwnPackage, ...]:
    """Add the package of a code folder with a src layout, unless it is one of `packages`."""
    package = _implicit(code)
    if package is None or any(package.name == own.name for own in packages):
        return packages
    if any(os.path.realpath(own.path) == os.path.realpath(code) for own in packages):
        return packages
    return (*packages, package)


def _implicit(code: Path) -> OwnPackage | None:
    """Return the package of a code folder with a src layout, which nothing may require."""
    if not has_modules(code / "src"):
        return None
    if not os.path.isfile(code / "pyproject.toml"):
        is_package = any(os.path.isfile(code / name) for name in ("setup.py", "setup.cfg"))
        package = OwnPackage(str(code), code, code.name, roots=("src",))
        return replace(package, implicit=True) if is_package else None
    try:
        content = read_toml(code / "pyproject.toml")
        package = _static(LocalPath(str(code), code), content, table(content, "project"))
    except Invalid:  # this job does not need it
        return None
    package = package or OwnPackage(str(code), code, code.name)
    return replace(
        package, roots=("src",), build=False, with_dependencies=False, implicit=True, requires=()
    )


class _Reader:
    """Reads packages, each once, and follows what they require."""

    def __init__(self, code: Path | None) -> None:
        self.packages: dict[str, OwnPackage] = {}
        self.pythons: list[tuple[str, str]] = []
        self.warnings: list[str] = []
        self._code = code
        self._nearby: dict[Path, dict[str, OwnPackage]] = {}
        self._contents: dict[str, dict[str, Any]] = {}
        self._extras: dict[str, set[str]] = {}
        self._lines: list[str] = []

    def add(self, path: LocalPath) -> None:
        """Read a package, unless it has been read, and what it and these extras require."""
        package, content = _read(path)
        if package.name not in self.packages:
            self.packages[package.name] = package
            self._contents[package.name] = content
            self._extras[package.name] = set()
            self._add_python(package, content)
            self._follow(package, package.requires)
        elif os.path.realpath(self.packages[package.name].path) != os.path.realpath(path.path):
            other = self.packages[package.name].path
            raise wrong(path.source, f"{path.path} and {other} are both named {package.name}")
        self._add_extras(self.packages[package.name], path.extras)

    def add_named(self, source: str, line: str, folder: Path | None = None) -> bool:
        """Read the user's own package that a requirement names; return whether there is one."""
        name = name_of(line)
        package = None if name in self.packages or " @ " in line else self._near(name, folder)
        if package is None:
            return False
        path = self._shown(package.path)
        if not _allows(line, package.version):
            self.warnings.append(
                f"{line} is downloaded, because your own package {name} in {path} has version "
                f"{package.version}"
            )
            return False
        self.warnings.append(f"{name} is your own package in {path}; it is not downloaded")
        self.add(LocalPath(source, package.path, _extras(line)))
        return True

    def requirements(self) -> list[str]:
        """Return what must be downloaded, including the extras of these packages."""
        for line in list(self._lines):
            if name_of(line) in self.packages:
                self._add_extras(self.packages[name_of(line)], _extras(line))
        return list(dict.fromkeys(self._lines))

    def _add_extras(self, package: OwnPackage, extras: frozenset[str]) -> None:
        optional = table(self._contents[package.name], "project", "optional-dependencies")
        lists = {re.sub(r"[-_.]+", "-", name).lower(): lines for name, lines in optional.items()}
        for extra in sorted(extras - self._extras[package.name]):
            self._extras[package.name].add(extra)
            if extra not in lists:
                if not (package.with_dependencies or package.path.is_file()):
                    guess = _similar(extra, lists)
                    raise wrong(package.source, f"{package.name} has no extra {extra!r}{guess}")
                continue
            source = f"{package.path}: optional-dependencies.{extra}"
            self._follow(package, tuple(as_strings(source, lists[extra])))

    def _follow(self, package: OwnPackage, requires: Sequence[str]) -> None:
        sources = read_sources(package.path, self._contents[package.name])
        source = f"{package.path}: dependencies of {package.name}"
        for text in requires:
            path = read_local_path(source, text, package.path)
            line = "" if path else read_requirement(Line(source, text))
            name = name_of(line)
            if path is None and name in sources.folders:
                path = LocalPath(source, sources.folders[name], _extras(line))
            if path is not None:
                self.add(path)
            elif name in sources.addresses:
                text = re.split("[<>=!~ ;]", line, maxsplit=1)[0]
                address = Line(source, f"{text} @ {sources.addresses[name]}")
                self._lines.append(read_requirement(address))
            elif not self.add_named(source, line, package.path):
                self._warn_of_source(package, name, sources.ignored)
                self._lines.append(line)

    def _warn_of_source(self, package: OwnPackage, name: str, ignored: Mapping[str, str]) -> None:
        if name in ignored:
            self.warnings.append(
                f"{name} is downloaded from the default index, because its source "
                f"({ignored[name]}) in {self._shown(package.path / 'pyproject.toml')} cannot be "
                "used; name its address in a requirements file instead"
            )

    def _shown(self, path: Path) -> str:
        inside = self._code is not None and path.is_relative_to(self._code)
        return os.path.relpath(path, self._code) if inside else str(path)

    def _near(self, name: str, folder: Path | None) -> OwnPackage | None:
        """Return the package of that name in the code folder, or in the repository of `folder`."""
        roots = [self._code] if self._code else []
        roots += [root for start in (folder, self._code) if start and (root := repository(start))]
        for root in roots:
            if root not in self._nearby:
                self._nearby[root] = _packages_in(root)
            if name in self._nearby[root]:
                return self._nearby[root][name]
        return None

    def _add_python(self, package: OwnPackage, content: Mapping[str, Any]) -> None:
        required = table(content, "project").get("requires-python")
        if isinstance(required, str):
            source = f"{package.path}: requires-python"
            python = python_version(source, required)
            self.pythons += [(source, python)] if python else []


def _packages_in(root: Path) -> dict[str, OwnPackage]:
    packages: dict[str, OwnPackage] = {}
    for folder in package_folders(root):
        with suppress(Invalid):  # this job does not need that package
            package, _ = _read(LocalPath(str(folder), folder))
            packages.setdefault(package.name, package)
    return packages


def _allows(line: str, version: str) -> bool:
    """Return whether a requirement can be the user's own package of this version."""
    from packaging.requirements import Requirement
    from packaging.specifiers import InvalidSpecifier
    from packaging.version import InvalidVersion

    specifier = Requirement(re.split(r"\s+(?=--[a-z])", line)[0]).specifier
    with suppress(InvalidVersion, InvalidSpecifier):
        return version == UNKNOWN_VERSION or specifier.contains(version, prereleases=True)
    return True


def _advice_outside(package: Path, code: Path) -> str:
    both = os.path.commonpath([os.path.realpath(package), os.path.realpath(code)])
    if is_too_much(Path(both)):
        return "copy the package into the code folder"
    return f"send a folder that contains both: --code {os.path.relpath(both)}"


def _similar(extra: str, extras: Iterable[str]) -> str:
    from difflib import get_close_matches

    matches = get_close_matches(extra, extras, n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def _extras(line: str) -> frozenset[str]:
    extras = re.match(r"[a-z0-9-]+\[([^\]]*)\]", line)
    return frozenset(extras[1].split(",") if extras else ())


def _read(path: LocalPath) -> tuple[OwnPackage, dict[str, Any]]:
    if path.path.name.endswith(_ARCHIVES) and os.path.isfile(path.path):
        return _archive(path), {}
    if os.path.isfile(path.path / "pyproject.toml"):
        content = read_toml(path.path / "pyproject.toml")
        package = _static(path, content, table(content, "project"))
        if package is not None:
            return package, content
        name = table(content, "tool", "poetry").get("name") or path.path.name
        return _unknown(path, str(name)), content
    if not any(os.path.isfile(path.path / name) for name in ("setup.py", "setup.cfg")):
        exists = os.path.isdir(path.path)
        problem = "has neither a pyproject.toml nor a setup.py" if exists else "was not found"
        raise wrong(path.source, f"{path.path} {problem}; name the folder of a package")
    texts = [_optional_text(path.path / name) for name in ("setup.cfg", "setup.py")]
    names = [_NAME.search(text) for text in texts]
    return _unknown(path, next((match[1] for match in names if match), path.path.name)), {}


def _static(
    path: LocalPath, content: Mapping[str, Any], project: Mapping[str, Any]
) -> OwnPackage | None:
    """Return a package from its file; None if only its build tool knows what it requires."""
    source = f"{path.path / 'pyproject.toml'}: project"
    dynamic = as_strings(f"{source}.dynamic", project.get("dynamic"))
    if "name" not in project or "dependencies" in dynamic:
        return None
    roots = import_roots(path.path, content)
    points = {"console_scripts": project.get("scripts"), "gui_scripts": project.get("gui-scripts")}
    points |= as_mapping(f"{source}.entry-points", project.get("entry-points", {}))
    build = needs_build(path.path, content) or bool({"scripts", "entry-points"} & {*dynamic})
    return OwnPackage(
        path.source,
        path.path,
        canonical(str(project["name"])),
        version(path.path, content, roots),
        () if build else roots,
        tuple(as_strings(f"{source}.dependencies", project.get("dependencies"))),
        {}
        if build
        else {group: _points(source, names) for group, names in points.items() if names},
        build=build,
    )


def _points(source: str, names: object) -> dict[str, str]:
    return {name: str(value) for name, value in as_mapping(source, names).items()}


def _unknown(path: LocalPath, name: str) -> OwnPackage:
    return OwnPackage(path.source, path.path, canonical(name), build=True, with_dependencies=True)


def _archive(path: LocalPath) -> OwnPackage:
    """Return a wheel with what it requires. A source archive must be built to know that."""
    name = path.path.name.partition("-")[0]
    if path.path.suffix != ".whl":
        return _unknown(path, re.sub(r"-\d.*", "", path.path.name))
    requires = tuple(_wheel_requires(path))
    return OwnPackage(path.source, path.path, canonical(name), requires=requires, build=True)


def _wheel_requires(path: LocalPath) -> Iterator[str]:
    import zipfile
    from email.parser import BytesParser

    try:
        with zipfile.ZipFile(path.path) as archive:
            names = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
            metadata = BytesParser().parsebytes(archive.read(names[0]))
    except (OSError, zipfile.BadZipFile, IndexError) as error:
        raise wrong(path.source, f"{path.path} is not a wheel") from error
    for line in metadata.get_all("Requires-Dist") or ():
        extra = re.search(r"""extra\s*==\s*["']([^"']+)["']""", str(line))
        if extra is None:
            yield str(line)


def _optional_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError):
        return ""
