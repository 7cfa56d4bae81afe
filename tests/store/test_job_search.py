"""Searches for jobs: every way to run a query returns the same as plain Python."""

import fnmatch
import math
from collections.abc import Callable

import pytest
from sqlalchemy import Engine, insert, update

from retarget.core.job_queries import JobQuery, parse_job_filter, parse_job_sort, parse_logged
from retarget.core.jobs import Job
from retarget.core.states import JobState
from retarget.store.engine import reading, writing
from retarget.store.job_search import find_jobs, read_logged
from retarget.store.schema import jobs as job_table
from retarget.store.schema import metrics, params

Add = Callable[..., Job]
VALUES = [0.5, -1.0, math.nan, None, 2.0, 0.5]


@pytest.fixture
def made(engine: Engine, add: Add) -> list[Job]:
    """Twelve jobs, oldest first; each second one has ended, and most have logged something."""
    made = [
        add(f"{'sweep' if number % 3 else 'other'}-{number:02}", experiment=f"e{number % 2}")
        for number in range(12)
    ]
    with writing(engine) as db:
        for number, job in enumerate(made):
            value = VALUES[number % len(VALUES)]
            if value is not None:
                row = {"run_id": job.id, "key": "acc", "step": 0, "logged_at": 0}
                is_nan = math.isnan(value)
                db.execute(insert(metrics).values(**row, value=0 if is_nan else value, nan=is_nan))
            if number % 4:
                db.execute(insert(params).values(run_id=job.id, key="lr", value=f"0.{number % 4}"))
            if number % 2:
                ended = {"state": "failed", "started_at": 2000.0, "ended_at": 2000.0 + number}
                db.execute(update(job_table).where(job_table.c.id == job.id).values(**ended))
    return made


@pytest.fixture(params=[0, 1000], ids=["probes", "sets"])
def numbers(engine: Engine, made: list[Job], request: pytest.FixtureRequest) -> "Numbers":
    """Return the numbers of the jobs that a query finds, in order."""
    numbers = {job.id: number for number, job in enumerate(made)}

    def find(query: JobQuery) -> list[int]:
        with reading(engine) as db:
            return [numbers[job_id] for job_id in find_jobs(db, query, few=request.param)]

    return find


Numbers = Callable[[JobQuery], list[int]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("metrics.acc > 0", [11, 10, 6, 5, 4, 0]),
        ("metrics.acc > 0 and params.lr = 0.1", [5]),
        ("metrics.acc != 0.5", [10, 8, 7, 4, 2, 1]),  # NaN differs from every number
        ("params.lr IN ('0.1', '0.2') and state = failed", [9, 5, 1]),
        ("params.lr IS NULL", [8, 4, 0]),
        ("params.lr > 0.1 and params.lr < 0.25", [10, 6, 2]),
        ("took > 8 and experiment = e1", [11, 9]),
        ("name LIKE 'other-%' and exit_code = 3", []),
        ("ended_at > '1970-01-01T00:33:27Z'", [11, 9]),
    ],
)
def test_jobs_are_filtered_by_what_they_logged(
    numbers: Numbers, text: str, expected: list[int]
) -> None:
    assert numbers(JobQuery(clauses=parse_job_filter(text))) == expected


def test_only_parameters_that_are_numbers_compare_with_a_number(
    engine: Engine, made: list[Job], numbers: Numbers
) -> None:
    values = ["1e-05", "-3", "10", "x", "nan", "", "[1]", "true", "1" * 400, "1e999", "1e5 ", '"9"']
    with writing(engine) as db:
        for job, value in zip(made, values, strict=True):
            db.execute(insert(params).values(run_id=job.id, key="n", value=value))
    clauses = parse_job_filter("params.n < 1e50 and params.n > 0")
    assert numbers(JobQuery(clauses=clauses)) == [10, 2, 0]
    assert numbers(JobQuery(clauses=parse_job_filter("params.n <= 0.5"))) == [1, 0]


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("metrics.acc", [7, 1, 11, 6, 5, 0, 10, 4, 8, 2, 9, 3]),
        ("-metrics.acc", [10, 4, 11, 6, 5, 0, 7, 1, 8, 2, 9, 3]),
        ("params.lr desc", [11, 7, 3, 10, 6, 2, 9, 5, 1, 8, 4, 0]),
        ("name", [0, 3, 6, 9, 1, 2, 4, 5, 7, 8, 10, 11]),
        ("-took", [11, 9, 7, 5, 3, 1, 10, 8, 6, 4, 2, 0]),
        ("created_at", list(range(12))),
    ],
)
def test_jobs_are_sorted_and_those_without_a_value_come_last(
    numbers: Numbers, sort: str, expected: list[int]
) -> None:
    order = parse_job_sort(sort)
    assert numbers(JobQuery(order=order)) == expected
    pages = [numbers(JobQuery(order=order, limit=5, offset=offset)) for offset in (0, 5, 10)]
    assert [number for page in pages for number in page] == expected


def test_filters_and_orders_combine(numbers: Numbers) -> None:
    query = JobQuery(
        states=(JobState.FAILED,),
        experiment="e1",
        name="sweep-*",
        clauses=parse_job_filter("metrics.acc >= -1"),
        order=parse_job_sort("-metrics.acc"),
    )
    assert numbers(query) == [11, 5, 7, 1]


@pytest.mark.parametrize(
    "pattern", ["*", "sweep-*", "*-0?", "sweep-[01]?", "[!s]*", "sweep-1.", "x"]
)
def test_a_pattern_means_the_same_as_in_a_shell(
    numbers: Numbers, made: list[Job], pattern: str
) -> None:
    matching = [n for n, job in enumerate(made) if fnmatch.fnmatchcase(job.name, pattern)]
    assert numbers(JobQuery(name=pattern)) == matching[::-1]


def test_the_age_of_a_job_counts_from_its_end(numbers: Numbers) -> None:
    assert numbers(JobQuery(older_than_at=1003.0)) == [2, 0]  # these have not ended
    assert numbers(JobQuery(older_than_at=2004.0, states=(JobState.FAILED,))) == [3, 1]


def test_the_latest_values_of_many_jobs_are_read_at_once(engine: Engine, made: list[Job]) -> None:
    keys = [parse_logged("metrics.acc"), parse_logged("params.lr")]
    with reading(engine) as db:
        values = read_logged(db, [job.id for job in made], keys)
    assert values[made[1].id] == {"metrics.acc": -1.0, "params.lr": "0.1"}
    assert math.isnan(float(values[made[2].id]["metrics.acc"]))
    assert values[made[3].id] == {"params.lr": "0.3"}
