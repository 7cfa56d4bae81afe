"""Compare and order alike on SQLite and PostgreSQL: by code points, case-sensitive."""

import operator
import re
from collections.abc import Callable
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Dialect,
    Double,
    String,
    case,
    cast,
    collate,
    func,
    literal,
)

from retarget.core.errors import Invalid
from retarget.core.filters import Literal

_DOUBLE: Double[float] = Double()
# a number of more digits may be too large for a double
_NUMBER = r"^\s*-?(0|[1-9][0-9]{0,99})(\.[0-9]{1,99})?([eE][-+]?[0-9]{1,2})?\s*$"
_MAX_PATTERN_BYTES = 50_000  # a limit of SQLite

_OPERATORS: dict[str, Callable[[Any, Any], ColumnElement[bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


def compare(
    column: ColumnElement[Any], op: str, value: Literal, dialect: Dialect
) -> ColumnElement[bool]:
    if op in ("LIKE", "ILIKE"):
        return _like(column, str(value), dialect, case=op == "LIKE")
    if isinstance(value, tuple):
        return column.in_(value) if op == "IN" else column.not_in(value)
    # PostgreSQL would cast a number to the type of the column, which may be too narrow for it
    if isinstance(value, float):
        return _OPERATORS[op](column, literal(value, _DOUBLE))
    if isinstance(value, int):
        return _OPERATORS[op](column, literal(value, BigInteger()))
    return _OPERATORS[op](column, value)


def as_number(column: ColumnElement[str], dialect: Dialect) -> ColumnElement[Any]:
    """Return text as a number, or NULL if it is not a number as JSON writes it."""
    number = cast(column, _DOUBLE)
    if dialect.name == "postgresql":
        return case((column.op("~", is_comparison=True)(_NUMBER), number))
    is_number = func.json_type(column).in_(("integer", "real"))
    return case((func.json_valid(column) == literal(1), case((is_number, number))))


def matches_pattern(
    column: ColumnElement[Any], pattern: str, dialect: Dialect
) -> ColumnElement[bool]:
    """Compare with a shell-style pattern: `*`, `?`, `[abc]` and `[!abc]`."""
    if dialect.name == "postgresql":
        return column.op("~", is_comparison=True)(_regex(pattern))
    return column.op("GLOB", is_comparison=True)(pattern.replace("[!", "[^"))


def directed(
    column: ColumnElement[Any], dialect: Dialect, *, ascending: bool
) -> ColumnElement[Any]:
    """Return the term to order by. NULL comes last in both directions."""
    if dialect.name == "postgresql" and isinstance(column.type, String):
        column = collate(column, "C")
    return (column.asc() if ascending else column.desc()).nulls_last()


def _like(
    column: ColumnElement[Any], pattern: str, dialect: Dialect, *, case: bool
) -> ColumnElement[bool]:
    if dialect.name == "postgresql":  # a backslash has no special meaning
        return column.like(pattern, escape="") if case else column.ilike(pattern, escape="")
    sqlite_pattern = _glob(pattern) if case else pattern
    if len(sqlite_pattern.encode("utf-8", "replace")) > _MAX_PATTERN_BYTES:
        raise Invalid(f"the pattern {pattern[:20]!r}… is too long to search for")
    # SQLite's LIKE ignores case; its GLOB does not
    return (
        column.op("GLOB", is_comparison=True)(sqlite_pattern)
        if case
        else column.like(sqlite_pattern)
    )


def _regex(pattern: str) -> str:
    wildcards: dict[str, str] = {"*": ".*", "?": "."}
    words: list[str] = re.findall(r"\[!?\]?[^\]]+\]|.", pattern)
    regex = "".join(
        word.replace("[!", "[^") if len(word) > 1 else wildcards.get(word, re.escape(word))
        for word in words
    )
    return f"^{regex}$"


def _glob(pattern: str) -> str:
    wildcards = {"%": "*", "_": "?", "*": "[*]", "?": "[?]", "[": "[[]"}
    return "".join(wildcards.get(letter, letter) for letter in pattern)
