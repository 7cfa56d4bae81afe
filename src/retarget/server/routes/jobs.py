"""/api/jobs: submit, list, follow, order."""

import time
from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Query, Response
from fastapi.responses import FileResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from retarget.control import orders, submit
from retarget.control.left import find_left, left
from retarget.control.parts import Parts
from retarget.core.errors import Invalid, NotFound
from retarget.core.jobs import Amount, Attempt, Job, JobSpec, Move, Name, Output
from retarget.core.states import JobState
from retarget.server import stream as streams
from retarget.server.auth import PartsDep, StateDep
from retarget.server.bodies import BoundedRoute
from retarget.server.links import OF_JOB, OF_JOBS, OF_NEW_JOB, OF_OUTPUTS, OF_STREAMS
from retarget.server.routes.blobs import BYTES
from retarget.server.views import JobView, Plan, StreamView, Why, view_of

router = APIRouter(route_class=BoundedRoute, prefix="/api/jobs", tags=["jobs"])


class Rerun(BaseModel):
    model_config = ConfigDict(extra="forbid")

    target: Name | None = None
    name: Name | None = None


class Batch(BaseModel):
    """Jobs to be queued together, or not at all."""

    model_config = ConfigDict(extra="forbid")

    jobs: Annotated[list[JobSpec], Field(min_length=1, max_length=1000)]


class Waiting(BaseModel):
    model_config = ConfigDict(extra="forbid")

    jobs: Annotated[list[str], Field(max_length=1000)]
    timeout: Annotated[Amount, Field(ge=0, le=30)] = 0.0


class Waited(BaseModel):
    """Jobs, and whether all of them have ended."""

    jobs: list[JobView]
    done: bool


class LogQuery(BaseModel):
    """Which bytes of a job's log are wanted."""

    stream: str | None = None
    attempt: Annotated[int, Query(ge=1)] | None = None
    offset: Annotated[int, Query(ge=0, le=2**60)] = 0
    follow: bool = False


@router.post("", status_code=201, responses={201: OF_NEW_JOB})
def submit_job(spec: JobSpec, parts: PartsDep) -> JobView:
    """Queue a job. One that could never run is refused, with the sentence why."""
    return view_of(submit.submit(parts, spec))


@router.post("/batch", status_code=201)
def submit_jobs(batch: Batch, parts: PartsDep) -> list[JobView]:
    """Queue many jobs. If one could never run, none is queued; the sentence says which and why."""
    return [view_of(job) for job in submit.submit_all(parts, batch.jobs)]


@router.post("/wait")
async def wait_for_jobs(wanted: Waiting, state: StateDep) -> Waited:
    """Show many jobs, given by their ids, once all have ended or the time is over.

    A job that is deleted meanwhile, or is not there at all, is left out of the answer.
    """
    deadline = time.monotonic() + wanted.timeout
    found = await run_sync(state.parts.jobs.states, wanted.jobs)
    while left := [job for job in wanted.jobs if job in found and not found[job].is_final]:
        pause = deadline - time.monotonic()
        if pause <= 0 or state.signals.closed:
            break
        with state.signals.listening(left[-1]) as listener:
            now = await run_sync(state.parts.jobs.states, left)
            if now == {job: found[job] for job in left}:
                await listener.wait(min(pause, 1.0))
                now = await run_sync(state.parts.jobs.states, left)
        found = {job: found[job] for job in found if job not in left} | now
    jobs = await run_sync(state.parts.jobs.read_all, wanted.jobs)
    return Waited(jobs=[view_of(job) for job in jobs], done=not left)


@router.post("/plan")
def plan_job(spec: JobSpec, parts: PartsDep) -> Plan:
    """Tell what submitting this would do, and do nothing."""
    return Plan(**submit.plan(parts, spec))


@router.get("", responses={200: OF_JOBS})
def list_jobs(  # noqa: PLR0913 - each is a filter of the query
    parts: PartsDep,
    state: Annotated[list[JobState] | None, Query()] = None,
    target: str | None = None,
    experiment: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: str | None = None,
) -> list[JobView]:
    """List jobs, newest first. `before` takes the id of the last one seen."""
    found = parts.jobs.list(
        states=state or (), target=target, experiment=experiment, limit=limit, before=before
    )
    return [view_of(job) for job in found]


@router.get("/{job}", responses={200: OF_JOB})
async def show_job(
    job: str,
    state: StateDep,
    wait: Annotated[float, Query(ge=0, le=30)] = 0.0,
    version: int | None = None,
) -> JobView:
    """Show a job; with `wait` and `version`, as soon as it is no longer at that version."""
    parts = state.parts
    found = await run_sync(parts.jobs.find, job)
    deadline = time.monotonic() + wait
    with state.signals.listening(found.id) as listener:
        while found.version == version and not state.signals.closed:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            listener.rearm()
            found = await run_sync(parts.jobs.read, found.id)
            if found.version == version:
                await listener.wait(min(left, 1.0))
                found = await run_sync(parts.jobs.read, found.id)
    return view_of(found, await run_sync(parts.jobs.attempts, found.id))


@router.get("/{job}/history")
def show_history(job: str, parts: PartsDep) -> list[Move]:
    return parts.jobs.history(parts.jobs.find(job).id)


