"""Checks what is logged: the same names and lengths as MLflow's clients and our server allow."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MAX_NAME_LENGTH = 250
MAX_VALUE_LENGTH = {"param": 6000, "tag": 8000}
_PUNCTUATION = frozenset("/_.- :")
_NOT_FINITE = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}
_INT64_BOUND = 1 << 63
_checked_names: set[str] = set()


def as_mapping(call: str, value: Any) -> Mapping[str, Any]:
    """Return a mapping unchanged, and an empty one for None; raise for anything else."""
    if value is None:
        return {}
    if not hasattr(value, "keys"):
        raise TypeError(f"track.{call}: pass a dict or name=value, got {value!r:.80}")
    return value


def check_name(name: Any) -> str:
    """Return the name of a metric, a param, a tag or an image; raise if it is invalid."""
    if name in _checked_names:
        return name
    if not isinstance(name, str):
        raise TypeError(f"a name must be a string, got {name!r:.80}")
    if not name or len(name) > MAX_NAME_LENGTH:
        raise ValueError(f"the name {name!r:.80} must have 1 to {MAX_NAME_LENGTH} characters")
    if not all(character.isalnum() or character in _PUNCTUATION for character in name):
        raise ValueError(f"the name {name!r} may have letters, digits, spaces and _ - . : / only")
    plain = os.path.normpath(name)
    if plain != name or plain == "." or plain.startswith(("..", "/")):
        raise ValueError(f"the name {name!r} must be a relative path without . and .. and //")
    _checked_names.add(name)
    return name


def as_json_number(name: str, value: Any) -> str:
    """Return a value as JSON. NaN and infinity, which JSON does not have, become strings."""
    try:
        text = repr(float(value))
    except (TypeError, ValueError, OverflowError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{name}: {value!r:.80} is not a number ({error})") from None
    return _NOT_FINITE.get(text, text)


def as_integer(name: str, value: Any) -> int:
    """Return a value as an integer; raise if it is not one of 64 bits."""
    try:
        integer = int(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name}: {value!r:.80} is not an integer") from None
    if integer != value or not -_INT64_BOUND <= integer < _INT64_BOUND:
        raise ValueError(f"{name}: {value!r:.80} is not a 64-bit integer")
    return integer


def as_text(call: str, name: str, value: Any) -> str:
    """Return a value as a string; raise if it is too long."""
    text = str(value).encode("utf-8", "backslashreplace").decode("utf-8")
    if len(text) > MAX_VALUE_LENGTH[call]:
        raise ValueError(
            f"{name}: the value of a {call} may have {MAX_VALUE_LENGTH[call]} characters, got "
            f"{len(text)}; log it as an artifact instead"
        )
    return text
