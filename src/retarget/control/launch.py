"""Makes a launch of a job's attempt: everything resolved, nothing left to ask."""

from retarget.control.parts import Parts
from retarget.core.driver import Launch
from retarget.core.errors import NotFound
from retarget.core.jobs import Attempt, Job
from retarget.core.targets import Facts
from retarget.core.tokens import attempt_token


def launch_of(parts: Parts, job: Job, attempt: Attempt, facts: Facts | None) -> Launch:
    spec = job.spec
    return Launch(
        key=attempt.key,
        job=job.id,
        name=job.name,
        experiment_id=_experiment_of(parts, job),
        command=spec.command,
        env=_gpu_variables(attempt, facts) | spec.env,
        snapshot=spec.snapshot,
        environment=spec.environment,
        cpus=spec.cpus,
        memory=spec.memory,
        shares=attempt.shares,
        nodes=spec.nodes,
        processes_per_node=spec.processes_per_node,
        timeout=spec.timeout,
        grace=spec.grace,
        fence=attempt.fence,
        url=parts.url,
        token=attempt_token(parts.secret, attempt.key),
    )


def _experiment_of(parts: Parts, job: Job) -> str:
    try:
        return parts.track.run_of(job.id)[0]
    except NotFound:
        return ""  # only planned, or submitted before there were runs


def _gpu_variables(attempt: Attempt, facts: Facts | None) -> dict[str, str]:
    """Give out GPUs, on a target that has any: a job that asked for none sees none."""
    if facts is None or not any(node.gpus for node in facts.nodes):
        return {}
    given = attempt.shares[0].gpus if attempt.shares else ()
    return {"CUDA_VISIBLE_DEVICES": ",".join(given)}
