"""Commands beside the script of a running job."""

import socket
from typing import NamedTuple

from retarget.control.context import Context
from retarget.core.driver import Executes, Handle
from retarget.core.errors import Conflict, Invalid
from retarget.core.jobs import Attempt, Job
from retarget.core.states import JobState

S = JobState
_NOT_RUNNING = {
    S.QUEUED: "is queued, so nothing of it runs yet",
    S.LAUNCHING: "is being launched, so its script does not run yet",
    S.PREPARING: "is still preparing its code and environment",
    S.FINALIZING: "is uploading its outputs, and its script has exited",
    S.CANCELING: "is being canceled",
}


class ScriptProcess(NamedTuple):
    """A process of the script of a job."""

    node: int
    local_rank: int


def open_exec(
    context: Context, name: str, *, rank: int | None, node: int | None
) -> tuple[socket.socket, ScriptProcess]:
    """Connect to the runner of a job. Raise Conflict, with the reason, if that is impossible."""
    job = context.store.jobs.find(name)
    process = process_of(job, rank=rank, node=node)
    if job.state is not S.RUNNING:
        raise Conflict(f"job {job.name!r} {_why_not(job)}; a command needs a running job")
    attempt: Attempt = context.store.jobs.attempts(job.id)[-1]
    driver = context.driver(attempt.target)
    if not isinstance(driver, Executes):
        kind = context.store.targets.find(attempt.target).kind
        raise Conflict(f"targets of kind {kind!r} cannot run commands beside a script")
    if attempt.handle is None:  # the driver has not returned yet
        raise Conflict(f"job {job.name!r} is still being launched; try again")
    return driver.open_exec(Handle(attempt.handle), process.node), process


def process_of(job: Job, *, rank: int | None, node: int | None) -> ScriptProcess:
    """Return the process with a rank, or the first one on a node. By default rank 0. Pure."""
    size, nodes = job.spec.processes_per_node, job.spec.nodes
    if rank is not None and node is not None:
        raise Invalid("rank and node exclude each other; choose one", field="rank")
    if rank is not None and not 0 <= rank < size * nodes:
        raise Invalid(f"job {job.name!r} has no rank {rank}: it has {size * nodes}", field="rank")
    if node is not None and not 0 <= node < nodes:
        raise Invalid(f"job {job.name!r} has no node {node}: it has {nodes}", field="node")
    if rank is None:
        return ScriptProcess(node or 0, 0)
    return ScriptProcess(rank // size, rank % size)


def _why_not(job: Job) -> str:
    if job.state.is_final:
        return f"has ended: {job.state.value}"
    return _NOT_RUNNING[job.state]
