"""Parses MLflow's filters and orders. The messages are MLflow's."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from retarget.core.errors import Invalid
from retarget.core.grammars import Grammar, Kind, ValueType

Literal = str | int | float | tuple[str, ...] | tuple[int, ...] | None

_MAX_CLAUSES = 200  # databases limit the depth of an expression
_MAX_FILTER_LENGTH = 100_000  # and the number of its values
MAX_ORDERS = 20  # each joins one more table: SQLite crashes above about 60
_MAX_EXPERIMENT_ID = (1 << 31) - 1
_EXPERIMENT_ID = re.compile(r"\s*[+-]?\d{1,18}\s*")
_NUMBER_OPERATORS = (">", ">=", "!=", "=", "<", "<=")
_RANGE_OPERATORS = (">", ">=", "<", "<=")
_STRING_OPERATORS = ("!=", "=", "LIKE", "ILIKE")
_LIST_OPERATORS = ("IN", "NOT IN")
_NULL_OPERATORS = ("IS NULL", "IS NOT NULL")
_OPERATORS = {
    ValueType.STRING: _STRING_OPERATORS,
    ValueType.STRINGS: (*_STRING_OPERATORS, *_LIST_OPERATORS),
    ValueType.NUMBER: _NUMBER_OPERATORS,
    ValueType.INTEGER: _NUMBER_OPERATORS,
    ValueType.EXPERIMENT_ID: ("=", "!=", *_LIST_OPERATORS),
    ValueType.TIME: _NUMBER_OPERATORS,
}


class Clause(NamedTuple):
    """One comparison; all clauses of a filter must hold."""

    kind: Kind
    key: str
    op: str  # in upper case
    value: Literal


class OnDataset(NamedTuple):
    """Restricts metrics of logged models to one dataset. No digest: any with this name."""

    name: str
    digest: str = ""


class Order(NamedTuple):
    kind: Kind
    key: str
    ascending: bool
    on: OnDataset | None = None


@dataclass(frozen=True)
class Search:
    """One search: its filter, its order, and which page of the results."""

    clauses: tuple[Clause, ...] = ()
    orders: tuple[Order, ...] = ()
    limit: int = 1000
    offset: int = 0


def parse_filter(text: str, grammar: Grammar) -> tuple[Clause, ...]:
    """Return the clauses of a filter. As in MLflow, AND between them is optional."""
    if len(text) > _MAX_FILTER_LENGTH:
        raise Invalid(
            f"the filter has {len(text)} characters; at most {_MAX_FILTER_LENGTH} are allowed"
        )
    tokens = _tokens(text)
    clauses: list[Clause] = []
    position = 0
    while position < len(tokens):
        if tokens[position].type == "and":
            position += 1
            continue
        clause, count = _clause(tokens[position : position + 3], grammar)
        clauses.append(clause)
        position += count
    if len(clauses) > _MAX_CLAUSES:
        raise Invalid(f"the filter has {len(clauses)} clauses; at most {_MAX_CLAUSES} are allowed")
    return tuple(clauses)


def parse_orders(texts: Sequence[str], grammar: Grammar) -> tuple[Order, ...]:
    """Return what to order by. Raise Invalid for a field that is named twice."""
    check_orders(len(texts))
    orders = tuple(_order(text, grammar) for text in texts)
    if len({(order.kind, order.key) for order in orders}) < len(orders):
        raise Invalid(f"`order_by` contains duplicate fields: {list(texts)}")
    return orders


def check_orders(count: int) -> None:
    if count > MAX_ORDERS:
        raise Invalid(
            f"`order_by` names {count} fields; at most {MAX_ORDERS} are allowed", field="order_by"
        )


def experiment_id(text: str) -> int:
    """Return an experiment id as an integer; -1 if no experiment can have it."""
    if not _EXPERIMENT_ID.fullmatch(text):
        raise Invalid(
            f"Invalid experiment ID '{text}'. Experiment ID must be a valid integer.",
            field="experiment_ids",
        )
    number = int(text)
    return number if 0 <= number <= _MAX_EXPERIMENT_ID else -1


class _Token(NamedTuple):
    type: str  # the group of _TOKEN that matched
    text: str


# A quote inside a quoted string is doubled or escaped by a backslash; both stay as they are.
# Groups are atomic: the regex never tries to split one string into two.
_SINGLE = r"(?>'(?:''|\\'|[^'])*')"
_DOUBLE = r'(?>"(?:""|\\"|[^"])*")'
_TICKS = r"(?>`(?:``|[^`])*`)"
_WORD = r"\w[\w$#]*"
_NAME = rf"(?:{_TICKS}|{_DOUBLE}|{_WORD})(?:\.(?:{_TICKS}|{_DOUBLE}|{_SINGLE}|{_WORD}))*"
_TOKEN = re.compile(
    rf"""(?P<space>\s+)
    | (?P<and>AND\b(?!\.))
    | (?P<op>[<>=~!]+ | (?:NOT\s+)?(?:LIKE|ILIKE|RLIKE|IN)\b(?!\.) | IS\s+(?:NOT\s+)?NULL\b(?!\.))
    | (?P<number>-?(?:\d+(?:\.\d+)?E-?\d+ | \d+\.\d* | \.\d+ | \d+)(?!\w))
    | (?P<string>{_SINGLE})
    | (?P<name>{_NAME})
    | (?P<list>\((?:{_SINGLE}|{_DOUBLE}|[^()'"])*\))
    | (?P<other>.)""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_LIST = re.compile(rf"\(\s*(?:{_SINGLE}|{_DOUBLE})(?:\s*,\s*(?:{_SINGLE}|{_DOUBLE}))*\s*,?\s*\)")
_QUOTED = re.compile(rf"{_SINGLE}|{_DOUBLE}")
_ORDER = re.compile(rf"({_NAME})(?:\s+(\w+))?")


def _tokens(text: str) -> list[_Token]:
    tokens = (_Token(str(match.lastgroup), match.group()) for match in _TOKEN.finditer(text))
    return [token for token in tokens if token.type != "space"]


def _clause(tokens: Sequence[_Token], grammar: Grammar) -> tuple[Clause, int]:
    """Return the first clause of the tokens, and how many tokens it has."""
    token_types = [token.type for token in tokens]
    if token_types[:2] != ["name", "op"]:
        raise _invalid_clause(tokens)
    op = " ".join(tokens[1].text.upper().split())
    if op in _NULL_OPERATORS:
        return _null_clause(tokens[0].text, op, grammar), 2
    operand_types = ("list",) if op in _LIST_OPERATORS else ("number", "string", "name", "list")
    if len(tokens) < 3 or tokens[2].type not in operand_types:
        raise _invalid_clause(tokens)
    kind, key = _resolve(tokens[0].text, grammar, frozenset(grammar.attributes))
    value_type = _value_type(kind, key, grammar)
    is_range = op in _RANGE_OPERATORS and tokens[2].type == "number"
    if is_range and kind == Kind.PARAM and grammar.has_numeric_params:
        value_type = ValueType.NUMBER
    value = _literal(tokens[2], _Subject(kind, key, value_type), grammar)
    _check_operator(op, value_type, value)
    return Clause(kind, key, op, value), 3


def _null_clause(name: str, op: str, grammar: Grammar) -> Clause:
    kind, key = _resolve(name, grammar, frozenset(grammar.attributes))
    if kind not in grammar.nullable:
        supported = [
            f"{name}s" for name in ("tag", "param") if grammar.kinds.get(name) in grammar.nullable
        ]
        raise Invalid(
            "IS NULL / IS NOT NULL is only supported for "
            f"{' and '.join(supported) or 'other searches'}, not for '{kind}' '{key}'"
        )
    return Clause(kind, key, op, None)


def _resolve(name: str, grammar: Grammar, attributes: frozenset[str]) -> tuple[Kind, str]:
    """Return what a name refers to: `metrics.acc`, "params.`a b`", `start_time`."""
    head, dot, tail = name.partition(".")
    prefix = _strip_quote(head, "`") if dot else Kind.ATTRIBUTE.value
    kind = grammar.kinds.get(prefix) if dot else Kind.ATTRIBUTE
    if kind is None:
        known = list(dict.fromkeys(kind.value for kind in grammar.kinds.values()))
        raise Invalid(f"Invalid entity type '{prefix}'. Valid values are {known}")
    key = _strip_quote(_unquoted(tail if dot else head), "`")
    if kind == Kind.ATTRIBUTE:
        alias, key = key, grammar.aliases.get(key, key)
        if key not in attributes:
            raise _unknown("attribute", alias, attributes)
    if kind == Kind.DATASET and key not in grammar.datasets:
        raise _unknown("dataset", key, grammar.datasets)
    return kind, key


def _value_type(kind: Kind, key: str, grammar: Grammar) -> ValueType:
    if kind == Kind.ATTRIBUTE:
        return grammar.attributes[key]
    if kind == Kind.METRIC:
        return ValueType.NUMBER
    if kind == Kind.DATASET or grammar.allows_unquoted:
        return ValueType.STRINGS
    return ValueType.STRING


class _Subject(NamedTuple):
    kind: Kind
    key: str
    value_type: ValueType


def _literal(token: _Token, subject: _Subject, grammar: Grammar) -> Literal:
    if token.type == "list":
        return _list(token.text, subject, grammar)
    if subject.value_type == ValueType.NUMBER:
        return _number(token, subject)
    if subject.value_type == ValueType.INTEGER:
        return _integer(token, subject.key)
    if subject.value_type == ValueType.TIME:
        return _time(token, subject.key)
    text = _string(token, subject, grammar)
    return experiment_id(text) if subject.value_type == ValueType.EXPERIMENT_ID else text


def _number(token: _Token, subject: _Subject) -> float | int:
    if token.type != "number":
        noun = "metric" if subject.kind == Kind.METRIC else f"numeric attribute: {subject.key}"
        raise Invalid(f"Expected numeric value type for {noun}. Found {token.text}")
    # a number of more than 64 bits is compared as a float
    is_integer = len(token.text) < 19 and subject.kind == Kind.ATTRIBUTE and _is_integer(token.text)
    return int(token.text) if is_integer else float(token.text)


def _integer(token: _Token, key: str) -> int | float:
    text = _unquoted(token.text).strip()
    if not _is_integer(text):
        raise Invalid(f"Invalid value for numeric attribute '{key}': {token.text!r}")
    return int(text) if len(text) < 19 else float(text)


def _time(token: _Token, key: str) -> float:
    """Return seconds since 1970. A time without an offset is in UTC."""
    text = _unquoted(token.text).strip()
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise Invalid(
            f"{key}: {text!r} is not a time; write '2026-11-24' or '2026-11-24T09:30:00Z'"
        ) from None


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def _string(token: _Token, subject: _Subject, grammar: Grammar) -> str:
    if _QUOTED.fullmatch(token.text):
        return token.text[1:-1]
    if grammar.allows_unquoted:
        return token.text
    if token.type == "name":
        raise Invalid(
            "Parameter value is either not quoted or unidentified quote types used for string "
            f"value {token.text}. Use either single or double quotes."
        )
    raise _expected_string(token.text, subject)


def _list(text: str, subject: _Subject, grammar: Grammar) -> tuple[str, ...] | tuple[int, ...]:
    if subject.kind == Kind.ATTRIBUTE and subject.value_type not in (
        ValueType.STRINGS,
        ValueType.EXPERIMENT_ID,
    ):
        lists = sorted(
            name
            for name, value_type in grammar.attributes.items()
            if value_type in (ValueType.STRINGS, ValueType.EXPERIMENT_ID)
        )
        raise Invalid(
            f"Only {lists} attributes support comparison with a list of quoted string values."
        )
    if subject.value_type not in (ValueType.STRINGS, ValueType.EXPERIMENT_ID):
        raise _expected_string(text, subject)
    if not _LIST.fullmatch(text):
        raise Invalid(
            "While parsing a list in the query, expected a non-empty list of string values, "
            f"but got {text}"
        )
    values = tuple(quoted[1:-1] for quoted in _QUOTED.findall(text))
    if subject.value_type == ValueType.EXPERIMENT_ID:
        return tuple(experiment_id(value) for value in values)
    return values


def _check_operator(op: str, value_type: ValueType, value: Literal) -> None:
    supported = _OPERATORS[value_type]
    if op not in supported or isinstance(value, tuple) != (op in _LIST_OPERATORS):
        raise Invalid(f"Invalid comparator '{op}' not one of '{_format_set(supported)}'")


def _order(text: str, grammar: Grammar) -> Order:
    match = _ORDER.fullmatch(text)
    if match is None:
        raise Invalid(f"Invalid order_by clause '{text}'. Could not be parsed.")
    name, direction = match[1], (match[2] or "asc").lower()
    if direction not in ("asc", "desc"):
        raise Invalid(f"Invalid ordering key in order_by clause '{text}'.")
    kind, key = _resolve(name, grammar, grammar.order_attributes)
    if kind not in grammar.order_kinds:
        raise Invalid(f"Invalid order_by entity: {kind}")
    return Order(kind, key, direction == "asc")


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"" else text


def _strip_quote(text: str, quote: str) -> str:
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] == quote else text


def _invalid_clause(tokens: Sequence[_Token]) -> Invalid:
    shown = ", ".join(f"'{token.text}'" for token in tokens)
    return Invalid(f"Invalid clause(s) in filter string: {shown}")


def _expected_string(text: str, subject: _Subject) -> Invalid:
    if subject.kind == Kind.METRIC:
        return Invalid(f"Expected numeric value type for metric. Found {text}")
    if subject.kind in (Kind.PARAM, Kind.TAG):
        noun = f"{subject.kind} (e.g. 'my-value')"
    else:
        noun = "attributes" if subject.kind == Kind.ATTRIBUTE else "dataset attributes"
    return Invalid(f"Expected a quoted string value for {noun}. Got value {text}")


def _unknown(noun: str, key: str, known: frozenset[str]) -> Invalid:
    shown = _format_set(sorted(known))
    return Invalid(f"Invalid {noun} key '{key}' specified. Valid keys are '{shown}'")


def _format_set(names: Sequence[str]) -> str:
    return "{" + ", ".join(repr(name) for name in names) + "}"
