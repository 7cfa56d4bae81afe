"""Takes jobs in: refuses what can never run, with the sentence why, and queues the rest."""

import random
from typing import Any

from retarget.control.launch import launch_of
from retarget.control.parts import Parts
from retarget.control.place import never_fits
from retarget.core.driver import Screens
from retarget.core.errors import Conflict, Invalid, NotFound, TargetUnreachable
from retarget.core.jobs import Attempt, Job, JobSpec, Share
from retarget.core.names import new_id, suggest_name
from retarget.core.snapshots import decode
from retarget.core.states import JobState
from retarget.core.targets import Facts, Target

_TRIES = 8


def submit(parts: Parts, spec: JobSpec) -> Job:
    """Queue a job, or raise Invalid and change nothing."""
    _admit(parts, spec)
    now = parts.now()
    job = _add(parts, spec, now)
    if spec.environment.kind == "system":
        parts.environments.keep(spec.environment, now)
    parts.wake()
    return job


def rerun(parts: Parts, job: Job, *, target: str | None, name: str | None) -> Job:
    """Submit the same again, word for word, perhaps elsewhere."""
    changes: dict[str, Any] = {"name": name, "target": target or job.spec.target}
    return submit(parts, JobSpec.model_validate(job.spec.model_dump() | changes))


def plan(parts: Parts, spec: JobSpec) -> dict[str, Any]:
    """Tell what submitting would do, and do nothing."""
    target, facts = _admit(parts, spec)
    now = parts.now()
    job = _job(spec, spec.name or "a-name-of-its-own", now)
    shares = tuple(Share(node=node.name) for node in facts.nodes[: spec.nodes])
    attempt = Attempt(key=new_id(now), job_id=job.id, number=1, target=target.name, shares=shares)
    launch = launch_of(parts, job, attempt, facts)
    hidden = launch.model_copy(update={"token": "", "url": parts.url})
    return {
        "target": target.name,
        "kind": target.kind,
        "launch": hidden.model_dump(mode="json", exclude={"token"}),
        "native": parts.connect(target).plan(hidden),
    }


def facts_of(parts: Parts, target: Target) -> Facts:
    """Return what is known about a target, asking it when nothing is."""
    return target.facts or check(parts, target)


def check(parts: Parts, target: Target) -> Facts:
    """Ask a target about itself, and remember the answer or why there is none."""
    try:
        facts = parts.connect(target).check()
    except TargetUnreachable as error:
        parts.targets.checked(target.name, None, str(error), parts.now())
        raise
    parts.targets.checked(target.name, facts, "", parts.now())
    return facts


def waiting_reason(target: str) -> str:
    """Return the reason of a job far down the queue; those near its head get a better one."""
    return f"waiting for its turn on {target}"


def _admit(parts: Parts, spec: JobSpec) -> tuple[Target, Facts]:
    try:
        target = parts.targets.find(spec.target)
    except NotFound as error:
        raise Invalid(f"target: {error}", field="target") from None
    facts = facts_of(parts, target)
    obstacle = never_fits(spec, facts, target.name)
    if obstacle is not None:
        raise Invalid(obstacle, field=obstacle.partition(":")[0])
    driver = parts.connect(target)
    if isinstance(driver, Screens):
        driver.screen(spec.environment)
    _check_snapshot(parts, spec)
    return target, facts


def _check_snapshot(parts: Parts, spec: JobSpec) -> None:
    if spec.snapshot is None:
        return
    snapshot, now = spec.snapshot, parts.now()
    try:
        missing = parts.snapshots.missing(
            snapshot, lambda: decode(parts.blobs.path(snapshot).read_bytes()).digests(), now=now
        )
    except NotFound:
        raise Invalid(
            "snapshot: the server does not have it; send it first", field="snapshot"
        ) from None
    if missing:
        raise Invalid(f"snapshot: {len(missing)} of its files were never sent", field="snapshot")


def _add(parts: Parts, spec: JobSpec, now: float) -> Job:
    if spec.name is not None:
        return _stored(parts, _job(spec, spec.name, now))
    for tries in range(_TRIES):
        try:
            return _stored(parts, _job(spec, suggest_name(random.Random(), tries=tries), now))
        except Conflict:
            continue
    raise Conflict("no free name was found; give one with --name")


def _job(spec: JobSpec, name: str, now: float) -> Job:
    return Job(
        id=new_id(now),
        name=name,
        state=JobState.QUEUED,
        reason=waiting_reason(spec.target),
        version=0,
        spec=spec,
        created=now,
        changed=now,
    )


def _stored(parts: Parts, job: Job) -> Job:
    parts.jobs.add(job)
    return job
