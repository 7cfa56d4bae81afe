"""Environments as users write them, read and put into the one form that a server takes."""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

from retarget.core.errors import Invalid
from retarget.core.names import check_name

_Path = str | os.PathLike[str]
_CONDA_KEYS = ("name", "channels", "dependencies", "prefix")


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What a job finds around it.

    With packages (a `conda` file, a `requirements` file, a `pyproject` file, a list) it is built
    for the job, once a machine, and `python` is the version wanted. Without, the job runs with
    the interpreter at the path `python`, or with the one that is running here.
    """

    python: _Path | None = None
    conda: _Path | None = None
    requirements: _Path | None = None
    pyproject: _Path | None = None
    packages: Sequence[str] = ()
    name: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.packages, str):
            raise _wrong("packages", f"is a list; write packages=[{self.packages!r}]")
        object.__setattr__(self, "packages", tuple(self.packages))
        if self.name is not None:
            check_name(self.name)

    @classmethod
    def from_file(cls, path: _Path, *, python: str | None = None, name: str | None = None) -> Self:
        """Take a conda file (.yml, .yaml), a requirements file (.txt) or a pyproject (.toml)."""
        match Path(path).suffix.lower():
            case ".yml" | ".yaml":
                return cls(conda=path, python=python, name=name)
            case ".txt":
                return cls(requirements=path, python=python, name=name)
            case ".toml":
                return cls(pyproject=path, python=python, name=name)
            case _:
                raise Invalid(
                    f"{path}: what is it? name a conda file .yml, a requirements file .txt "
                    "or a pyproject .toml",
                    field="environment",
                )

    def to_json(self) -> dict[str, Any]:
        """Read the files and return the definition; Invalid names file, line and what to mend."""
        named = {"name": self.name} if self.name is not None else {}
        if not self._is_built():
            path = _interpreter(self.python)
            return {"kind": "user", "python": path, "prefer": sys.executable, **named}
        return {"kind": "system", **self._wanted().to_json(), "name": self.name}

    def _is_built(self) -> bool:
        given = (self.conda, self.requirements, self.pyproject)
        return bool(self.packages) or any(path is not None for path in given)

    def _wanted(self) -> "_Wanted":
        wanted = _Wanted()
        if self.python is not None:
            version = _python_version("python", os.fspath(self.python))
            wanted += _Wanted(pythons=(("python", version),) if version else ())
        if self.conda is not None:
            wanted += _read_conda(Path(self.conda))
        if self.requirements is not None:
            wanted += _read_requirements(Path(self.requirements))
        if self.pyproject is not None:
            wanted += _read_pyproject(Path(self.pyproject))
        lines = (_Line("packages", _checked_text("packages", text)) for text in self.packages)
        return wanted + _from_lines(lines, Path())


def _interpreter(python: _Path | None) -> str | None:
    if python is None:
        return None
    path = os.fspath(python)
    if re.fullmatch(r"[<>=!~\s]*\d[\d.,<>=!~*\s]*", path):
        raise _wrong(
            "python",
            f"{path!r} is a version, which goes with packages; without packages name the "
            "interpreter's path",
        )
    return path


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What the files ask for, gathered; each Python version with where it was asked for."""

    pythons: tuple[tuple[str, str], ...] = ()
    channels: tuple[str, ...] = ()
    conda: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    pip: tuple[str, ...] = ()

    def __add__(self, other: "_Wanted") -> "_Wanted":
        return _Wanted(
            self.pythons + other.pythons,
            self.channels + other.channels,
            self.conda + other.conda,
            self.options + other.options,
            self.pip + other.pip,
        )

    def to_json(self) -> dict[str, Any]:
        conda = sorted(set(self.conda))
        channels = list(dict.fromkeys(self.channels)) or ["conda-forge"]
        return {
            "python": _one_python(self.pythons),
            "channels": channels if conda else [],
            "conda": conda,
            "pip": [*dict.fromkeys(self.options), *sorted(set(self.pip))],
        }


