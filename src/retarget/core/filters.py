"""Reads MLflow's filters and orders. The messages are MLflow's."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from retarget.core.errors import Invalid
from retarget.core.grammars import Grammar, Kind, Sort

Literal = str | int | float | tuple[str, ...] | tuple[int, ...] | None

_MOST_CLAUSES = 200  # a database takes an expression only so deep,
_LONGEST = 100_000  # and only so many values
MOST_ORDERS = 20  # each is one more table to join: SQLite crashes over some sixty
_LARGEST_ID = (1 << 31) - 1
_WHOLE_ID = re.compile(r"\s*[+-]?\d{1,18}\s*")
_NUMERIC = (">", ">=", "!=", "=", "<", "<=")
_TEXTUAL = ("!=", "=", "LIKE", "ILIKE")
_LISTS = ("IN", "NOT IN")
_NULLS = ("IS NULL", "IS NOT NULL")
_OPERATORS = {
    Sort.TEXT: _TEXTUAL,
    Sort.LISTED: (*_TEXTUAL, *_LISTS),
    Sort.NUMBER: _NUMERIC,
    Sort.WHOLE: _NUMERIC,
    Sort.ID: ("=", "!=", *_LISTS),
}


class Clause(NamedTuple):
    """One comparison; all clauses of a filter must hold."""

    kind: Kind
    key: str
    op: str  # in capitals
    value: Literal


class OnDataset(NamedTuple):
    """Metrics of logged models that were measured on a dataset; no digest: any of that name."""

    name: str
    digest: str = ""


class Order(NamedTuple):
    kind: Kind
    key: str
    ascending: bool
    on: OnDataset | None = None


@dataclass(frozen=True)
class Search:
    """What was asked for: which, in what order, and which page of them."""

    clauses: tuple[Clause, ...] = ()
    orders: tuple[Order, ...] = ()
    limit: int = 1000
    offset: int = 0


def parse_filter(text: str, grammar: Grammar) -> tuple[Clause, ...]:
    """Return the clauses of a filter. As in MLflow, AND between them may be left out."""
    if len(text) > _LONGEST:
        raise Invalid(f"the filter has {len(text)} characters; at most {_LONGEST} can be")
    tokens = _tokens(text)
    clauses: list[Clause] = []
    at = 0
    while at < len(tokens):
        if tokens[at].sort == "and":
            at += 1
            continue
        clause, used = _clause(tokens[at : at + 3], grammar)
        clauses.append(clause)
        at += used
    if len(clauses) > _MOST_CLAUSES:
        raise Invalid(f"the filter has {len(clauses)} clauses; at most {_MOST_CLAUSES} can be")
    return tuple(clauses)


def parse_orders(texts: Sequence[str], grammar: Grammar) -> tuple[Order, ...]:
    """Return what to order by; nothing may be named twice."""
    check_orders(len(texts))
    orders = tuple(_order(text, grammar) for text in texts)
    if len({(order.kind, order.key) for order in orders}) < len(orders):
        raise Invalid(f"`order_by` contains duplicate fields: {list(texts)}")
    return orders


def check_orders(count: int) -> None:
    if count > MOST_ORDERS:
        raise Invalid(
            f"`order_by` names {count} fields; at most {MOST_ORDERS} can be", field="order_by"
        )


def experiment_id(text: str) -> int:
    """Return the number that an experiment's id is; -1 if none can have it."""
    if not _WHOLE_ID.fullmatch(text):
        raise Invalid(
            f"Invalid experiment ID '{text}'. Experiment ID must be a valid integer.",
            field="experiment_ids",
        )
    number = int(text)
    return number if 0 <= number <= _LARGEST_ID else -1


class _Token(NamedTuple):
    sort: str
    text: str


