"""/api/targets: places to run."""

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel

from retarget import drivers
from retarget.control import submit, targets
from retarget.control.parts import Parts
from retarget.control.secrets import hide
from retarget.core.errors import Invalid
from retarget.core.jobs import Attempt, Job
from retarget.core.states import JobState
from retarget.core.targets import Target
from retarget.core.values import Value
from retarget.server.auth import PartsDep
from retarget.server.bodies import BoundedRoute
from retarget.server.links import OF_TARGETS
from retarget.server.views import KindView, TargetView, Used

router = APIRouter(route_class=BoundedRoute, prefix="/api/targets", tags=["targets"])


class NewTarget(Value):
    name: str
    kind: str
    config: dict[str, Any] = {}
    tags: dict[str, str] = {}


class TargetChange(Value):
    config: dict[str, Any] = {}
    tags: dict[str, str] | None = None


class Detached(BaseModel):
    failed: list[str]


@router.get("", responses={200: OF_TARGETS})
def list_targets(parts: PartsDep) -> list[TargetView]:
    return [_view(parts, target) for target in parts.targets.list()]


@router.post("", status_code=201)
def attach_target(new: NewTarget, parts: PartsDep) -> TargetView:
    """Keep a new target, once it has answered; if it does not, nothing has changed."""
    if new.name == "kinds":
        raise Invalid("name: 'kinds' is an address of this API; choose another", field="name")
    return _view(parts, targets.attach(parts, Target(**new.model_dump())))


@router.get("/kinds")
def list_kinds() -> list[KindView]:
    """List the kinds of compute this server knows, each with the form of its configuration."""
    return [_kind(kind) for kind in drivers.kinds()]


@router.get("/{name}")
def show_target(name: str, parts: PartsDep) -> TargetView:
    return _view(parts, parts.targets.find(name))


@router.patch("/{name}")
def update_target(name: str, change: TargetChange, parts: PartsDep) -> TargetView:
    """Change settings, if the target answers with them; those that are not given stay."""
    return _view(parts, targets.update(parts, name, change.config, change.tags))


@router.delete("/{name}")
def detach_target(name: str, parts: PartsDep, force: bool = False) -> Detached:
    """Have a target no longer. Refused while it has jobs; with `force` these fail."""
    return Detached(failed=[job.name for job in targets.detach(parts, name, force=force)])


@router.post("/{name}/check")
def check_target(name: str, parts: PartsDep) -> TargetView:
    """Ask a target about itself now."""
    submit.check(parts, parts.targets.find(name))
    return _view(parts, parts.targets.find(name))


def _view(parts: Parts, target: Target) -> TargetView:
    live = [pair for pair in parts.jobs.live() if pair[1].target == target.name]
    queued = parts.jobs.counts(target.name)[JobState.QUEUED]
    return TargetView(
        **target.model_dump(exclude={"facts", "config"}),
        config=hide(target.config),
        facts=target.facts,
        jobs={"running": len(live), "queued": queued},
        used=_used(live),
    )


def _used(live: list[tuple[Job, Attempt]]) -> Used:
    specs = [job.spec for job, _ in live]
    return Used(
        cpus=sum(spec.cpus * spec.nodes for spec in specs),
        memory=sum((spec.memory or 0) * spec.nodes for spec in specs),
        gpus=sum(spec.gpus * spec.nodes for spec in specs),
    )


def _kind(kind: str) -> KindView:
    try:
        driver = drivers.load(kind)
    except Invalid as missing:
        return KindView(kind=kind, description="", config_schema=None, missing=str(missing))
    return KindView(
        kind=kind,
        description=(drivers.about(kind)),
        config_schema=driver.Config.model_json_schema(),
        missing=None,
    )