def _one_python(asked: Sequence[tuple[str, str]]) -> str | None:
    """Return what satisfies all: a version if one was named, else the ranges together."""
    from packaging.specifiers import SpecifierSet

    if not asked:
        return None
    versions = [(where, text) for where, text in asked if text[0].isdigit()]
    ranges = [(where, text) for where, text in asked if not text[0].isdigit()]
    if not versions:
        return str(SpecifierSet(",".join(text for _, text in ranges))) or None
    where, closest = max(versions, key=lambda version: len(version[1]))
    for other, text in versions:
        if not f"{closest}.".startswith(f"{text}."):
            raise _two_pythons(where, closest, other, text)
    for other, text in ranges:
        if not _may_be(closest, text):
            raise _two_pythons(where, closest, other, text)
    return closest


def _may_be(version: str, wanted: str) -> bool:
    """Tell whether some release of `version`, such as 3.11, is in the range."""
    from packaging.specifiers import SpecifierSet

    releases = [version, *(f"{version}.{number}" for number in range(100))]
    return any(SpecifierSet(wanted).contains(release) for release in releases)


def _two_pythons(where: str, version: str, other: str, text: str) -> Invalid:
    return _wrong(where, f"asks for Python {version}, but {other} for {text}; make them agree")


def _python_version(where: str, text: str) -> str | None:
    """Return `3.11` for any way to write just that, the sorted range otherwise; None for any."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    plain = re.fullmatch(r"(?:={1,3})?(\d+(?:\.\d+)*)(?:\.\*)?", re.sub(r"\s+", "", text))
    if plain:
        return plain[1]
    try:
        return str(SpecifierSet(text)) or None
    except InvalidSpecifier:
        raise _wrong(where, f"{text!r} is not a Python version; write 3.11 or >=3.10") from None


# -- conda files ------------------------------------------------------------------------------


def _read_conda(path: Path) -> _Wanted:
    found = _mapping(path, _yaml(path))
    if "variables" in found:
        raise _wrong(f"{path}: variables", "are not taken from the file; set them with --set-env")
    for key in found:
        if key not in _CONDA_KEYS:
            raise _wrong(f"{path}: {key!r}", f"is not known; known are {', '.join(_CONDA_KEYS)}")
    if not isinstance(found.get("name", ""), str | None):
        raise _wrong(f"{path}: name", "must be a text")
    channels = _texts(f"{path}: channels", found.get("channels"))
    wanted = _Wanted(channels=tuple(name for name in channels if name != "nodefaults"))
    dependencies = _list(f"{path}: dependencies", found.get("dependencies"))
    if not dependencies:
        raise _wrong(f"{path}: dependencies", "is empty; list packages there")
    for number, item in enumerate(dependencies, 1):
        wanted += _conda_item(path, f"{path}: dependencies, item {number}", item)
    return wanted


def _conda_item(path: Path, where: str, item: object) -> _Wanted:
    if isinstance(item, str):
        return _conda_package(where, item)
    if isinstance(item, dict) and list(cast("dict[object, object]", item)) == ["pip"]:
        lines = _texts(f"{where}: pip", cast("dict[str, object]", item)["pip"])
        return _from_lines((_Line(f"{where}: pip", text) for text in lines), path.parent)
    raise _wrong(where, f"{item!r} is neither a package such as numpy=1.26 nor a `pip:` list")


def _conda_package(where: str, text: str) -> _Wanted:
    from retarget.core.conda import parse_spec

    try:
        spec = parse_spec(text)
    except Invalid as error:
        raise _wrong(where, str(error)) from error
    if spec.name == "pip":
        return _Wanted()
    if spec.name != "python":
        return _Wanted(conda=(str(spec),))
    if spec.version is None:
        return _Wanted()
    version = _python_version(where, spec.version)
    return _Wanted(pythons=((where, version),) if version else ())


def _yaml(path: Path) -> object:
    import yaml

    try:
        return yaml.safe_load(_text(path))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" line {mark.line + 1}" if mark is not None else ""
        raise _wrong(f"{path}{line}", f"is not YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _wrong(str(path), f"is not YAML: {error}") from error


# -- pyproject files --------------------------------------------------------------------------


def _read_pyproject(path: Path) -> _Wanted:
    project = _project(path)
    if "dependencies" in _texts(f"{path}: project.dynamic", project.get("dynamic")):
        raise _wrong(
            f"{path}: project.dependencies",
            "are dynamic, known to the build tool alone; write them to a requirements file",
        )
    where = f"{path}: project.dependencies"
    lines = [_Line(where, text) for text in _texts(where, project.get("dependencies"))]
    wanted = _Wanted(pip=tuple(_requirement(line) for line in lines))
    if "requires-python" in project:
        where = f"{path}: project.requires-python"
        version = _python_version(where, _checked_text(where, project["requires-python"]))
        wanted += _Wanted(pythons=((where, version),) if version else ())
    return wanted


def _project(path: Path) -> Mapping[str, object]:
    import tomllib

    try:
        found = tomllib.loads(_text(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _wrong(str(path), f"is not TOML: {error}") from error
    if "project" not in found:
        raise _wrong(str(path), "has no [project] table, where dependencies are listed")
    return _mapping(f"{path}: project", found["project"])


# -- requirements -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Line:
    where: str
    text: str


@dataclass
class _Gathered:
    """The lines of a requirements file and of all that it includes."""

    options: list[str] = field(default_factory=list[str])
    pip: list[_Line] = field(default_factory=list[_Line])
    constraints: list[_Line] = field(default_factory=list[_Line])


def _read_requirements(path: Path) -> _Wanted:
    gathered = _Gathered()
    _gather_file(gathered, path, gathered.pip, ())
    return _settled(gathered)


def _from_lines(lines: Iterable[_Line], folder: Path) -> _Wanted:
    gathered = _Gathered()
    for line in lines:
        _gather(gathered, line, gathered.pip, (folder / "pip",))
    return _settled(gathered)


def _settled(gathered: _Gathered) -> _Wanted:
    pip = [_requirement(line) for line in gathered.pip]
    return _Wanted(options=tuple(gathered.options), pip=_constrained(pip, gathered.constraints))


def _gather_file(
    gathered: _Gathered, path: Path, into: list[_Line], above: tuple[Path, ...]
) -> None:
    if path.absolute() in above:
        raise _wrong(str(path), "includes itself")
    text = _text(path)
    for number, line in _logical_lines(text):
        _gather(gathered, _Line(f"{path} line {number}", line), into, (*above, path.absolute()))


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Join continued lines and take comments away, as pip does; the number is the first line's."""
    begun, first = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        is_comment = re.match(r"\s*#", line) is not None
        first = first or number
        if line.rstrip("\r").endswith("\\") and not is_comment:
            begun += line.rstrip("\r")[:-1]
            continue
        whole = re.sub(r"(^|\s)#.*$", "", begun + (" " if is_comment else "") + line).strip()
        if whole:
            yield first, whole
        begun, first = "", 0
    if begun.strip():
        yield first, begun.strip()


