"""Display names, descriptions, tags and properties of jobs in SQL."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine

from retarget.core.errors import Conflict, Invalid
from retarget.core.job_queries import JobQuery, parse_job_filter, parse_job_sort
from retarget.core.jobs import Job
from retarget.core.labels import LabelChanges, Labels, parse_tags
from retarget.core.states import JobState
from retarget.store.engine import reading
from retarget.store.job_search import find_jobs
from retarget.store.jobs import Jobs
from retarget.store.runs import Runs

Add = Callable[..., Job]


def labels(jobs: Jobs, job: Job) -> Labels:
    return jobs.labels([job])[job.id]


def matches(engine: Engine, text: str = "", *tags: str, **query: Any) -> list[str]:
    clauses = (*parse_tags(tags), *parse_job_filter(text))
    with reading(engine) as db:
        ids = find_jobs(db, JobQuery(clauses=clauses, **query))
        return [job.name for job_id in ids for job in [Jobs(engine).read(job_id)]]


def test_a_job_begins_with_the_labels_of_its_spec(engine: Engine, jobs: Jobs, add: Add) -> None:
    job = add("a", display_name="A 1", description="first", tags={"team": "x"})
    assert labels(jobs, job) == Labels(display_name="A 1", description="first", tags={"team": "x"})
    run = Runs(engine).get(job.id)
    assert (run.name, run.tags["mlflow.note.content"], run.tags["team"]) == ("A 1", "first", "x")
    assert labels(jobs, add("b")) == Labels(display_name="b")


def test_labels_change_for_mlflow_too_and_the_spec_keeps_what_was_requested(
    engine: Engine, jobs: Jobs, add: Add
) -> None:
    job = add("a", description="first", tags={"team": "x", "old": "y"})
    changes = LabelChanges(
        display_name="New", description="", tags={"old": None, "b": "2"}, properties={"p": "1"}
    )
    changed = jobs.relabel(job, changes)
    assert (changed.version, jobs.read(job.id)) == (job.version + 1, changed)
    assert changed.spec.tags == {"team": "x", "b": "2"}
    assert changed.spec.properties == {"p": "1"}
    assert labels(jobs, job) == Labels(display_name="New", tags={"team": "x", "b": "2"})
    run = Runs(engine).get(job.id)
    assert run.name == run.tags["mlflow.runName"] == "New"
    assert "mlflow.note.content" not in run.tags
    assert "old" not in run.tags


def test_what_an_mlflow_client_sets_is_a_label_of_the_job(
    engine: Engine, jobs: Jobs, add: Add
) -> None:
    job = add("a", tags={"team": "x"})
    tags = {"team": "y", "mlflow.runName": "From MLflow", "mlflow.note.content": "note"}
    Runs(engine).log(job.id, tags=tags)
    assert labels(jobs, job) == Labels(
        display_name="From MLflow", description="note", tags={"team": "y"}
    )
    Runs(engine).delete(job.id, now=1)
    assert jobs.relabel(job, LabelChanges(tags={"team": "z"})).spec.tags == {"team": "z"}
    assert labels(jobs, job).tags == {"team": "z"}


def test_a_property_is_written_once(jobs: Jobs, add: Add) -> None:
    job = jobs.relabel(add("a"), LabelChanges(properties={"p": "1"}))
    job = jobs.relabel(job, LabelChanges(properties={"p": "1", "q": "2"}))
    with pytest.raises(Invalid, match="'p' is '1' already"):
        jobs.relabel(job, LabelChanges(properties={"p": "2", "r": "3"}, tags={"t": "u"}))
    assert jobs.read(job.id) == job
    assert job.spec.properties == {"p": "1", "q": "2"}


def test_one_of_two_writers_changes_the_labels(jobs: Jobs, add: Add) -> None:
    job = add("a")
    jobs.relabel(job, LabelChanges(properties={"p": "1"}))
    with pytest.raises(Conflict, match="has changed meanwhile"):
        jobs.relabel(job, LabelChanges(properties={"p": "2"}))
    assert jobs.read(job.id).spec.properties == {"p": "1"}


def test_jobs_are_found_and_sorted_by_their_labels(engine: Engine, jobs: Jobs, add: Add) -> None:
    add("a", display_name="ResNet 50", tags={"team": "x", "n": "10"}, properties={"commit": "1"})
    add("b", display_name="resnet 18", tags={"team": "y"}, description="the small one")
    add("c", tags={"team": "x"}, properties={"commit": "2"})
    assert matches(engine, "tags.team = 'x'") == ["c", "a"]
    assert matches(engine, "", "team=x") == ["c", "a"]
    assert matches(engine, "", "n") == ["a"]
    assert matches(engine, "display_name LIKE 'ResNet%'") == ["a"]
    assert matches(engine, "display_name ILIKE 'resnet%' and tags.team != 'x'") == ["b"]
    assert matches(engine, "display_name = 'c'") == ["c"]
    assert matches(engine, "description ILIKE '%SMALL%'") == ["b"]
    assert matches(engine, "properties.commit = '2'") == ["c"]
    assert matches(engine, "properties.commit IS NULL") == ["b"]
    order = parse_job_sort("display_name")
    assert matches(engine, order=order) == ["a", "c", "b"]
    assert matches(engine, order=order, offset=1, limit=1) == ["c"]
    assert matches(engine, order=parse_job_sort("-properties.commit")) == ["c", "a", "b"]


def test_deleting_a_job_deletes_its_labels(engine: Engine, jobs: Jobs, add: Add) -> None:
    job = add("a", tags={"team": "x"}, properties={"commit": "1"})
    jobs.delete(job.model_copy(update={"state": JobState.CANCELED}))
    assert matches(engine, "tags.team = 'x'") == matches(engine, "properties.commit = '1'") == []
    assert labels(jobs, job).tags == {}
