"""Collects the requirements of an environment from its files, and checks their values."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from retarget.core.credentials import credentials_refused, has_credentials
from retarget.core.errors import Invalid
from retarget.sdk.local_paths import LocalPath

_MAX_BYTES = 10_000_000  # of a file that lists packages


@dataclass(frozen=True, slots=True)
class EnvironmentDraft:
    """Collected requirements. `pythons` holds pairs of a source and the version it requires."""

    pythons: tuple[tuple[str, str], ...] = ()
    channels: tuple[str, ...] = ()
    conda: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    pip: tuple[str, ...] = ()
    conda_from_pypi: bool = False
    paths: tuple[LocalPath, ...] = ()  # of the user's own packages

    def __add__(self, other: "EnvironmentDraft") -> "EnvironmentDraft":
        return EnvironmentDraft(
            self.pythons + other.pythons,
            self.channels + other.channels,
            self.conda + other.conda,
            self.options + other.options,
            self.pip + other.pip,
            self.conda_from_pypi or other.conda_from_pypi,
            self.paths + other.paths,
        )

    def to_json(self) -> dict[str, Any]:
        for line in (*self.channels, *self.conda, *self.options, *self.pip):
            if has_credentials(line):
                raise wrong("environment", credentials_refused(line))
        conda = sorted(set(self.conda))
        channels = list(dict.fromkeys(self.channels)) or ["conda-forge"]
        return {
            "python": _one_python(self.pythons),
            "channels": channels if conda else [],
            "conda": conda,
            "pip": [*dict.fromkeys(self.options), *sorted(set(self.pip))],
            **({"conda_from_pypi": True} if conda and self.conda_from_pypi else {}),
        }


def _one_python(required: Sequence[tuple[str, str]]) -> str | None:
    """Return what satisfies all: a version if one is required, else all ranges together."""
    from packaging.specifiers import SpecifierSet

    if not required:
        return None
    versions = [(source, text) for source, text in required if text[0].isdigit()]
    ranges = [(source, text) for source, text in required if not text[0].isdigit()]
    if not versions:
        return str(SpecifierSet(",".join(text for _, text in ranges))) or None
    source, most_exact = max(versions, key=lambda version: len(version[1]))
    for other, text in versions:
        if not f"{most_exact}.".startswith(f"{text}."):
            raise _contradiction(source, most_exact, other, text)
    for other, text in ranges:
        if not _overlaps(most_exact, text):
            raise _contradiction(source, most_exact, other, text)
    return most_exact


def _overlaps(version: str, python_range: str) -> bool:
    """Whether some release of `version`, such as 3.11, is in the range."""
    from packaging.specifiers import SpecifierSet

    releases = [version, *(f"{version}.{number}" for number in range(100))]
    return any(SpecifierSet(python_range).contains(release) for release in releases)


def _contradiction(source: str, version: str, other: str, text: str) -> Invalid:
    return wrong(source, f"requires Python {version}, but {other} requires {text}; make them agree")


def python_version(source: str, text: str) -> str | None:
    """Return `3.11` for all its spellings, else the sorted range; None if any version will do."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    plain = re.fullmatch(r"(?:={1,3})?(\d+(?:\.\d+)*)(?:\.\*)?", re.sub(r"\s+", "", text))
    if plain:
        return plain[1]
    try:
        return str(SpecifierSet(text)) or None
    except InvalidSpecifier:
        raise wrong(source, f"{text!r} is not a Python version; write 3.11 or >=3.10") from None


def read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise wrong(str(path), f"has more than {_MAX_BYTES:,} bytes")
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise wrong(str(path), "is not UTF-8 text") from error
    except (OSError, ValueError) as error:  # ValueError: the name contains a NUL
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise wrong(str(path), f"cannot be read: {why}") from error
    if not text.strip():
        raise wrong(str(path), "is empty")
    return text


def as_mapping(source: object, value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise wrong(str(source), f"must be a table of names and values, not {kind_of(value)}")
    return {str(key): item for key, item in cast("dict[object, object]", value).items()}


def as_list(source: str, value: object) -> list[object]:
    if value is not None and not isinstance(value, list):
        raise wrong(source, f"must be a list, not {kind_of(value)}")
    return cast("list[object]", value or [])


def as_strings(source: str, value: object) -> list[str]:
    return [as_string(source, item) for item in as_list(source, value)]


def as_string(source: str, value: object) -> str:
    if not isinstance(value, str):
        raise wrong(source, f"{value!r} must be a string, not {kind_of(value)}; put it in quotes")
    return value


def kind_of(value: object) -> str:
    names: dict[type, str] = {
        dict: "a table",
        list: "a list",
        str: "a string",
        type(None): "nothing",
    }
    return names.get(type(value), f"a {type(value).__name__}")


def wrong(source: str, problem: str) -> Invalid:
    return Invalid(f"{source}: {problem}", field="environment")
