"""Accepts jobs: rejects those that can never run, with the reason, and queues the others."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from retarget.control.context import Context
from retarget.control.job_secrets import (
    Draft,
    check_secrets,
    draft_again,
    draft_of,
    seal_own,
)
from retarget.control.launch import launch_of
from retarget.control.place import never_fits, waiting_reason
from retarget.control.snapshots import check_context, check_snapshot
from retarget.control.targets import inventory_of
from retarget.core.conda_policy import conda_notice
from retarget.core.driver import (
    CREDENTIALS,
    Driver,
    UsesCondaChannels,
    ValidatesEnvironments,
)
from retarget.core.errors import Conflict, Invalid, NotFound
from retarget.core.jobs import Allocation, Attempt, Job, JobSpec
from retarget.core.names import new_id, suggest_name
from retarget.core.reruns import Changes, changed_spec
from retarget.core.states import JobState
from retarget.core.targets import Inventory, Target, no_target

_MAX_TRIES = 8
_MAX_NOTICES = 100


def submit(context: Context, spec: JobSpec) -> Job:
    """Queue a job, or raise Invalid."""
    return _submit(context, draft_of(spec))


def submit_all(context: Context, specs: Sequence[JobSpec]) -> list[Job]:
    """Queue all jobs, or raise Invalid and queue none."""
    targets, drafts = _targets(context), list[Draft]()
    for index, spec in enumerate(specs):
        try:
            drafts.append(draft := draft_of(spec))
            target, _ = _admit(context, targets, draft)
            drafts[-1] = _with_notices(context, target, draft)
            check_context(context, spec.environment)
        except Invalid as error:
            field = f"jobs.{index}.{error.field}" if error.field else f"jobs.{index}"
            raise Invalid(f"jobs.{index}.{error}", field=field) from None
    return _queue(context, drafts)


def rerun(context: Context, job: Job, changes: Changes) -> Job:
    """Submit a job again, with these changes."""
    spec = changed_spec(job.spec, changes)
    return _submit(context, draft_again(context, job, spec, stored=changes.secrets))


def plan(context: Context, spec: JobSpec) -> dict[str, Any]:
    """Return what submitting this job would do, without submitting it."""
    draft = draft_of(spec)
    target, inventory = _admit(context, _targets(context), draft)
    spec = _with_notices(context, target, draft).spec
    now = context.clock()
    job = _job(new_id(now), spec, spec.name or "generated-name", now)
    allocations = tuple(Allocation(node=node.name) for node in inventory.nodes[: spec.nodes])
    attempt = Attempt(
        key=new_id(now), job_id=job.id, number=1, target=target.name, allocations=allocations
    )
    launch = launch_of(context, job, attempt, inventory)
    redacted = launch.model_copy(update=dict.fromkeys(CREDENTIALS, ""))
    return {
        "target": target.name,
        "kind": target.kind,
        "launch": redacted.model_dump(mode="json", exclude=set(CREDENTIALS)),
        "native": context.links.connect(target).plan(redacted),
        "notices": list(spec.notices),
    }


def _submit(context: Context, draft: Draft) -> Job:
    target, _ = _admit(context, _targets(context), draft)
    check_context(context, draft.spec.environment)
    return _queue(context, [_with_notices(context, target, draft)])[0]


def _targets(context: Context) -> dict[str, Target]:
    return {target.name: target for target in context.store.targets.list()}


def _admit(context: Context, targets: dict[str, Target], draft: Draft) -> tuple[Target, Inventory]:
    spec = draft.spec
    target = targets.get(spec.target)
    if target is None:
        raise Invalid(f"target: {no_target(spec.target, targets)}", field="target")
    inventory = inventory_of(context, target)
    obstacle = never_fits(spec, inventory, target.name)
    if obstacle is not None:
        raise Invalid(obstacle, field=obstacle.partition(":")[0])
    driver = _driver_here(context, target)
    if isinstance(driver, ValidatesEnvironments):
        driver.validate_environment(spec.environment)
    check_snapshot(context, spec.snapshot, "snapshot")
    check_secrets(context, draft)
    return target, inventory


def _with_notices(context: Context, target: Target, draft: Draft) -> Draft:
    """Return the draft with its notices for the user, or raise Invalid."""
    environment, driver = draft.spec.environment, _driver_here(context, target)
    obstacle = ""
    if environment.conda and isinstance(driver, UsesCondaChannels):
        obstacle = driver.conda_obstacle(environment)
    notice = conda_notice(environment, obstacle, context.settings.conda_policy)
    notices = (*draft.spec.warnings, *((notice,) if notice else ()))[:_MAX_NOTICES]
    return replace(draft, spec=draft.spec.model_copy(update={"notices": notices}))


def _driver_here(context: Context, target: Target) -> Driver | None:
    """Return the driver; None if the target belongs to another machine."""
    return (
        None
        if context.links.leases.elsewhere(target.name) is not None
        else context.links.connect(target)
    )


def _queue(context: Context, drafts: Sequence[Draft]) -> list[Job]:
    now = context.clock()
    jobs = _add(context, drafts, now)
    for spec in (draft.spec for draft in drafts):
        if spec.environment.kind != "user":
            context.store.environments.keep(spec.environment, now)
    context.bus.wake()
    return jobs


def _add(context: Context, drafts: Sequence[Draft], now: float) -> list[Job]:
    specs = [draft.spec for draft in drafts]
    chosen_names = [spec.name for spec in specs if spec.name is not None]
    _check_unique(chosen_names)
    for tries in range(_MAX_TRIES):
        names = _names(specs, tries)
        ids = sorted(new_id(now) for _ in specs)  # in the order of the specs
        try:
            jobs = [
                _job(job_id, spec, name, now)
                for job_id, spec, name in zip(ids, specs, names, strict=True)
            ]
            secrets = {
                job.id: seal_own(context, job.id, draft)
                for job, draft in zip(jobs, drafts, strict=True)
                if draft.values
            }
            context.store.jobs.add(*jobs, secrets=secrets)
            return jobs
        except NotFound as error:  # the target was detached meanwhile
            raise Invalid(f"target: {error}", field="target") from None
        except Conflict:
            if len(chosen_names) == len(specs) or context.store.jobs.names_in_use(chosen_names):
                raise
    raise Conflict("no free name found; choose one with --name")


def _check_unique(names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise Conflict(f"two of these jobs have the name {name!r}; job names must be unique")
        seen.add(name)


def _names(specs: Sequence[JobSpec], tries: int) -> list[str]:
    """Return unique names: those of the specs, and generated ones for specs without a name."""
    rng, names = random.Random(), list[str]()
    for spec in specs:
        name, name_tries = spec.name, tries
        while name is None or (spec.name is None and name in names):
            name, name_tries = suggest_name(rng, tries=name_tries), name_tries + 1
        names.append(name)
    return names


def _job(job_id: str, spec: JobSpec, name: str, now: float) -> Job:
    return Job(
        id=job_id,
        name=name,
        state=JobState.QUEUED,
        reason=waiting_reason(spec.target),
        version=0,
        spec=spec,
        created_at=now,
        changed_at=now,
    )
