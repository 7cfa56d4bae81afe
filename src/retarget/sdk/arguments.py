"""Checks the arguments of callers; Invalid names the argument and shows a valid one."""

import os
from collections.abc import Collection, Iterable, Mapping
from numbers import Integral, Real
from typing import Any, cast
from urllib.parse import quote

from retarget.core.errors import Invalid
from retarget.core.units import parse_memory

TEXT = ((str,), "a string")
COUNT = ((Integral,), "an integer, such as 2")
NUMBER = ((Real,), "a number, such as 0.5")
SWITCH = ((bool,), "True or False")
PATH = ((str, os.PathLike), "a path")
PYTHON = ((str, os.PathLike), "a path, or a version in quotes, such as '3.11'")
MAPPING = ((Mapping,), "a mapping, such as {'EPOCHS': '3'}")
MEMORY = ((int, float, str), "an amount of memory, such as '512m' or '2g'")
DURATION = ((int, float, str), "seconds, or a string such as '15m' or '1h30m'")

_Rule = tuple[tuple[type, ...], str]
_COLLECTIONS: tuple[type, ...] = (Collection,)
_NOT_LISTS: tuple[type, ...] = (str, bytes, Mapping, set)
_MAX_NAME_CHARACTERS = 1000  # in a URL
_MAX_SHOWN_CHARACTERS = 80
_MAX_INTEGER_BITS = 64


def check(name: str, value: object, rule: _Rule) -> None:
    """Raise Invalid unless the argument has a type that the rule allows."""
    kinds, expected = rule
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise wrong(name, value, expected)
    if isinstance(value, int) and value.bit_length() > _MAX_INTEGER_BITS:
        raise Invalid(f"{name}: the number is too large; pass {expected}", field=name)


def wrong(name: str, value: object, expected: str) -> Invalid:
    shown = repr(value)
    short = shown if len(shown) <= _MAX_SHOWN_CHARACTERS else f"{shown[:_MAX_SHOWN_CHARACTERS]}…"
    return Invalid(f"{name}: {short} is not {expected}", field=name)


def strings(name: str, value: object, expected: str) -> tuple[str, ...]:
    """Return the items of a list as strings; a single string is not a list of its letters."""
    if isinstance(value, _NOT_LISTS) or not isinstance(value, Iterable):
        raise wrong(name, value, expected)
    return tuple(_string(name, item) for item in cast(Iterable[object], value))


def keep(value: object) -> tuple[str, ...]:
    """Return what to keep outside of outputs/, from one string or a list of patterns."""
    expected = "'none', 'all' or a list of patterns, such as ['*.pt']"
    return (value,) if isinstance(value, str) else strings("keep", value, expected)


def variables(value: object) -> dict[str, str]:
    """Return environment variables as strings."""
    check("variables", value, MAPPING)
    pairs = cast(Mapping[object, object], value)
    for name in pairs:
        check("variables", name, TEXT)
    return {str(name): _string("variables", item) for name, item in pairs.items()}


def tags(value: object) -> dict[str, Any]:
    check("tags", value, ((Mapping,), "a mapping, such as {'stage': 'trial'}"))
    return dict(cast(Mapping[str, Any], value))


def labels(name: str, value: object) -> dict[str, str]:
    """Return tags or properties of a job; numbers become strings."""
    return {key: _string(name, item) for key, item in _labels(name, value).items()}


def label_changes(name: str, value: object) -> dict[str, str | None]:
    """Return tags of a job to set, and those to remove, which are None."""
    items = _labels(name, value).items()
    return {key: None if item is None else _string(name, item) for key, item in items}


def _labels(name: str, value: object) -> dict[str, object]:
    check(name, value, ((Mapping,), "a mapping, such as {'team': 'vision'}"))
    pairs = cast(Mapping[object, object], value)
    for key in pairs:
        check(name, key, TEXT)
    return {str(key): item for key, item in pairs.items()}


def settings(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as JSON: paths as strings, at any depth; `memory` in bytes."""
    result = {name: _to_json(item) for name, item in value.items()}
    if isinstance(result.get("memory"), str):
        result["memory"] = parse_memory(result["memory"])
    return result


def address(base: str, name: object, noun: str) -> str:
    """Return the URL path of the `noun` with this name; raise Invalid if the name is impossible."""
    if not isinstance(name, str):
        raise wrong(f"the name of {noun}", name, "a string")
    if not name:
        raise Invalid(f"the name of {noun} is empty")
    if "/" in name or len(name) > _MAX_NAME_CHARACTERS:
        raise wrong(f"the name of {noun}", name, "valid: it contains '/' or is too long")
    return f"{base}/{quote(name, safe='', errors='replace')}"


def _to_json(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(cast(os.PathLike[str], value))
    if isinstance(value, Mapping):
        return settings(cast(Mapping[str, Any], value))
    if isinstance(value, list | tuple | set | frozenset):
        return [_to_json(item) for item in cast(Iterable[Any], value)]
    return value


def _string(name: str, value: object) -> str:
    if value is None or (isinstance(value, _COLLECTIONS) and not isinstance(value, str)):
        raise wrong(name, value, "a string or a number")
    return str(value)