_LONG = {"-i": "--index-url", "-f": "--find-links", "-r": "--requirement", "-c": "--constraint"}
_WITH_VALUE = (
    "--index-url", "--extra-index-url", "--find-links", "--no-binary", "--only-binary",
    "--trusted-host", "--use-feature",
)  # fmt: skip
_ALONE = ("--no-index", "--pre", "--prefer-binary", "--require-hashes")


def _gather(gathered: _Gathered, line: _Line, into: list[_Line], above: tuple[Path, ...]) -> None:
    """Put a line where it belongs: among the options, or `into`; an include is followed."""
    if not line.text.startswith("-"):
        into.append(line)
        return
    option, value = _option(line)
    if option in ("--requirement", "--constraint"):
        if "://" in value:
            raise _wrong(line.where, f"{value} is elsewhere; fetch it and name the file")
        target = gathered.constraints if option == "--constraint" else into
        _gather_file(gathered, above[-1].parent / value, target, above)
    else:
        gathered.options.append(f"{option} {value}".strip())


def _option(line: _Line) -> tuple[str, str]:
    match = re.fullmatch(r"(-[a-zA-Z]|--[a-z-]+)(?:\s*=\s*|\s*)(.*)", line.text)
    option = _LONG.get(match[1], match[1]) if match else line.text
    value = match[2] if match else ""
    if option in ("-e", "--editable"):
        raise _editable(line.where, value)
    needs_value = option in _WITH_VALUE or option in _LONG.values()
    if not needs_value and option not in _ALONE:
        raise _wrong(
            line.where,
            f"the option {option} is not known; known are -r, -c, "
            f"{', '.join((*_WITH_VALUE, *_ALONE))}",
        )
    if needs_value != bool(value):
        raise _wrong(line.where, f"{option} takes {'a' if needs_value else 'no'} value")
    if option == "--find-links" and "://" not in value and not value.startswith("/"):
        raise _local(line.where, value)
    return option, value


