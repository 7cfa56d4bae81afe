"""Comparing and ordering, alike on SQLite and PostgreSQL: text by its code points, case told."""

import operator
from collections.abc import Callable
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Dialect, Double, String, collate, literal

from retarget.core.errors import Invalid
from retarget.core.filters import Literal

_DOUBLE: Double[float] = Double()
_LONGEST_PATTERN = 50_000  # bytes that SQLite takes

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


def directed(
    column: ColumnElement[Any], dialect: Dialect, *, ascending: bool
) -> ColumnElement[Any]:
    """Return what to order by; what is missing comes last either way."""
    if dialect.name == "postgresql" and isinstance(column.type, String):
        column = collate(column, "C")
    return (column.asc() if ascending else column.desc()).nulls_last()


def _like(
    column: ColumnElement[Any], pattern: str, dialect: Dialect, *, case: bool
) -> ColumnElement[bool]:
    if dialect.name == "postgresql":  # a backslash means itself
        return column.like(pattern, escape="") if case else column.ilike(pattern, escape="")
    given = _glob(pattern) if case else pattern
    if len(given.encode("utf-8", "replace")) > _LONGEST_PATTERN:
        raise Invalid(f"the pattern {pattern[:20]!r}… is too long to search for")
    # SQLite's LIKE does not tell a from A; its GLOB does
    return column.op("GLOB", is_comparison=True)(given) if case else column.like(given)


def _glob(pattern: str) -> str:
    signs = {"%": "*", "_": "?", "*": "[*]", "?": "[?]", "[": "[[]"}
    return "".join(signs.get(letter, letter) for letter in pattern)
