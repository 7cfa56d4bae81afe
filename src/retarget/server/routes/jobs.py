"""/api/jobs: submit, list, follow, cancel, rerun and delete jobs."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Query, Response
from fastapi.responses import FileResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from retarget.control import jobs, submit
from retarget.control.context import Context
from retarget.control.hints import hint_of
from retarget.control.kept import kept_of
from retarget.control.locks import lock_of
from retarget.control.outputs import find_file, list_files
from retarget.core.errors import Invalid, NotFound
from retarget.core.events import Noun, of_job
from retarget.core.job_queries import parse_logged
from retarget.core.jobs import Amount, Attempt, Job, JobSpec, Output
from retarget.core.labels import LabelChanges
from retarget.core.reruns import Changes
from retarget.server import stream as streams
from retarget.server.auth import ContextDep, StateDep
from retarget.server.openapi_links import (
    JOB_LINKS,
    JOBS_LINKS,
    NEW_JOB_LINKS,
    OUTPUTS_LINKS,
    STREAMS_LINKS,
)
from retarget.server.request_bodies import BoundedRoute
from retarget.server.routes.blobs import BYTES
from retarget.server.routes.job_lists import JobListQuery, find_jobs
from retarget.server.views import (
    JobView,
    LogTime,
    Plan,
    StreamView,
    TransitionView,
    Why,
    job_view,
    transition_view,
)

router = APIRouter(route_class=BoundedRoute, prefix="/api/jobs", tags=["jobs"])


class Batch(BaseModel):
    """Jobs that are queued together, or not at all."""

    model_config = ConfigDict(extra="forbid")

    jobs: Annotated[list[JobSpec], Field(min_length=1, max_length=1000)]


class WaitRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    jobs: Annotated[list[str], Field(max_length=1000)]
    timeout_seconds: Annotated[Amount, Field(ge=0, le=30)] = 0.0


class WaitAnswer(BaseModel):
    """Jobs, and whether all of them have ended."""

    jobs: list[JobView]
    done: bool


class LogQuery(BaseModel):
    """Which bytes of a job's log to read."""

    stream: str | None = None
    attempt: Annotated[int, Query(ge=1)] | None = None
    offset: Annotated[int, Query(ge=0, le=2**60)] = 0
    follow: bool = False


class StreamQuery(BaseModel):
    """Which stream of a job's log to look at."""

    stream: str = "output"
    attempt: Annotated[int, Query(ge=1)] | None = None


@router.post("", status_code=201, responses={201: NEW_JOB_LINKS})
def submit_job(spec: JobSpec, context: ContextDep) -> JobView:
    """Queue a job. A job that could never run is refused, with the reason."""
    return job_view(submit.submit(context, spec))


@router.post("/batch", status_code=201)
def submit_jobs(batch: Batch, context: ContextDep) -> list[JobView]:
    """Queue many jobs. If one could never run, none is queued; the error names it and says why."""
    return [job_view(job) for job in submit.submit_all(context, batch.jobs)]


@router.post("/wait")
async def wait_for_jobs(body: WaitRequest, state: StateDep) -> WaitAnswer:
    """Show many jobs by id, once all of them have ended or the timeout has passed.

    The response excludes jobs that do not exist or are deleted meanwhile.
    """
    unfinished = await run_sync(_unfinished, state.context, body.jobs)
    deadline = time.monotonic() + body.timeout_seconds
    while unfinished and deadline > time.monotonic() and not state.bus.closed:
        # all of them must end: it does not matter which one is waited for
        await _wait_until_final(state, unfinished[-1], deadline)
        unfinished = await run_sync(_unfinished, state.context, unfinished)
    jobs = await run_sync(state.context.store.jobs.read_all, body.jobs)
    views = await run_sync(_views, state.context, jobs)
    return WaitAnswer(jobs=views, done=not unfinished)


@router.post("/plan")
def plan_job(spec: JobSpec, context: ContextDep) -> Plan:
    """Return what submitting this job would do, without submitting it."""
    return Plan(**submit.plan(context, spec))


@router.get("", responses={200: JOBS_LINKS})
def list_jobs(context: ContextDep, query: Annotated[JobListQuery, Query()]) -> list[JobView]:
    """List jobs, newest first, or in the order of `sort`.

    To page through the newest jobs, pass the id of the last job as `before`; to page through
    others, pass `offset`.
    """
    keys = [parse_logged(title) for title in query.logged]
    page = find_jobs(context, query)
    views = _views(context, page)
    if not keys:
        return views
    logged = context.store.searches.logged([job.id for job in page], keys)
    return [view.model_copy(update={"logged": logged.get(view.id, {})}) for view in views]