def _requirement(line: _Line) -> str:
    """Return a requirement in the one form that all of its spellings share."""
    text, options = _split_options(line.text)
    if re.match(r"[a-z+]+://", text):
        return " ".join([text, *options])
    if _is_local(text):
        raise _local(line.where, text)
    return " ".join([_normal(line.where, text), *options])


def _split_options(text: str) -> tuple[str, list[str]]:
    words = re.split(r"\s+(?=--[a-z])", text)
    return words[0].strip(), sorted({re.sub(r"^(--[a-z-]+)[=\s]\s*", r"\1=", w) for w in words[1:]})


def _is_local(text: str) -> bool:
    path = re.split(r"[@;\s]", text, maxsplit=1)[0]
    return (
        path.startswith((".", "/", "~"))
        or "/" in path
        or path.endswith((".whl", ".zip", ".tar.gz"))
    )


def _normal(where: str, text: str) -> str:
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        why = str(error).partition("\n")[0]
        raise _wrong(
            where, f"{text!r} is not a requirement ({why}); write numpy, numpy==1.26 or numpy>=1.2"
        ) from None
    if requirement.url is not None and "://" not in requirement.url:
        raise _local(where, requirement.url)
    # not str(requirement): its blanks differ between versions of packaging
    extras = ",".join(sorted(canonicalize_name(extra) for extra in requirement.extras))
    what = f" @ {requirement.url}" if requirement.url else str(requirement.specifier)
    marker = f" ; {requirement.marker}" if requirement.marker else ""
    return canonicalize_name(requirement.name) + (f"[{extras}]" if extras else "") + what + marker


def _constrained(pip: Sequence[str], constraints: Sequence[_Line]) -> tuple[str, ...]:
    """Add each constraint to the requirements it is for."""
    lines = list(pip)
    for constraint in constraints:
        text = _requirement(constraint)
        name = _name(text)
        if name not in map(_name, pip):
            raise _wrong(
                constraint.where,
                f"{text!r} is about a package that no requirement names; a constraint travels "
                "only with one: add it to the requirements",
            )
        lines.append(text)
    return tuple(lines)


def _name(requirement: str) -> str:
    return re.split(r"[^a-z0-9-]", requirement, maxsplit=1)[0]


# -- what any of the files may have wrong -----------------------------------------------------


def _text(path: Path) -> str:
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _wrong(str(path), "is not UTF-8 text") from error
    except OSError as error:
        raise _wrong(str(path), f"cannot be read: {error.strerror}") from error
    if not text.strip():
        raise _wrong(str(path), "is empty")
    return text


def _mapping(where: object, value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise _wrong(str(where), f"must be a table of names and values, not {_kind(value)}")
    return {str(key): item for key, item in cast("dict[object, object]", value).items()}


def _list(where: str, value: object) -> list[object]:
    if value is not None and not isinstance(value, list):
        raise _wrong(where, f"must be a list, not {_kind(value)}")
    return cast("list[object]", value or [])


def _texts(where: str, value: object) -> list[str]:
    return [_checked_text(where, item) for item in _list(where, value)]


def _checked_text(where: str, value: object) -> str:
    if not isinstance(value, str):
        raise _wrong(where, f"{value!r} must be a text, not {_kind(value)}; put it in quotes")
    return value


def _kind(value: object) -> str:
    names: dict[type, str] = {dict: "a table", list: "a list", str: "a text", type(None): "nothing"}
    return names.get(type(value), f"a {type(value).__name__}")


def _local(where: str, text: str) -> Invalid:
    return _wrong(
        where,
        f"{text!r} is a path on this machine, which the target cannot see; put the package into "
        "your code folder and import it from there, or name one that can be downloaded",
    )


def _editable(where: str, value: str) -> Invalid:
    if "://" in value:
        return _wrong(where, f"{value} cannot be editable on a target; write it without -e")
    return _local(where, value)


def _wrong(where: str, what: str) -> Invalid:
    return Invalid(f"{where}: {what}", field="environment")
