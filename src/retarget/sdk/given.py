"""What callers give, checked where it comes in: Invalid names it, and says what would be right."""

import os
from collections.abc import Collection, Iterable, Mapping
from numbers import Integral, Real
from typing import Any, cast
from urllib.parse import quote

from retarget.core.errors import Invalid
from retarget.core.units import parse_memory

TEXT = ((str,), "a text")
COUNT = ((Integral,), "a whole number, such as 2")
NUMBER = ((Real,), "a number, such as 0.5")
PATH = ((str, os.PathLike), "a path")
PYTHON = ((str, os.PathLike), "a path, or a version in quotes, such as '3.11'")
MAPPING = ((Mapping,), "a mapping, such as {'EPOCHS': '3'}")
MEMORY = ((int, float, str), "an amount of memory, such as '512m' or '2g'")
DURATION = ((int, float, str), "seconds, or a text such as '15m' or '1h30m'")

_Rule = tuple[tuple[type, ...], str]
_MANY: tuple[type, ...] = (Collection,)
_NO_LISTS: tuple[type, ...] = (str, bytes, Mapping, set)
_LONGEST = 1000  # characters of a name in an address
_SHOWN = 80
_BITS = 64


def check(name: str, value: object, rule: _Rule) -> None:
    """Raise Invalid unless the argument is of a kind that the rule allows."""
    kinds, right = rule
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise wrong(name, value, right)
    if isinstance(value, int) and value.bit_length() > _BITS:
        raise Invalid(f"{name}: that number is too large; give {right}", field=name)


def wrong(name: str, value: object, right: str) -> Invalid:
    shown = repr(value)
    short = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
    return Invalid(f"{name}: {short} is not {right}", field=name)


def words(name: str, value: object, right: str) -> tuple[str, ...]:
    """Return the words of a list; a text is none, it would fall apart into letters."""
    if isinstance(value, _NO_LISTS) or not isinstance(value, Iterable):
        raise wrong(name, value, right)
    return tuple(_word(name, each) for each in cast(Iterable[object], value))


def variables(value: object) -> dict[str, str]:
    """Return environment variables as text."""
    check("env", value, MAPPING)
    pairs = cast(Mapping[object, object], value)
    for name in pairs:
        check("env", name, TEXT)
    return {str(name): _word("env", each) for name, each in pairs.items()}


def tags(value: object) -> dict[str, Any]:
    check("tags", value, ((Mapping,), "a mapping, such as {'stage': 'trial'}"))
    return dict(cast(Mapping[str, Any], value))


def settings(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as they are sent: paths as text, at any depth; `memory` as bytes."""
    sent = {name: _sent(each) for name, each in value.items()}
    if isinstance(sent.get("memory"), str):
        sent["memory"] = parse_memory(sent["memory"])
    return sent


def address(place: str, name: object, what: str) -> str:
    """Return the address of the thing with this name; Invalid if none can have it."""
    if not isinstance(name, str):
        raise wrong(f"the name of {what}", name, "a text")
    if not name:
        raise Invalid(f"the name of {what} is empty")
    if "/" in name or len(name) > _LONGEST:
        raise wrong(f"the name of {what}", name, "one: it has a '/', or is too long")
    return f"{place}/{quote(name, safe='', errors='replace')}"


def _sent(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(cast(os.PathLike[str], value))
    if isinstance(value, Mapping):
        return settings(cast(Mapping[str, Any], value))
    if isinstance(value, list | tuple | set | frozenset):
        return [_sent(each) for each in cast(Iterable[Any], value)]
    return value


def _word(name: str, value: object) -> str:
    if value is None or (isinstance(value, _MANY) and not isinstance(value, str)):
        raise wrong(name, value, "a text or a number")
    return str(value)