@router.get("/{job}", responses={200: JOB_LINKS})
async def show_job(
    job: str,
    state: StateDep,
    wait: Annotated[float, Query(ge=0, le=30)] = 0.0,
    version: int | None = None,
) -> JobView:
    """Show a job. With `wait` and `version`, wait up to `wait` seconds for another version."""
    context = state.context
    current = await run_sync(context.store.jobs.find, job)
    deadline = time.monotonic() + wait
    with state.bus.subscribe(of_job(current.id, Noun.JOB)) as subscription:
        while current.version == version and not state.bus.closed:
            current = await run_sync(context.store.jobs.read, current.id)
            remaining = deadline - time.monotonic()
            if current.version != version or remaining <= 0:
                break
            await subscription.wait(remaining)
    return await run_sync(_full_view, context, current)


@router.patch("/{job}", responses={200: JOB_LINKS})
def update_job(job: str, body: LabelChanges, context: ContextDep) -> JobView:
    """Change the display name, description and tags of a job, and add properties."""
    return _full_view(context, jobs.relabel(context, job, body))


@router.get("/{job}/history")
def show_history(job: str, context: ContextDep) -> list[TransitionView]:
    """List the state transitions of a job, oldest first."""
    transitions = context.store.jobs.history(context.store.jobs.find(job).id)
    return [transition_view(transition) for transition in transitions]


@router.get("/{job}/why")
def explain_job(job: str, context: ContextDep) -> Why:
    """Explain why a job is in its current state."""
    return Why(**jobs.why(context, context.store.jobs.find(job)))


@router.post("/{job}/cancel", status_code=202, responses={202: NEW_JOB_LINKS})
def cancel_job(job: str, context: ContextDep) -> JobView:
    """Cancel a job. It ends once its processes have stopped."""
    return _views(context, [jobs.cancel(context, job)])[0]


@router.post("/{job}/rerun", status_code=201, responses={201: NEW_JOB_LINKS})
def rerun_job(job: str, body: Changes, context: ContextDep) -> JobView:
    """Submit a job again. The fields of the body change the new job; the others stay the same."""
    return job_view(submit.rerun(context, context.store.jobs.find(job), body))


@router.delete("/{job}", status_code=204)
def delete_job(job: str, context: ContextDep) -> Response:
    """Delete a job that has ended, with its logs, outputs and artifacts."""
    jobs.delete(context, job)
    return Response(status_code=204)


@router.get("/{job}/streams", responses={200: STREAMS_LINKS})
def list_streams(
    job: str, context: ContextDep, attempt: Annotated[int | None, Query(ge=1)] = None
) -> list[StreamView]:
    """List the log streams of an attempt, by default of the latest one."""
    chosen = _find_attempt(context, context.store.jobs.find(job), attempt)
    if chosen is None:
        return []
    names = context.files.streams.names(chosen.key)
    return [
        StreamView(stream=name, size=context.files.streams.size(chosen.key, name)) for name in names
    ]


@router.get("/{job}/log-times", responses={200: STREAMS_LINKS})
def list_log_times(
    job: str, context: ContextDep, query: Annotated[StreamQuery, Query()]
) -> list[LogTime]:
    """List the sizes of a stream over time. Bytes of the log before a size are at least that old.

    The last entry is the present size: the script has exited by then, or it is now.
    """
    subject = context.store.jobs.find(job)
    attempt = _find_attempt(context, subject, query.attempt)
    if attempt is None:
        return []
    streams.check_stream(context, subject, attempt, query.stream)
    size = context.files.streams.size(attempt.key, query.stream)
    marks = context.files.streams.marks(attempt.key, query.stream)
    end = _end_of(attempt, query.stream) or context.clock()
    return [LogTime(size=mark, at=at) for mark, at in streams.with_end(marks, size, end)]