@router.get("/{job}/why")
def explain_job(job: str, parts: PartsDep) -> Why:
    """Say why a job is where it is."""
    return Why(**orders.why(parts, parts.jobs.find(job)))


@router.post("/{job}/cancel", status_code=202, responses={202: OF_NEW_JOB})
def cancel_job(job: str, parts: PartsDep) -> JobView:
    return view_of(orders.cancel(parts, job))


@router.post("/{job}/rerun", status_code=201, responses={201: OF_NEW_JOB})
def rerun_job(job: str, wanted: Rerun, parts: PartsDep) -> JobView:
    """Submit the same again, word for word, perhaps elsewhere."""
    again = submit.rerun(parts, parts.jobs.find(job), target=wanted.target, name=wanted.name)
    return view_of(again)


@router.delete("/{job}", status_code=204)
def delete_job(job: str, parts: PartsDep) -> Response:
    orders.delete(parts, job)
    return Response(status_code=204)


@router.get("/{job}/streams", responses={200: OF_STREAMS})
def list_streams(
    job: str, parts: PartsDep, attempt: Annotated[int | None, Query(ge=1)] = None
) -> list[StreamView]:
    """List the streams of the present attempt, or of the one asked for."""
    found = _attempt(parts, parts.jobs.find(job), attempt)
    if found is None:
        return []
    names = parts.streams.names(found.key)
    return [StreamView(stream=name, size=parts.streams.size(found.key, name)) for name in names]


@router.get("/{job}/logs", response_class=StreamingResponse, responses={200: BYTES})
async def read_logs(
    job: str, state: StateDep, query: Annotated[LogQuery, Query()]
) -> StreamingResponse:
    """Read a log as raw bytes. With `follow`, until no more can come.

    Without `stream`: the output of the script; of a job with several processes, the lines of all
    ranks, each with its rank before it.
    """
    parts, signals = state.parts, state.signals
    found = await run_sync(parts.jobs.find, job)
    attempt = await _existing(state, found, query)
    if attempt is None:
        return StreamingResponse(iter([b""]), media_type="application/octet-stream")
    if query.stream is not None:
        await run_sync(_check_stream, parts, found, attempt, query)
    merged = query.stream is None and found.spec.nodes * found.spec.processes_per_node > 1
    if merged and query.offset:
        raise Invalid("offset: name a stream to read from an offset", field="offset")
    if merged and query.follow:
        chunks = streams.follow_ranks(parts, signals, attempt)
    elif merged:
        chunks = streams.read_ranks(parts, attempt)
    elif query.follow:
        name = query.stream or "output"
        chunks = streams.follow_stream(parts, signals, attempt, name, query.offset)
    else:
        chunks = streams.read_stream(parts, attempt, query.stream or "output", query.offset)
    headers = {"Retarget-Attempt": str(attempt.number)}
    return StreamingResponse(chunks, media_type="application/octet-stream", headers=headers)


@router.get("/{job}/outputs", responses={200: OF_OUTPUTS})
def list_outputs(job: str, parts: PartsDep) -> list[Output]:
    """List the files a job has left so far: in outputs/ and logs/, and as artifacts of its run."""
    return left(parts, parts.jobs.find(job))


@router.get("/{job}/outputs/{path:any}", response_class=FileResponse, responses={200: BYTES})
def read_output(job: str, path: str, parts: PartsDep) -> FileResponse:
    output = find_left(parts, parts.jobs.find(job), path)
    return FileResponse(parts.blobs.path(output.digest), media_type="application/octet-stream")


def _check_stream(parts: Parts, job: Job, attempt: Attempt, query: LogQuery) -> None:
    """Raise unless there is, or may come to be, such a stream."""
    ranks = range(job.spec.nodes * job.spec.processes_per_node)
    usual = {"prepare", *(["output"] if len(ranks) == 1 else [f"rank-{rank}" for rank in ranks])}
    parts.streams.path(attempt.key, str(query.stream))
    there = {*parts.streams.names(attempt.key), *usual}
    may_come = query.follow and attempt.ended is None and str(query.stream).startswith("logs/")
    if query.stream not in there and not may_come:
        names = ", ".join(sorted(there))
        raise NotFound(f"job {job.name!r} has no stream {query.stream!r}; it has {names}")


async def _existing(state: StateDep, job: Job, query: LogQuery) -> Attempt | None:
    """Return the attempt asked for; a follower waits for the first one of a queued job."""
    parts = state.parts
    attempt = await run_sync(_attempt, parts, job, query.attempt)
    with state.signals.listening(job.id) as listener:
        while attempt is None and query.follow and not state.signals.closed:
            listener.rearm()
            job = await run_sync(parts.jobs.read, job.id)
            attempt = await run_sync(_attempt, parts, job, query.attempt)
            if attempt is None and job.state.is_final:
                return None
            if attempt is None:
                await listener.wait()
    return attempt


def _attempt(parts: Parts, job: Job, number: int | None) -> Attempt | None:
    attempts = parts.jobs.attempts(job.id)
    if number is None:
        return attempts[-1] if attempts else None
    for attempt in attempts:
        if attempt.number == number:
            return attempt
    raise NotFound(f"job {job.name!r} has no attempt {number}; it has had {len(attempts)}")