# A quote inside a quoted text is doubled, or has a backslash before it; both stay as they are.
# Groups are atomic: what was read as one text is never tried as two.
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
    | (?P<text>{_SINGLE})
    | (?P<name>{_NAME})
    | (?P<list>\((?:{_SINGLE}|{_DOUBLE}|[^()'"])*\))
    | (?P<other>.)""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_LIST = re.compile(rf"\(\s*(?:{_SINGLE}|{_DOUBLE})(?:\s*,\s*(?:{_SINGLE}|{_DOUBLE}))*\s*,?\s*\)")
_QUOTED = re.compile(rf"{_SINGLE}|{_DOUBLE}")
_ORDER = re.compile(rf"({_NAME})(?:\s+(\w+))?")


def _tokens(text: str) -> list[_Token]:
    found = (_Token(str(match.lastgroup), match.group()) for match in _TOKEN.finditer(text))
    return [token for token in found if token.sort != "space"]


def _clause(tokens: Sequence[_Token], grammar: Grammar) -> tuple[Clause, int]:
    """Return the clause that begins here, and how many tokens it has."""
    sorts = [token.sort for token in tokens]
    if sorts[:2] != ["name", "op"]:
        raise _unclear(tokens)
    op = " ".join(tokens[1].text.upper().split())
    if op in _NULLS:
        return _null_clause(tokens[0].text, op, grammar), 2
    wanted = ("list",) if op in _LISTS else ("number", "text", "name", "list")
    if len(tokens) < 3 or tokens[2].sort not in wanted:
        raise _unclear(tokens)
    kind, key = _named(tokens[0].text, grammar, frozenset(grammar.attributes))
    sort = _sort(kind, key, grammar)
    value = _literal(tokens[2], _Subject(kind, key, sort), grammar)
    _check_operator(op, sort, value)
    return Clause(kind, key, op, value), 3


def _null_clause(name: str, op: str, grammar: Grammar) -> Clause:
    kind, key = _named(name, grammar, frozenset(grammar.attributes))
    if kind not in grammar.nullable:
        who = [
            f"{name}s" for name in ("tag", "param") if grammar.kinds.get(name) in grammar.nullable
        ]
        raise Invalid(
            f"IS NULL / IS NOT NULL is only supported for {' and '.join(who) or 'other searches'}, "
            f"not for '{kind}' '{key}'"
        )
    return Clause(kind, key, op, None)


def _named(name: str, grammar: Grammar, attributes: frozenset[str]) -> tuple[Kind, str]:
    """Return what a name stands for: `metrics.acc`, "params.`a b`", `start_time`."""
    before, dot, after = name.partition(".")
    prefix = _without(before, "`") if dot else Kind.ATTRIBUTE.value
    kind = grammar.kinds.get(prefix) if dot else Kind.ATTRIBUTE
    if kind is None:
        known = list(dict.fromkeys(each.value for each in grammar.kinds.values()))
        raise Invalid(f"Invalid entity type '{prefix}'. Valid values are {known}")
    key = _without(_unquoted(after if dot else before), "`")
    if kind == Kind.ATTRIBUTE:
        given, key = key, grammar.aliases.get(key, key)
        if key not in attributes:
            raise _unknown("attribute", given, attributes)
    if kind == Kind.DATASET and key not in grammar.datasets:
        raise _unknown("dataset", key, grammar.datasets)
    return kind, key


def _sort(kind: Kind, key: str, grammar: Grammar) -> Sort:
    if kind == Kind.ATTRIBUTE:
        return grammar.attributes[key]
    if kind == Kind.METRIC:
        return Sort.NUMBER
    if kind == Kind.DATASET or grammar.bare:
        return Sort.LISTED
    return Sort.TEXT


class _Subject(NamedTuple):
    kind: Kind
    key: str
    sort: Sort


def _literal(token: _Token, subject: _Subject, grammar: Grammar) -> Literal:
    if token.sort == "list":
        return _list(token.text, subject, grammar)
    if subject.sort == Sort.NUMBER:
        return _number(token, subject)
    if subject.sort == Sort.WHOLE:
        return _whole(token, subject.key)
    text = _text(token, subject, grammar)
    return experiment_id(text) if subject.sort == Sort.ID else text


def _number(token: _Token, subject: _Subject) -> float | int:
    if token.sort != "number":
        what = "metric" if subject.kind == Kind.METRIC else f"numeric attribute: {subject.key}"
        raise Invalid(f"Expected numeric value type for {what}. Found {token.text}")
    # what 64 bits do not hold compares as well as a float
    whole = len(token.text) < 19 and subject.kind == Kind.ATTRIBUTE and _is_whole(token.text)
    return int(token.text) if whole else float(token.text)


def _whole(token: _Token, key: str) -> int | float:
    text = _unquoted(token.text).strip()
    if not _is_whole(text):
        raise Invalid(f"Invalid value for numeric attribute '{key}': {token.text!r}")
    return int(text) if len(text) < 19 else float(text)


def _is_whole(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def _text(token: _Token, subject: _Subject, grammar: Grammar) -> str:
    if _QUOTED.fullmatch(token.text):
        return token.text[1:-1]
    if grammar.bare:
        return token.text
    if token.sort == "name":
        raise Invalid(
            "Parameter value is either not quoted or unidentified quote types used for string "
            f"value {token.text}. Use either single or double quotes."
        )
    raise _expects_text(token.text, subject)


def _list(text: str, subject: _Subject, grammar: Grammar) -> tuple[str, ...] | tuple[int, ...]:
    if subject.kind == Kind.ATTRIBUTE and subject.sort not in (Sort.LISTED, Sort.ID):
        lists = sorted(
            name for name, sort in grammar.attributes.items() if sort in (Sort.LISTED, Sort.ID)
        )
        raise Invalid(
            f"Only {lists} attributes support comparison with a list of quoted string values."
        )
    if subject.sort not in (Sort.LISTED, Sort.ID):
        raise _expects_text(text, subject)
    if not _LIST.fullmatch(text):
        raise Invalid(
            "While parsing a list in the query, expected a non-empty list of string values, "
            f"but got {text}"
        )
    values = tuple(each[1:-1] for each in _QUOTED.findall(text))
    if subject.sort == Sort.ID:
        return tuple(experiment_id(value) for value in values)
    return values


def _check_operator(op: str, sort: Sort, value: Literal) -> None:
    offered = _OPERATORS[sort]
    if op not in offered or isinstance(value, tuple) != (op in _LISTS):
        raise Invalid(f"Invalid comparator '{op}' not one of '{_set(offered)}'")


def _order(text: str, grammar: Grammar) -> Order:
    match = _ORDER.fullmatch(text)
    if match is None:
        raise Invalid(f"Invalid order_by clause '{text}'. Could not be parsed.")
    name, direction = match[1], (match[2] or "asc").lower()
    if direction not in ("asc", "desc"):
        raise Invalid(f"Invalid ordering key in order_by clause '{text}'.")
    kind, key = _named(name, grammar, grammar.orders)
    if kind not in grammar.order_kinds:
        raise Invalid(f"Invalid order_by entity: {kind}")
    return Order(kind, key, direction == "asc")


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"" else text


def _without(text: str, quote: str) -> str:
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] == quote else text


def _unclear(tokens: Sequence[_Token]) -> Invalid:
    shown = ", ".join(f"'{token.text}'" for token in tokens)
    return Invalid(f"Invalid clause(s) in filter string: {shown}")


def _expects_text(text: str, subject: _Subject) -> Invalid:
    if subject.kind == Kind.METRIC:
        return Invalid(f"Expected numeric value type for metric. Found {text}")
    if subject.kind in (Kind.PARAM, Kind.TAG):
        what = f"{subject.kind} (e.g. 'my-value')"
    else:
        what = "attributes" if subject.kind == Kind.ATTRIBUTE else "dataset attributes"
    return Invalid(f"Expected a quoted string value for {what}. Got value {text}")


def _unknown(what: str, key: str, known: frozenset[str]) -> Invalid:
    shown = _set(sorted(known))
    return Invalid(f"Invalid {what} key '{key}' specified. Valid keys are '{shown}'")


def _set(names: Sequence[str]) -> str:
    return "{" + ", ".join(repr(name) for name in names) + "}"
