"""What may be logged: the same names and lengths that MLflow's clients and our server know."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

LONGEST_NAME = 250
LONGEST = {"param": 6000, "tag": 8000}
_SIGNS = frozenset("/_.- :")
_NOT_FINITE = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}
_LARGEST = 1 << 63
_known: set[str] = set()


def pairs(call: str, given: Any) -> Mapping[str, Any]:
    """Return the dict that was given, or an empty one for None."""
    if given is None:
        return {}
    if not hasattr(given, "keys"):
        raise TypeError(f"track.{call}: give a dict, or name=value; this is {given!r:.80}")
    return given


def check_name(name: Any) -> str:
    """Return the name of a metric, a param, a tag, an image; raise if it cannot be one."""
    if name in _known:
        return name
    if not isinstance(name, str):
        raise TypeError(f"a name must be text, and {name!r:.80} is not")
    if not name or len(name) > LONGEST_NAME:
        raise ValueError(f"the name {name!r:.80} must have 1 to {LONGEST_NAME} characters")
    if not all(sign.isalnum() or sign in _SIGNS for sign in name):
        raise ValueError(f"the name {name!r} may have letters, digits, spaces and _ - . : / only")
    plain = os.path.normpath(name)
    if plain != name or plain == "." or plain.startswith(("..", "/")):
        raise ValueError(f"the name {name!r} must read like a path, without . and .. and //")
    _known.add(name)
    return name


def number(name: str, value: Any) -> str:
    """Return a value as JSON. What JSON has no number for becomes text."""
    try:
        text = repr(float(value))
    except (TypeError, ValueError, OverflowError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{name}: {value!r:.80} is not a number ({error})") from None
    return _NOT_FINITE.get(text, text)


def whole(name: str, value: Any) -> int:
    """Return a whole number of 64 bits; raise if it is none."""
    try:
        found = int(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name}: {value!r:.80} is not a whole number") from None
    if found != value or not -_LARGEST <= found < _LARGEST:
        raise ValueError(f"{name}: {value!r:.80} is not a whole number of 64 bits")
    return found


def words(call: str, name: str, value: Any) -> str:
    """Return a value as the text that is kept; raise if it is too long."""
    text = str(value).encode("utf-8", "backslashreplace").decode("utf-8")
    if len(text) > LONGEST[call]:
        raise ValueError(
            f"{name}: the value of a {call} may have {LONGEST[call]} characters; "
            f"this one has {len(text)}; keep it as an artifact"
        )
    return text