@router.get("/{job}/logs", response_class=StreamingResponse, responses={200: BYTES})
async def read_logs(
    job: str, state: StateDep, query: Annotated[LogQuery, Query()]
) -> StreamingResponse:
    """Read a log as raw bytes. With `follow`, the response ends when no more can arrive.

    Without `stream`, read the output of the script. If the job has several processes, these are
    the lines of all ranks, each prefixed with its rank.
    """
    context, bus = state.context, state.bus
    subject = await run_sync(context.store.jobs.find, job)
    attempt = await _wait_for_attempt(state, subject, query)
    if attempt is None:
        return StreamingResponse(iter([b""]), media_type="application/octet-stream")
    if query.stream is not None:
        check = partial(streams.check_stream, may_appear=query.follow)
        await run_sync(check, context, subject, attempt, query.stream)
    merged = query.stream is None and subject.spec.nodes * subject.spec.processes_per_node > 1
    if merged and query.offset:
        raise Invalid("offset: reading from an offset needs a stream", field="offset")
    if merged and query.follow:
        chunks = streams.follow_ranks(context, bus, attempt)
    elif merged:
        chunks = streams.read_ranks(context, attempt)
    elif query.follow:
        name = query.stream or "output"
        chunks = streams.follow_stream(context, bus, attempt, name, query.offset)
    else:
        chunks = streams.read_stream(context, attempt, query.stream or "output", query.offset)
    headers = {"Retarget-Attempt": str(attempt.number)}
    return StreamingResponse(chunks, media_type="application/octet-stream", headers=headers)


@router.get("/{job}/outputs", responses={200: OUTPUTS_LINKS})
def list_outputs(job: str, context: ContextDep) -> list[Output]:
    """List the files of a job: its outputs/ and logs/, and the artifacts of its run."""
    return list_files(context, context.store.jobs.find(job))


@router.get("/{job}/outputs/{path:any}", response_class=FileResponse, responses={200: BYTES})
def read_output(job: str, path: str, context: ContextDep) -> FileResponse:
    """Download a file of a job."""
    output = find_file(context, context.store.jobs.find(job), path)
    return FileResponse(
        context.files.blobs.path(output.digest), media_type="application/octet-stream"
    )


def _unfinished(context: Context, ids: list[str]) -> list[str]:
    states = context.store.jobs.states(ids)
    return [job_id for job_id in ids if job_id in states and not states[job_id].is_final]


async def _wait_until_final(state: StateDep, job_id: str, deadline: float) -> None:
    """Return once a job is final or deleted, or at the deadline."""
    with state.bus.subscribe(of_job(job_id, Noun.JOB)) as subscription:
        while await run_sync(_unfinished, state.context, [job_id]) and not state.bus.closed:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return
            await subscription.wait(remaining)


def _views(context: Context, page: Sequence[Job]) -> list[JobView]:
    labels = context.store.jobs.labels(page)
    return [job_view(job, labels[job.id], hint_of(context, job)) for job in page]


def _full_view(context: Context, job: Job) -> JobView:
    """Return what a listing shows of a job, with its attempts and what belongs to them."""
    attempts = context.store.jobs.attempts(job.id)
    labels = context.store.jobs.labels([job])[job.id]
    view = job_view(job, labels, hint_of(context, job), attempts)
    more = {"lock": lock_of(context, attempts), "kept": kept_of(context, job)}
    return view.model_copy(update=more)


def _end_of(attempt: Attempt, stream: str) -> float | None:
    """Return when the last byte of a stream was written, if no more can come."""
    if stream == "prepare":
        return attempt.started_at or attempt.ended_at
    return attempt.exited_at or attempt.ended_at


async def _wait_for_attempt(state: StateDep, job: Job, query: LogQuery) -> Attempt | None:
    """Return the requested attempt. With `follow`, wait for the first attempt of a queued job."""
    context = state.context
    attempt = await run_sync(_find_attempt, context, job, query.attempt)
    with state.bus.subscribe(of_job(job.id, Noun.JOB)) as subscription:
        while attempt is None and query.follow and not state.bus.closed:
            job = await run_sync(context.store.jobs.read, job.id)
            attempt = await run_sync(_find_attempt, context, job, query.attempt)
            if attempt is None and job.state.is_final:
                return None
            if attempt is None:
                await subscription.wait()
    return attempt


def _find_attempt(context: Context, job: Job, number: int | None) -> Attempt | None:
    attempts = context.store.jobs.attempts(job.id)
    if number is None:
        return attempts[-1] if attempts else None
    for attempt in attempts:
        if attempt.number == number:
            return attempt
    raise NotFound(f"job {job.name!r} has no attempt {number}; it has {len(attempts)}")
