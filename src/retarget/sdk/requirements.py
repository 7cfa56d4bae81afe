"""Requirements as pip writes them: files, includes, options and single lines."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from retarget.core.errors import Invalid
from retarget.sdk.wanted import Wanted, read_text, wrong


@dataclass(frozen=True, slots=True)
class Line:
    where: str
    text: str


@dataclass
class _Gathered:
    """The lines of a requirements file and of all that it includes."""

    options: list[str] = field(default_factory=list[str])
    pip: list[Line] = field(default_factory=list[Line])
    constraints: list[Line] = field(default_factory=list[Line])


def read_requirements(path: Path) -> Wanted:
    gathered = _Gathered()
    _gather_file(gathered, path, gathered.pip, ())
    return _settled(gathered)


def from_lines(lines: Iterable[Line], folder: Path) -> Wanted:
    gathered = _Gathered()
    for line in lines:
        _gather(gathered, line, gathered.pip, (folder / "pip",))
    return _settled(gathered)


def _settled(gathered: _Gathered) -> Wanted:
    pip = [read_requirement(line) for line in gathered.pip]
    return Wanted(options=tuple(gathered.options), pip=_constrained(pip, gathered.constraints))


def _gather_file(
    gathered: _Gathered, path: Path, into: list[Line], above: tuple[Path, ...]
) -> None:
    if path.absolute() in above:
        raise wrong(str(path), "includes itself")
    text = read_text(path)
    for number, line in _logical_lines(text):
        _gather(gathered, Line(f"{path} line {number}", line), into, (*above, path.absolute()))


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


def _gather(gathered: _Gathered, line: Line, into: list[Line], above: tuple[Path, ...]) -> None:
    """Put a line where it belongs: among the options, or `into`; an include is followed."""
    if not line.text.startswith("-"):
        into.append(line)
        return
    option, value = _option(line)
    if option in ("--requirement", "--constraint"):
        if "://" in value:
            raise wrong(line.where, f"{value} is elsewhere; fetch it and name the file")
        target = gathered.constraints if option == "--constraint" else into
        _gather_file(gathered, above[-1].parent / value, target, above)
    else:
        gathered.options.append(f"{option} {value}".strip())


def _option(line: Line) -> tuple[str, str]:
    match = re.fullmatch(r"(-[a-zA-Z]|--[a-z-]+)(?:\s*=\s*|\s*)(.*)", line.text)
    option = _LONG.get(match[1], match[1]) if match else line.text
    value = match[2] if match else ""
    if option in ("-e", "--editable"):
        raise _editable(line.where, value)
    needs_value = option in _WITH_VALUE or option in _LONG.values()
    if not needs_value and option not in _ALONE:
        raise wrong(
            line.where,
            f"the option {option} is not known; known are -r, -c, "
            f"{', '.join((*_WITH_VALUE, *_ALONE))}",
        )
    if needs_value != bool(value):
        raise wrong(line.where, f"{option} takes {'a' if needs_value else 'no'} value")
    if option == "--find-links" and "://" not in value and not value.startswith("/"):
        raise _local(line.where, value)
    return option, value


def read_requirement(line: Line) -> str:
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
        raise wrong(
            where, f"{text!r} is not a requirement ({why}); write numpy, numpy==1.26 or numpy>=1.2"
        ) from None
    if requirement.url is not None and "://" not in requirement.url:
        raise _local(where, requirement.url)
    # not str(requirement): its blanks differ between versions of packaging
    extras = ",".join(sorted(canonicalize_name(extra) for extra in requirement.extras))
    what = f" @ {requirement.url}" if requirement.url else str(requirement.specifier)
    marker = f" ; {requirement.marker}" if requirement.marker else ""
    return canonicalize_name(requirement.name) + (f"[{extras}]" if extras else "") + what + marker


def _constrained(pip: Sequence[str], constraints: Sequence[Line]) -> tuple[str, ...]:
    """Add each constraint to the requirements it is for."""
    lines = list(pip)
    for constraint in constraints:
        text = read_requirement(constraint)
        name = _name(text)
        if name not in map(_name, pip):
            raise wrong(
                constraint.where,
                f"{text!r} is about a package that no requirement names; a constraint travels "
                "only with one: add it to the requirements",
            )
        lines.append(text)
    return tuple(lines)


def _name(requirement: str) -> str:
    return re.split(r"[^a-z0-9-]", requirement, maxsplit=1)[0]


# -- what any of the files may have wrong -----------------------------------------------------


def _local(where: str, text: str) -> Invalid:
    return wrong(
        where,
        f"{text!r} is a path on this machine, which the target cannot see; put the package into "
        "your code folder and import it from there, or name one that can be downloaded",
    )


def _editable(where: str, value: str) -> Invalid:
    if "://" in value:
        return wrong(where, f"{value} cannot be editable on a target; write it without -e")
    return _local(where, value)
