"""/api/targets: register, show, change, check and remove targets."""

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel

from retarget import drivers
from retarget.control import targets
from retarget.control.context import Context
from retarget.control.secrets import hide
from retarget.core.errors import Invalid
from retarget.core.jobs import Attempt, Job
from retarget.core.states import JobState
from retarget.core.targets import Target
from retarget.core.values import Value
from retarget.server.auth import ContextDep
from retarget.server.openapi_links import TARGETS_LINKS
from retarget.server.request_bodies import BoundedRoute
from retarget.server.views import KindView, TargetView, Used, to_unicode

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


@router.get("", responses={200: TARGETS_LINKS})
def list_targets(context: ContextDep) -> list[TargetView]:
    """List all targets."""
    return [_view(context, target) for target in context.store.targets.list()]


@router.post("", status_code=201)
def attach_target(new: NewTarget, context: ContextDep) -> TargetView:
    """Register a target. The server connects to it first; if that fails, nothing is registered."""
    if new.name == "kinds":
        raise Invalid("name: 'kinds' is reserved; choose another name", field="name")
    return _view(context, targets.attach(context, Target(**new.model_dump())))


@router.get("/kinds")
def list_kinds() -> list[KindView]:
    """List the kinds of targets that this server supports, each with the schema of its settings."""
    return [_kind_view(kind) for kind in drivers.kinds()]


@router.get("/{name}")
def show_target(name: str, context: ContextDep) -> TargetView:
    """Show a target with its inventory and the number of its jobs."""
    return _view(context, context.store.targets.find(name))


@router.patch("/{name}")
def update_target(name: str, change: TargetChange, context: ContextDep) -> TargetView:
    """Change settings and tags. The server connects to the target with the new settings first.

    Settings that the request does not name keep their values.
    """
    return _view(context, targets.update(context, name, change.config, change.tags))


@router.delete("/{name}")
def detach_target(name: str, context: ContextDep, force: bool = False) -> Detached:
    """Remove a target. Refused while it has jobs, unless `force` is set: then its jobs fail."""
    return Detached(failed=[job.name for job in targets.detach(context, name, force=force)])


@router.post("/{name}/check")
def check_target(name: str, context: ContextDep) -> TargetView:
    """Ask a target now what it has, and update its inventory.

    The server logs in only if it has no open connection, so it may not notice that a login no
    longer works.
    """
    targets.check(context, context.store.targets.find(name))
    return _view(context, context.store.targets.find(name))


def _view(context: Context, target: Target) -> TargetView:
    live = [pair for pair in context.store.jobs.live() if pair[1].target == target.name]
    queued = context.store.jobs.counts(target.name)[JobState.QUEUED]
    return TargetView(
        **target.model_dump(exclude={"config"}),
        config=to_unicode(hide(target.config)),
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


def _kind_view(kind: str) -> KindView:
    try:
        driver = drivers.load(kind)
    except Invalid as error:
        return KindView(kind=kind, description="", config_schema=None, missing=str(error))
    return KindView(
        kind=kind,
        description=(drivers.describe(kind)),
        config_schema=driver.Config.model_json_schema(),
        missing=None,
    )
