"""The jobs of a workspace: finds, lists and waits for them."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from retarget.core.errors import Invalid, NotFound
from retarget.core.states import JobState
from retarget.sdk import arguments
from retarget.sdk.display import Collection, Listing
from retarget.sdk.follow import Expired, Watch, job_path
from retarget.sdk.http import Connection
from retarget.sdk.job import Job
from retarget.sdk.records import rows

_PAGE_SIZE = 100
_MAX_JOBS_PER_WAIT = 1000
# with one of these, pages are counted; without them, a page begins below the last job of the other
_SEARCH_PARAMETERS = ("tag", "filter", "sort", "name", "older_than")
_PREVIEW_JOBS = 100  # shown in a notebook, and offered by completion

# what an error about an unknown job names: the server a command, and the SDK a method
_LIST_COMMAND = "`retarget job list` shows them"
LIST_METHOD = "workspace.jobs.list() returns the jobs"


class Jobs(Collection[Job]):
    """The jobs of a workspace."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.label)
        self._connection = connection

    def __getitem__(self, name: str) -> Job:
        """Return the job with this name or id; raise NotFound if there is none."""
        try:
            return Job(self._connection, self._connection.get(job_path(name)))
        except NotFound as error:
            raise NotFound(str(error).replace(_LIST_COMMAND, LIST_METHOD)) from None

    def __iter__(self) -> Iterator[Job]:
        return self._pages({})

    def list(  # noqa: PLR0913  the parameters are spelled out for help() and for completion
        self,
        *,
        state: str | Sequence[str] | None = None,
        target: str | None = None,
        experiment: str | None = None,
        limit: int | None = 100,
        filter: str | None = None,
        sort: str | None = None,
        name: str | None = None,
        older_than: float | str | None = None,
        logged: Sequence[str] = (),
        tags: Mapping[str, Any] | None = None,
    ) -> Listing[Job]:
        """List jobs, newest first, or in the order of `sort`.

        Args:
            state: Only jobs in this state, or in one of these states.
            target: Only jobs on this target.
            experiment: Only jobs of this experiment.
            limit: The maximum number of jobs; None for all.
            filter: Only jobs for which this holds: `"metrics.acc > 0.9 and params.lr = '0.1'"`.
            sort: `"metrics.acc"`, `"params.lr"` or a field such as `"name"`; with a `-` in front in
                descending order. Jobs without the value come last.
            name: Only jobs whose names match this pattern: `"sweep-*"`.
            older_than: Only jobs older than this, in seconds or as a string such as `"7d"`. Age
                counts from the end of a job, or from its submission if it has not ended.
            tags: Only jobs with these tags, such as `{"team": "vision"}`; None as the value stands
                for any value.
            logged: Values to read for each job, such as `"metrics.acc"`; see `Job.logged`.
        """
        if limit is not None:
            arguments.check("limit", limit, arguments.COUNT)
            if limit < 1:
                raise Invalid(f"limit: {limit} is not a positive number", field="limit")
        query: dict[str, Any] = {"state": state, "target": target, "experiment": experiment}
        query |= {"filter": filter, "sort": sort, "name": name, "older_than": older_than}
        query["logged"] = [*logged] or None
        query["tag"] = _tag_texts(tags or {}) or None
        jobs: Listing[Job] = Listing()
        for job in self._pages(query, size=min(limit or _PAGE_SIZE, _PAGE_SIZE)):
            if limit is not None and len(jobs) >= limit:
                break
            jobs.append(job)
        return jobs

    def _pages(self, query: dict[str, Any], *, size: int = _PAGE_SIZE) -> Iterator[Job]:
        is_search = any(query.get(name) is not None for name in _SEARCH_PARAMETERS)
        next_page: dict[str, Any] = {}
        count = 0
        while True:
            answer = self._connection.get("/api/jobs", {**query, "limit": size, **next_page})
            page = [Job(self._connection, raw) for raw in rows(answer)]
            yield from page
            if len(page) < size:
                return
            count += len(page)
            next_page = {"offset": count} if is_search else {"before": page[-1].id}

    def _preview(self) -> Listing[Job]:
        return self.list(limit=_PREVIEW_JOBS)


def _tag_texts(tags: Mapping[str, Any]) -> list[str]:
    changes = arguments.label_changes("tags", tags)
    return [key if value is None else f"{key}={value}" for key, value in changes.items()]


def wait_all(connection: Connection, jobs: list[Job], timeout: float | None) -> list[JobState]:
    """Wait for many jobs with one request at a time, even if the server restarts meanwhile."""
    deadline = None if timeout is None else time.monotonic() + timeout
    by_id = {job.id: job for job in jobs}
    ids = list(by_id)
    for first in range(0, len(ids), _MAX_JOBS_PER_WAIT):
        batch = ids[first : first + _MAX_JOBS_PER_WAIT]
        watch = Watch(connection, by_id[batch[0]].to_json(), deadline)
        try:
            answers = watch.wait_for_all(batch)
        except Expired:
            answers = [by_id[job_id].refresh().to_json() for job_id in batch]
        for answer in answers:
            if answer["id"] in by_id:
                by_id[answer["id"]].refresh(answer)
    return [job.state for job in jobs]
