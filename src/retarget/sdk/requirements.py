"""Reads requirements in the format of pip: files, includes, options and single lines."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from retarget.core.credentials import credentials_refused, has_credentials
from retarget.core.errors import Invalid
from retarget.sdk.environment_draft import EnvironmentDraft, read_text, wrong
from retarget.sdk.local_paths import LocalPath, is_local, read_local_path


@dataclass(frozen=True, slots=True)
class Line:
    source: str  # the file and the line number
    text: str


@dataclass
class _Collected:
    """The lines of a requirements file and of all files that it includes."""

    options: list[str] = field(default_factory=list[str])
    pip: list[Line] = field(default_factory=list[Line])
    constraints: list[Line] = field(default_factory=list[Line])
    paths: list[LocalPath] = field(default_factory=list[LocalPath])


def read_requirements(path: Path) -> EnvironmentDraft:
    collected = _Collected()
    _read_file(collected, path, collected.pip, ())
    return _to_draft(collected)


def from_lines(lines: Iterable[Line], folder: Path) -> EnvironmentDraft:
    collected = _Collected()
    for line in lines:
        _add(collected, line, collected.pip, (folder / "pip",))
    return _to_draft(collected)


def _to_draft(collected: _Collected) -> EnvironmentDraft:
    pip = [read_requirement(line) for line in collected.pip]
    return EnvironmentDraft(
        options=tuple(collected.options),
        pip=_constrained(pip, collected.constraints),
        paths=tuple(collected.paths),
    )


def _read_file(
    collected: _Collected, path: Path, lines: list[Line], parents: tuple[Path, ...]
) -> None:
    if path.absolute() in parents:
        raise wrong(str(path), "includes itself")
    text = read_text(path)
    for number, line in _logical_lines(text):
        _add(collected, Line(f"{path} line {number}", line), lines, (*parents, path.absolute()))


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Join continued lines and remove comments, as pip does; yield the first line's number too."""
    incomplete, first = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        is_comment = re.match(r"\s*#", line) is not None
        first = first or number
        if line.rstrip("\r").endswith("\\") and not is_comment:
            incomplete += line.rstrip("\r")[:-1]
            continue
        complete = re.sub(
            r"(^|\s)#.*$", "", incomplete + (" " if is_comment else "") + line
        ).strip()
        if complete:
            yield first, complete
        incomplete, first = "", 0
    if incomplete.strip():
        yield first, incomplete.strip()


_LONG_OPTIONS = {
    "-i": "--index-url",
    "-f": "--find-links",
    "-r": "--requirement",
    "-c": "--constraint",
}
_OPTIONS_WITH_VALUE = (
    "--index-url", "--extra-index-url", "--find-links", "--no-binary", "--only-binary",
    "--trusted-host", "--use-feature",
)  # fmt: skip
_FLAGS = ("--no-index", "--pre", "--prefer-binary", "--require-hashes")


def _add(collected: _Collected, line: Line, lines: list[Line], parents: tuple[Path, ...]) -> None:
    """Add a line to the options or to `lines`; read the file of an include."""
    if has_credentials(line.text):
        raise wrong(line.source, credentials_refused(line.text))
    editable = re.fullmatch(r"(?:-e|--editable)(?:\s*=\s*|\s*)(\S.*)", line.text)
    text = editable[1] if editable else line.text
    if lines is collected.pip and not text.startswith("-"):
        path = read_local_path(line.source, text, parents[-1].parent)
        if path is not None:
            collected.paths.append(path)
            return
    if not line.text.startswith("-"):
        lines.append(line)
        return
    option, value = _option(line)
    if option in ("--requirement", "--constraint"):
        if "://" in value:
            raise wrong(line.source, f"{value} is a URL; download it and name the file")
        included = collected.constraints if option == "--constraint" else lines
        _read_file(collected, parents[-1].parent / value, included, parents)
    else:
        collected.options.append(f"{option} {value}".strip())


def _option(line: Line) -> tuple[str, str]:
    match = re.fullmatch(r"(-[a-zA-Z]|--[a-z-]+)(?:\s*=\s*|\s*)(.*)", line.text)
    option = _LONG_OPTIONS.get(match[1], match[1]) if match else line.text
    value = match[2] if match else ""
    if option in ("-e", "--editable"):
        raise _editable(line.source, value)
    needs_value = option in _OPTIONS_WITH_VALUE or option in _LONG_OPTIONS.values()
    if not needs_value and option not in _FLAGS:
        raise wrong(
            line.source,
            f"unknown option {option}; options are -r, -c, "
            f"{', '.join((*_OPTIONS_WITH_VALUE, *_FLAGS))}",
        )
    if needs_value != bool(value):
        raise wrong(line.source, f"{option} takes {'a' if needs_value else 'no'} value")
    if option == "--find-links" and "://" not in value and not value.startswith("/"):
        raise _local(line.source, value)
    return option, value


def read_requirement(line: Line) -> str:
    """Return a requirement in its normal form, which all its spellings share."""
    text, options = _split_options(line.text)
    if re.match(r"[a-z+]+://", text):
        return " ".join([text, *options])
    if is_local(text):
        raise _local(line.source, text)
    return " ".join([_normalized(line.source, text), *options])


def _split_options(text: str) -> tuple[str, list[str]]:
    requirement, *options = re.split(r"\s+(?=--[a-z])", text)
    normalized = {re.sub(r"^(--[a-z-]+)[=\s]\s*", r"\1=", option) for option in options}
    return requirement.strip(), sorted(normalized)


def _normalized(source: str, text: str) -> str:
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        why = str(error).partition("\n")[0]
        raise wrong(
            source, f"{text!r} is not a requirement ({why}); write numpy, numpy==1.26 or numpy>=1.2"
        ) from None
    if requirement.url is not None and "://" not in requirement.url:
        raise _local(source, requirement.url)
    # not str(requirement): its spaces differ between versions of packaging
    extras = ",".join(sorted(canonicalize_name(extra) for extra in requirement.extras))
    version = f" @ {requirement.url}" if requirement.url else str(requirement.specifier)
    marker = f" ; {requirement.marker}" if requirement.marker else ""
    return (
        canonicalize_name(requirement.name) + (f"[{extras}]" if extras else "") + version + marker
    )


def _constrained(pip: Sequence[str], constraints: Sequence[Line]) -> tuple[str, ...]:
    """Add the constraints; raise Invalid for one whose package is not required."""
    result = list(pip)
    for constraint in constraints:
        text = read_requirement(constraint)
        name = name_of(text)
        if name not in map(name_of, pip):
            raise wrong(
                constraint.source,
                f"{text!r} constrains a package that is not required; add the package to the "
                "requirements, or remove the constraint",
            )
        result.append(text)
    return tuple(result)


def name_of(requirement: str) -> str:
    """Return the name of a requirement in its normal form."""
    return re.split(r"[^a-z0-9-]", requirement, maxsplit=1)[0]


def _local(source: str, text: str) -> Invalid:
    return wrong(
        source,
        f"{text!r} is a path on this machine, which the target cannot read; put the package into "
        "your code folder and import it from there, or name a package that can be downloaded",
    )


def _editable(source: str, value: str) -> Invalid:
    if "://" in value:
        return wrong(source, f"{value} cannot be editable on a target; remove the -e")
    return _local(source, value)
