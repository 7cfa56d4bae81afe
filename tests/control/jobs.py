"""Jobs, attempts and inventories for the tests of control."""

from typing import Any

from retarget.core.jobs import Attempt, Job, JobSpec
from retarget.core.states import JobState
from retarget.core.targets import Allocation, Gpu, Inventory, Node


def job(
    name: str,
    *,
    state: JobState = JobState.QUEUED,
    attempt: int = 0,
    failures: int = 0,
    preemptions: int = 0,
    **fields: Any,
) -> Job:
    spec = JobSpec.model_validate({"command": ("true",), "name": name, **fields})
    return Job(
        id=name,
        name=name,
        state=state,
        reason="",
        version=0,
        spec=spec,
        attempt=attempt,
        failures=failures,
        preemptions=preemptions,
        created_at=0,
        changed_at=0,
    )


def running(name: str, *allocations: Allocation, **fields: Any) -> tuple[Job, Attempt]:
    live = job(name, state=JobState.RUNNING, attempt=1, **fields)
    attempt = Attempt(
        key=name,
        job_id=name,
        number=1,
        target="local",
        allocations=allocations or (Allocation(node="n0"),),
    )
    return live, attempt


def inventory(*, cpus: float = 2, memory: int = 2**30, gpus: int = 0, nodes: int = 1) -> Inventory:
    cards = tuple(Gpu(id=str(number)) for number in range(gpus))
    return Inventory(
        nodes=tuple(
            Node(name=f"n{number}", cpus=cpus, memory=memory, gpus=cards) for number in range(nodes)
        )
    )
