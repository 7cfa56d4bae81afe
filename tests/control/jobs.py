"""Jobs as the rules of control see them."""

from typing import Any

from retarget.core.jobs import Attempt, Job, JobSpec
from retarget.core.states import JobState
from retarget.core.targets import Facts, Gpu, Node, Share


def job(name: str, *, state: JobState = JobState.QUEUED, attempt: int = 0, **asked: Any) -> Job:
    spec = JobSpec.model_validate({"command": ("true",), "name": name, **asked})
    return Job(
        id=name,
        name=name,
        state=state,
        reason="",
        version=0,
        spec=spec,
        attempt=attempt,
        created=0,
        changed=0,
    )


def running(name: str, *shares: Share, **asked: Any) -> tuple[Job, Attempt]:
    live = job(name, state=JobState.RUNNING, attempt=1, **asked)
    given = shares or (Share(node="n0"),)
    return live, Attempt(key=name, job_id=name, number=1, target="local", shares=given)


def machine(*, cpus: float = 2, memory: int = 2**30, gpus: int = 0, nodes: int = 1) -> Facts:
    cards = tuple(Gpu(id=str(number)) for number in range(gpus))
    return Facts(
        nodes=tuple(
            Node(name=f"n{number}", cpus=cpus, memory=memory, gpus=cards) for number in range(nodes)
        )
    )
