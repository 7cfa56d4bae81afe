"""Resolves an attempt of a job into a launch."""

from retarget.control.context import Context
from retarget.core.driver import Launch
from retarget.core.errors import NotFound
from retarget.core.jobs import Attempt, Job
from retarget.core.locks import Lock
from retarget.core.targets import Inventory
from retarget.core.tokens import runner_key, script_token


def launch_of(context: Context, job: Job, attempt: Attempt, inventory: Inventory | None) -> Launch:
    """Return the launch of an attempt: the driver needs nothing else."""
    spec = job.spec
    return Launch(
        key=attempt.key,
        job=job.id,
        name=job.name,
        experiment_id=_experiment_of(context, job),
        command=spec.command,
        variables=_gpu_variables(attempt, inventory) | spec.variables,
        snapshot=spec.snapshot,
        environment=spec.environment,
        cpus=spec.cpus,
        memory=spec.memory,
        allocations=attempt.allocations,
        nodes=spec.nodes,
        processes_per_node=spec.processes_per_node,
        timeout=spec.timeout,
        grace_seconds=spec.grace_seconds,
        lost_after_seconds=attempt.lost_after_seconds,
        secrets=spec.secrets,
        own_packages=spec.own_packages,
        required_packages=spec.required_packages,
        allow_pip=spec.allow_pip,
        url=context.settings.url,
        runner_key=runner_key(context.settings.secret, attempt.key),
        script_token=script_token(context.settings.secret, attempt.key),
        locks=_locks_of(context, job),
        conda_policy=context.settings.conda_policy,
        keep=spec.keep,
        keep_limit=context.settings.keep_limit,
        split_stderr=spec.split_stderr,
        events_acked=_events_acked(context, job, attempt),
    )


def _events_acked(context: Context, job: Job, attempt: Attempt) -> tuple[int, ...]:
    if job.spec.nodes == 1:
        return (attempt.events_acked,)
    reports = {
        report.node: report.events_acked for report in context.store.node_reports.of(attempt.key)
    }
    return tuple(reports.get(node, 0) for node in range(job.spec.nodes))


def _locks_of(context: Context, job: Job) -> tuple[Lock, ...]:
    digest = job.spec.environment.digest
    return () if digest is None else tuple(context.store.locks.of(digest))


def _experiment_of(context: Context, job: Job) -> str:
    try:
        return context.store.track.run_of(job.id)[0]
    except NotFound:
        return ""  # only a plan, or submitted before there were runs


def _gpu_variables(attempt: Attempt, inventory: Inventory | None) -> dict[str, str]:
    """Restrict a job to its GPUs, on a target that has any. A job without GPUs sees none."""
    if inventory is None or not any(node.gpus for node in inventory.nodes):
        return {}
    gpus = attempt.allocations[0].gpus if attempt.allocations else ()
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
