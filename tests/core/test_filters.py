"""MLflow's filters and orders: each is parsed or refused, and nothing else happens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retarget.core.errors import Invalid
from retarget.core.filters import Clause, Order, experiment_id, parse_filter, parse_orders
from retarget.core.grammars import (
    EXPERIMENTS,
    LOGGED_MODELS,
    MODELS,
    RUNS,
    VERSIONS,
    Grammar,
    Kind,
)
from retarget.core.pages import read_offset, write_token

A, M, P, T, D = Kind.ATTRIBUTE, Kind.METRIC, Kind.PARAM, Kind.TAG, Kind.DATASET
ALL = (RUNS, EXPERIMENTS, MODELS, VERSIONS, LOGGED_MODELS)


@pytest.mark.parametrize(
    ("text", "clause"),
    [
        ("metrics.acc > 0.9", (M, "acc", ">", 0.9)),
        ("metric.acc>=-1", (M, "acc", ">=", -1.0)),
        ("metrics.acc = 1e-3", (M, "acc", "=", 0.001)),
        ("metrics.acc < .5", (M, "acc", "<", 0.5)),
        ("metrics.`a b/c` != 1.", (M, "a b/c", "!=", 1.0)),
        ('`metrics`."a.b" = 2', (M, "a.b", "=", 2.0)),
        ("params.lr = '0.1'", (P, "lr", "=", "0.1")),
        ('param.lr="a b"', (P, "lr", "=", "a b")),
        ("parameters.lr like 'a%'", (P, "lr", "LIKE", "a%")),
        ("params.lr = 'it''s'", (P, "lr", "=", "it''s")),
        (r"params.lr = 'a\'b'", (P, "lr", "=", r"a\'b")),
        (r"params.lr = 'a\'", (P, "lr", "=", "a\\")),
        ("params.lr = ''", (P, "lr", "=", "")),
        ("params.'x' = 'a'", (P, "x", "=", "a")),
        ("params.1a = 'x'", (P, "1a", "=", "x")),
        ("params.é = 'ü'", (P, "é", "=", "ü")),
        ("tags.mlflow.runName ILIKE 'x'", (T, "mlflow.runName", "ILIKE", "x")),
        ("tags.and = 'x'", (T, "and", "=", "x")),
        ("tags.a IS NULL", (T, "a", "IS NULL", None)),
        ("params.a is  not\nnull", (P, "a", "IS NOT NULL", None)),
        ("status = 'FINISHED'", (A, "status", "=", "FINISHED")),
        ("attr.status != 'FINISHED'", (A, "status", "!=", "FINISHED")),
        ("attributes.start_time > 5", (A, "start_time", ">", 5)),
        ("run.end_time < 5.5", (A, "end_time", "<", 5.5)),
        ("Created > 5", (A, "start_time", ">", 5)),
        ("`Run name` = 'x'", (A, "run_name", "=", "x")),
        ("run_id in ('a', \"b\")", (A, "run_id", "IN", ("a", "b"))),
        ("run_id NOT  IN ('a')", (A, "run_id", "NOT IN", ("a",))),
        (
            "start_time > 123456789012345678901234567890",
            (A, "start_time", ">", 1.2345678901234568e29),
        ),
        ("datasets.name = 'd'", (D, "name", "=", "d")),
        ("dataset.context IN ('a')", (D, "context", "IN", ("a",))),
    ],
)
def test_a_clause_about_runs_is_parsed(text: str, clause: tuple[Kind, str, str, object]) -> None:
    (parsed,) = parse_filter(text, RUNS)
    assert parsed == clause
    assert type(parsed.value) is type(clause[3])


def test_clauses_are_joined_by_an_optional_and() -> None:
    first, second = Clause(M, "a", ">", 1.0), Clause(P, "b", "=", "x")
    for text in (
        "metrics.a > 1 AND params.b = 'x'",
        "metrics.a > 1 and\tparams.b='x'",
        "metrics.a > 1 params.b = 'x'",
        "AND metrics.a > 1 AND AND params.b = 'x' AND",
    ):
        assert parse_filter(text, RUNS) == (first, second)
    assert parse_filter("", RUNS) == parse_filter(" \n", RUNS) == parse_filter("AND", RUNS) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("metrics.a > 1 OR metrics.b > 1", "Invalid clause(s) in filter string: 'OR'"),
        ("(metrics.a > 1)", "Invalid clause(s)"),
        ("params.a = 'x';", "Invalid clause(s)"),
        ("params.a = 'x", "Invalid clause(s)"),
        ("metrics.a", "Invalid clause(s)"),
        ("metrics.a >", "Invalid clause(s)"),
        ("metrics.a-b > 1", "Invalid clause(s)"),
        ("1 > metrics.a", "Invalid clause(s)"),
        ("run_id IN 'a'", "Invalid clause(s)"),
        ("params .x = 'a'", "Invalid clause(s)"),
        ("foo.a = 'x'", "Invalid entity type 'foo'"),
        ('"metrics".a > 1', "Invalid entity type '\"metrics\"'"),
        ("color = 'x'", "Invalid attribute key 'color' specified. Valid keys are"),
        ("dataset.color = 'x'", "Invalid dataset key 'color' specified"),
        ("metrics.a > 'x'", "Expected numeric value type for metric. Found 'x'"),
        ("metrics.a > inf", "Expected numeric value type for metric. Found inf"),
        ("metrics.a > 1E+5", "Expected numeric value type for metric. Found 1E"),
        ("metrics.a > (1)", "Expected numeric value type for metric. Found (1)"),
        ("params.a = 1", "Expected a quoted string value for parameter (e.g. 'my-value')"),
        ("params.a IN ('x')", "Expected a quoted string value for parameter"),
        ("params.a = x", "Parameter value is either not quoted or unidentified quote types"),
        ("params.a = `x`", "Parameter value is either not quoted or unidentified quote types"),
        ("status = 1", "Expected a quoted string value for attributes. Got value 1"),
        ("start_time = '5'", "Expected numeric value type for numeric attribute: start_time"),
        ("status IN ('a')", "Only ['run_id'] attributes support comparison with a list"),
        ("run_id IN ()", "expected a non-empty list of string values"),
        ("run_id IN (1)", "expected a non-empty list of string values"),
        ("run_id IN ('a' 'b')", "expected a non-empty list of string values"),
        ("run_id = ('a')", "Invalid comparator '='"),
        ("metrics.a == 1", "Invalid comparator '=='"),
        ("params.a > 'x'", "Invalid comparator '>'"),
        ("params.a NOT LIKE 'x'", "Invalid comparator 'NOT LIKE'"),
        ("metrics.a IS NULL", "IS NULL / IS NOT NULL is only supported for tags and params"),
        ("params.a = 'x' AND " * 201, "at most 200"),
        ("params.a = '" + "x" * 100_000, "at most 100000"),
    ],
)
def test_a_malformed_filter_is_refused(text: str, message: str) -> None:
    with pytest.raises(Invalid) as error:
        parse_filter(text, RUNS)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("grammar", "text", "value"),
    [
        (EXPERIMENTS, "experiment_id = '12'", 12),
        (EXPERIMENTS, "experiment_id IN ('1', '2')", (1, 2)),
        (EXPERIMENTS, "experiment_id != '99999999999999'", -1),
        (EXPERIMENTS, "attribute.creation_time > 5", 5),
        (EXPERIMENTS, "tags.a IS NULL", None),
        (MODELS, "name IN ('a')", ("a",)),
        (MODELS, "tags.`a b` = 'x'", "x"),
        (VERSIONS, "version_number = '5'", 5),
        (VERSIONS, "version_number > 5", 5),
        (VERSIONS, "source_path LIKE 's3:%'", "s3:%"),
        (LOGGED_MODELS, "params.lr = 0.01", "0.01"),
        (LOGGED_MODELS, "metrics.acc > 1", 1.0),
        (LOGGED_MODELS, "creation_time > 1e3", 1000.0),
        (LOGGED_MODELS, "model_type IN ('a', 'b')", ("a", "b")),
    ],
)
def test_each_search_has_its_own_grammar(grammar: Grammar, text: str, value: object) -> None:
    (clause,) = parse_filter(text, grammar)
    assert clause.value == value


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        (EXPERIMENTS, "attributes.name = 'x'"),
        (EXPERIMENTS, "experiment_id = 'x'"),
        (EXPERIMENTS, "experiment_id LIKE '1'"),
        (EXPERIMENTS, "creation_time > 5.5"),
        (EXPERIMENTS, "name IS NULL"),
        (EXPERIMENTS, "metrics.a > 1"),
        (MODELS, "run_id = 'x'"),
        (MODELS, "tags.a IS NULL"),
        (VERSIONS, "version_number = 1.5"),
        (VERSIONS, "version_number IN ('1')"),
        (VERSIONS, "run_id = 5"),
        (LOGGED_MODELS, "tag.a = 'x'"),
        (LOGGED_MODELS, "metrics.a LIKE 'x'"),
        (LOGGED_MODELS, "nothing = 'x'"),
    ],
)
def test_what_a_search_does_not_support_is_refused(grammar: Grammar, text: str) -> None:
    with pytest.raises(Invalid):
        parse_filter(text, grammar)


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("metrics.acc", (M, "acc", True)),
        ("metrics.acc  desc", (M, "acc", False)),
        ("metrics.`a b` DESC", (M, "a b", False)),
        ("params.'a b' ASC", (P, "a b", True)),
        ("tags.mlflow.runName", (T, "mlflow.runName", True)),
        ("metrics.desc desc", (M, "desc", False)),
        ("created DESC", (A, "start_time", False)),
        ("attributes.status", (A, "status", True)),
    ],
)
def test_an_order_is_parsed(text: str, order: tuple[Kind, str, bool]) -> None:
    assert parse_orders([text], RUNS) == (Order(*order),)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " metrics.a",
        "metrics.a ",
        "metrics.a-b",
        "metrics.a sideways",
        "metrics.a NULLS FIRST",
        "start_time;",
        "'status'",
        "color",
        "dataset.name",
    ],
)
def test_a_malformed_order_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        parse_orders([text], RUNS)


def test_a_repeated_order_is_refused() -> None:
    with pytest.raises(Invalid, match="duplicate"):
        parse_orders(["start_time", "Created DESC"], RUNS)
    assert len(parse_orders(["metrics.a", "params.a"], RUNS)) == 2


def test_an_experiment_id_is_a_number() -> None:
    assert [experiment_id(text) for text in ("0", " 12 ", "99999999999", "-5")] == [0, 12, -1, -1]
    for text in ("", "x", "1.5", "1" * 5000):
        with pytest.raises(Invalid):
            experiment_id(text)


def test_a_page_token_holds_the_offset_of_the_page() -> None:
    assert read_offset("") == 0
    assert read_offset(write_token({"offset": 12})) == 12
    for content in ({}, {"offset": 0}, {"offset": -1}, {"offset": "x"}, {"offset": 1 << 63}):
        with pytest.raises(Invalid):
            read_offset(write_token(content))


_TOKENS = (
    "metrics params tags attributes run_id start_time name a é LIKE IN NOT IS NULL AND OR desc"
)
_SIGNS = [".", " ", "\n", "'", '"', "`", "\\", "''", "(", ")", ",", "=", "!=", ">", ";", "--", "$"]
_ODD = ["1", "-", "1e9", "\0", "\ud800"]
_PIECES = st.sampled_from([*_TOKENS.split(), *_SIGNS, *_ODD])
_TEXTS = st.lists(_PIECES, max_size=30).map("".join) | st.text(max_size=30)


@given(_TEXTS, st.sampled_from(ALL))
def test_any_filter_is_parsed_or_refused(text: str, grammar: Grammar) -> None:
    try:
        clauses = parse_filter(text, grammar)
    except Invalid:
        return
    assert all(clause.kind in grammar.kinds.values() for clause in clauses)


@given(_TEXTS, st.sampled_from(ALL))
def test_any_order_is_parsed_or_refused(text: str, grammar: Grammar) -> None:
    try:
        orders = parse_orders([text], grammar)
    except Invalid:
        return
    assert len(orders) == 1


@given(
    st.text(max_size=30)
    | st.recursive(st.none() | st.floats(), st.lists).map(lambda x: write_token({"offset": x}))
)
def test_any_page_token_is_parsed_or_refused(token: str) -> None:
    try:
        offset = read_offset(token)
    except Invalid:
        return
    assert 0 <= offset < 1 << 63


def test_many_quotes_are_parsed_in_linear_time() -> None:
    for text in ("(" + "'" * 50_000, "x = " + "\\'" * 40_000, '("' * 30_000, "`" * 99_999):
        with pytest.raises(Invalid):
            parse_filter(text, RUNS)
