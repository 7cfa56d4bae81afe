"""The query parameters of `GET /api/jobs`."""

from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

from retarget.control.context import Context
from retarget.core.errors import Invalid
from retarget.core.job_queries import (
    MAX_LOGGED,
    JobQuery,
    check_pattern,
    parse_job_filter,
    parse_job_sort,
)
from retarget.core.jobs import Job, Seconds
from retarget.core.labels import MAX_LABELS, parse_tags
from retarget.core.states import JobState

_MAX_OFFSET = 1_000_000


class JobListQuery(BaseModel):
    """Which jobs to list, and in which order."""

    model_config = ConfigDict(extra="ignore")

    state: list[JobState] = []
    target: str | None = None
    experiment: str | None = None
    name: Annotated[str | None, Query(description="A shell-style pattern: `sweep-*`")] = None
    older_than: Annotated[
        Seconds | None,
        Query(
            description="Only older jobs: `7d`. Age counts from the end of a job, or from its "
            "submission if it has not ended"
        ),
    ] = None
    tag: Annotated[
        list[str],
        Field(max_length=MAX_LABELS),
        Query(description="Only jobs with this tag: `team=vision`, or `team` with any value"),
    ] = []
    filter: Annotated[
        str | None,
        Query(description="Clauses joined by `and`: `metrics.acc > 0.9 and params.lr = '0.1'`"),
    ] = None
    sort: Annotated[
        str | None,
        Query(
            max_length=1000,
            description="`metrics.KEY`, `params.KEY`, `tags.KEY`, `properties.KEY` or a field; "
            "with `-` in front or `desc` behind it in descending order",
        ),
    ] = None
    logged: Annotated[
        list[str],
        Field(max_length=MAX_LOGGED),
        Query(description="Values to include: `metrics.acc`, `params.lr`; repeatable"),
    ] = []
    limit: Annotated[int, Query(ge=1, le=1000)] = 100
    before: Annotated[str | None, Query(description="The id of a job; only older ones")] = None
    offset: Annotated[int, Query(ge=0, le=_MAX_OFFSET)] = 0


def find_jobs(context: Context, query: JobListQuery) -> list[Job]:
    """Return the jobs that the query asks for, in its order."""
    if not _is_search(query):
        return context.store.jobs.list(
            states=query.state,
            target=query.target,
            experiment=query.experiment,
            limit=query.limit,
            before=query.before,
        )
    if query.before is not None:
        raise Invalid(
            "before: cannot be combined with a filter or an order; use offset", field="before"
        )
    ids = context.store.searches.jobs(_query(query, context.clock()))
    jobs = {job.id: job for job in context.store.jobs.read_all(ids)}
    return [jobs[job_id] for job_id in ids if job_id in jobs]


def _is_search(query: JobListQuery) -> bool:
    choices = (query.name, query.older_than, query.tag, query.filter, query.sort, query.offset)
    return any(choices)


def _query(query: JobListQuery, now: float) -> JobQuery:
    return JobQuery(
        states=tuple(query.state),
        target=query.target,
        experiment=query.experiment,
        name=None if query.name is None else check_pattern(query.name),
        older_than_at=None if query.older_than is None else now - query.older_than,
        clauses=(*parse_tags(query.tag), *parse_job_filter(query.filter or "")),
        order=None if query.sort is None else parse_job_sort(query.sort),
        limit=query.limit,
        offset=query.offset,
    )
