"""Filters and orders of jobs, as users write them."""

import subprocess
import sys

import pytest

from retarget.core.errors import Invalid
from retarget.core.filters import Clause, Order, parse_filter
from retarget.core.grammars import RUNS, Kind
from retarget.core.job_queries import (
    check_pattern,
    parse_job_filter,
    parse_job_sort,
    parse_logged,
    parse_run_sort,
)


def test_a_filter_joins_clauses_and_needs_no_quotes() -> None:
    clauses = parse_job_filter("metrics.acc > 0.9 and params.lr = 0.1 and state = failed")
    assert clauses == (
        Clause(Kind.METRIC, "acc", ">", 0.9),
        Clause(Kind.PARAM, "lr", "=", "0.1"),
        Clause(Kind.ATTRIBUTE, "state", "=", "failed"),
    )


def test_a_parameter_is_compared_as_a_number_only_with_a_number() -> None:
    assert parse_job_filter("params.lr >= 1e-3 and params.lr = 0.1") == (
        Clause(Kind.PARAM, "lr", ">=", 0.001),
        Clause(Kind.PARAM, "lr", "=", "0.1"),
    )
    with pytest.raises(Invalid, match="Invalid comparator '>'"):  # MLflow's searches do not
        parse_filter("params.lr > '1'", RUNS)
    with pytest.raises(Invalid):
        parse_filter("params.lr > 1", RUNS)


def test_times_are_iso_8601_in_utc() -> None:
    (day, moment) = parse_job_filter(
        "created_at >= '1970-01-02' and ended_at < \"1970-01-01T01:00:00+01:00\""
    )
    assert (day.value, moment.value) == (86400.0, 0.0)
    with pytest.raises(Invalid, match="created_at: 'yesterday' is not a time"):
        parse_job_filter("created_at > 'yesterday'")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("acc > 0.9", "unknown field 'acc'; for a logged value write metrics.acc"),
        ("metrics.acc", "write for example: metrics.acc > 0.9"),
        ("state = faild", "unknown state 'faild'; states are queued"),
        (
            "params.lr > high",
            "'>' does not compare these values; use one of !=, =, LIKE, ILIKE, IN",
        ),
        ("metrics.acc > high", "Expected numeric value type"),
    ],
)
def test_a_wrong_filter_says_what_to_write(text: str, sentence: str) -> None:
    with pytest.raises(Invalid, match=sentence) as raised:
        parse_job_filter(text)
    assert raised.value.field == "filter"


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("name", Order(Kind.ATTRIBUTE, "name", True)),
        ("-took", Order(Kind.ATTRIBUTE, "took", False)),
        ("metrics.val/acc desc", Order(Kind.METRIC, "val/acc", False)),
        (" params.lr ASC ", Order(Kind.PARAM, "lr", True)),
        ("metrics.top 5", Order(Kind.METRIC, "top 5", True)),
    ],
)
def test_an_order_has_a_field_and_a_direction(text: str, order: Order) -> None:
    assert parse_job_sort(text) == order


@pytest.mark.parametrize("text", ["", "-", "acc", "-name desc", "datasets.x", "metrics."])
def test_a_wrong_order_is_refused(text: str) -> None:
    with pytest.raises(Invalid) as raised:
        parse_job_sort(text)
    assert raised.value.field == "sort"


def test_runs_are_sorted_by_our_own_words() -> None:
    assert parse_run_sort("-started_at") == Order(Kind.ATTRIBUTE, "start_time", False)
    with pytest.raises(Invalid, match="fields are ended_at, name, started_at, status"):
        parse_run_sort("target")


def test_logged_values_have_a_prefix() -> None:
    key = parse_logged("metrics.val/acc")
    assert (key.title, key.kind, key.key) == ("metrics.val/acc", Kind.METRIC, "val/acc")
    with pytest.raises(Invalid, match=r"write metrics\.KEY"):
        parse_logged("name")


@pytest.mark.parametrize("pattern", ["", "a b", "a/b", "é*", "*" * 11, "a" * 201])
def test_an_odd_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(Invalid, match="is not a pattern"):
        check_pattern(pattern)


def test_the_client_parses_filters_without_pydantic() -> None:
    # it takes longer to import than a command takes (decision 002)
    code = "import retarget.core.job_queries, sys; sys.exit('pydantic' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
