"""What an environment is to hold, gathered from its parts, and what may stand in them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from retarget.core.errors import Invalid


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the files ask for, gathered; each Python version with where it was asked for."""

    pythons: tuple[tuple[str, str], ...] = ()
    channels: tuple[str, ...] = ()
    conda: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    pip: tuple[str, ...] = ()

    def __add__(self, other: "Wanted") -> "Wanted":
        return Wanted(
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
    return wrong(where, f"asks for Python {version}, but {other} for {text}; make them agree")


def python_version(where: str, text: str) -> str | None:
    """Return `3.11` for any way to write just that, the sorted range otherwise; None for any."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    plain = re.fullmatch(r"(?:={1,3})?(\d+(?:\.\d+)*)(?:\.\*)?", re.sub(r"\s+", "", text))
    if plain:
        return plain[1]
    try:
        return str(SpecifierSet(text)) or None
    except InvalidSpecifier:
        raise wrong(where, f"{text!r} is not a Python version; write 3.11 or >=3.10") from None


# -- conda files ------------------------------------------------------------------------------


def read_text(path: Path) -> str:
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise wrong(str(path), "is not UTF-8 text") from error
    except (OSError, ValueError) as error:  # a ValueError: a NUL in its name
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise wrong(str(path), f"cannot be read: {why}") from error
    if not text.strip():
        raise wrong(str(path), "is empty")
    return text


def as_mapping(where: object, value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise wrong(str(where), f"must be a table of names and values, not {kind_of(value)}")
    return {str(key): item for key, item in cast("dict[object, object]", value).items()}


def as_list(where: str, value: object) -> list[object]:
    if value is not None and not isinstance(value, list):
        raise wrong(where, f"must be a list, not {kind_of(value)}")
    return cast("list[object]", value or [])


def as_texts(where: str, value: object) -> list[str]:
    return [as_text(where, item) for item in as_list(where, value)]


def as_text(where: str, value: object) -> str:
    if not isinstance(value, str):
        raise wrong(where, f"{value!r} must be a text, not {kind_of(value)}; put it in quotes")
    return value


def kind_of(value: object) -> str:
    names: dict[type, str] = {dict: "a table", list: "a list", str: "a text", type(None): "nothing"}
    return names.get(type(value), f"a {type(value).__name__}")


def wrong(where: str, what: str) -> Invalid:
    return Invalid(f"{where}: {what}", field="environment")
