"""Takes jobs in: refuses what can never run, with the sentence why, and queues the rest."""

import random
from collections.abc import Sequence
from typing import Any

from retarget.control.launch import launch_of
from retarget.control.parts import Parts
from retarget.control.place import never_fits
from retarget.core.driver import Screens, Settles
from retarget.core.environments import Environment
from retarget.core.errors import Conflict, Invalid, NotFound, TargetUnreachable
from retarget.core.jobs import Attempt, Job, JobSpec, Share
from retarget.core.names import new_id, suggest_name
from retarget.core.snapshots import decode
from retarget.core.states import JobState
from retarget.core.targets import Facts, Target, no_target

_TRIES = 8


def submit(parts: Parts, spec: JobSpec) -> Job:
    """Queue a job, or raise Invalid and change nothing."""
    _admit(parts, _targets(parts), spec)
    check_context(parts, spec.environment)
    return _queue(parts, [spec])[0]


def submit_all(parts: Parts, specs: Sequence[JobSpec]) -> list[Job]:
    """Queue jobs, all of them, or raise Invalid and change nothing."""
    targets = _targets(parts)
    for index, spec in enumerate(specs):
        try:
            _admit(parts, targets, spec)
            check_context(parts, spec.environment)
        except Invalid as error:
            field = f"jobs.{index}.{error.field}" if error.field else f"jobs.{index}"
            raise Invalid(f"jobs.{index}.{error}", field=field) from None
    return _queue(parts, specs)


def rerun(parts: Parts, job: Job, *, target: str | None, name: str | None) -> Job:
    """Submit the same again, word for word, perhaps elsewhere."""
    changes: dict[str, Any] = {"name": name, "target": target or job.spec.target}
    return submit(parts, JobSpec.model_validate(job.spec.model_dump() | changes))


def plan(parts: Parts, spec: JobSpec) -> dict[str, Any]:
    """Tell what submitting would do, and do nothing."""
    target, facts = _admit(parts, _targets(parts), spec)
    now = parts.now()
    job = _job(new_id(now), spec, spec.name or "a-name-of-its-own", now)
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
        driver = parts.connect(target)
        facts = driver.check()
    except TargetUnreachable as error:
        parts.targets.checked(target, None, str(error), parts.now())
        raise
    facts = remembering(facts, target.facts)
    learnt = driver.settle() if isinstance(driver, Settles) else None
    parts.targets.checked(target, facts, "", parts.now(), learnt)
    return facts


def remembering(facts: Facts, before: Facts | None) -> Facts:
    """Return facts in which nodes that cannot be asked have what they had before."""
    known = {node.name: node for node in before.nodes} if before else {}
    nodes = (
        known.get(node.name, node).model_copy(update={"reason": node.reason})
        if node.reason
        else node
        for node in facts.nodes
    )
    return facts.model_copy(update={"nodes": tuple(nodes)})


def waiting_reason(target: str) -> str:
    """Return the reason of a job far down the queue; those near its head get a better one."""
    return f"waiting for its turn on {target}"


def _targets(parts: Parts) -> dict[str, Target]:
    return {target.name: target for target in parts.targets.list()}


def _admit(parts: Parts, targets: dict[str, Target], spec: JobSpec) -> tuple[Target, Facts]:
    target = targets.get(spec.target)
    if target is None:
        raise Invalid(f"target: {no_target(spec.target, targets)}", field="target")
    facts = facts_of(parts, target)
    obstacle = never_fits(spec, facts, target.name)
    if obstacle is not None:
        raise Invalid(obstacle, field=obstacle.partition(":")[0])
    driver = parts.connect(target)
    if isinstance(driver, Screens):
        driver.screen(spec.environment)
    _check_snapshot(parts, spec.snapshot, "snapshot")
    return target, facts


def check_context(parts: Parts, environment: Environment) -> None:
    """Raise Invalid unless the folder that an environment is built from is here as a whole."""
    _check_snapshot(parts, environment.context, "context")


def _check_snapshot(parts: Parts, snapshot: str | None, field: str) -> None:
    if snapshot is None:
        return
    now = parts.now()
    try:
        missing = parts.snapshots.missing(
            snapshot, lambda: decode(parts.blobs.path(snapshot).read_bytes()).digests(), now=now
        )
    except NotFound:
        raise Invalid(f"{field}: the server does not have it; send it first", field=field) from None
    if missing:
        raise Invalid(f"{field}: {len(missing)} of its files were never sent", field=field)


def _queue(parts: Parts, specs: Sequence[JobSpec]) -> list[Job]:
    now = parts.now()
    new = _add(parts, specs, now)
    for spec in specs:
        if spec.environment.kind != "user":
            parts.environments.keep(spec.environment, now)
    parts.wake()
    return new


def _add(parts: Parts, specs: Sequence[JobSpec], now: float) -> list[Job]:
    given = [spec.name for spec in specs if spec.name is not None]
    _check_once(given)
    for tries in range(_TRIES):
        names = _names(specs, tries)
        ids = sorted(new_id(now) for _ in specs)  # in the order in which they were asked for
        try:
            new = [_job(*each, now) for each in zip(ids, specs, names, strict=True)]
            parts.jobs.add(*new)
            return new
        except NotFound as gone:  # its target, just now
            raise Invalid(f"target: {gone}", field="target") from None
        except Conflict:
            if len(given) == len(specs) or parts.jobs.taken(given):
                raise
    raise Conflict("no free name was found; give one with --name")


def _check_once(given: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in given:
        if name in seen:
            raise Conflict(f"two of these jobs have the name {name!r}; choose another for one")
        seen.add(name)


def _names(specs: Sequence[JobSpec], tries: int) -> list[str]:
    """Return a name for each, made up where none is given, and none of them twice."""
    chance, names = random.Random(), list[str]()
    for spec in specs:
        name, more = spec.name, tries
        while name is None or (spec.name is None and name in names):
            name, more = suggest_name(chance, tries=more), more + 1
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
        created=now,
        changed=now,
    )
