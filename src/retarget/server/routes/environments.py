"""/api/environments: definitions, their names, and where they are built."""

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel

from retarget.control import environments
from retarget.control.submit import check_context
from retarget.core.environments import Environment
from retarget.core.errors import Invalid
from retarget.core.names import check_name
from retarget.server.auth import PartsDep
from retarget.server.bodies import BoundedRoute
from retarget.server.links import OF_ENVIRONMENT, OF_ENVIRONMENTS
from retarget.server.views import Built, EnvironmentView
from retarget.store.environments import Known

router = APIRouter(route_class=BoundedRoute, prefix="/api/environments", tags=["environments"])


class Removed(BaseModel):
    removed: list[str]


@router.get("", responses={200: OF_ENVIRONMENTS})
def list_environments(parts: PartsDep) -> list[EnvironmentView]:
    built = environments.built(parts)
    return [_view(known, built) for known in parts.environments.list()]


@router.get("/{environment}")
def show_environment(environment: str, parts: PartsDep) -> EnvironmentView:
    """Show one, by its name, its digest, or eight or more digits of that."""
    return _view(parts.environments.find(environment), environments.built(parts))


@router.put("/{environment}", responses={200: OF_ENVIRONMENT})
def name_environment(environment: str, definition: Environment, parts: PartsDep) -> EnvironmentView:
    """Register a definition under a name."""
    check_name(environment)
    if definition.kind == "user":
        raise Invalid("kind: an environment with an image or packages has a name", field="kind")
    check_context(parts, definition)
    parts.environments.name(environment, definition, parts.now())
    return _view(parts.environments.find(environment), environments.built(parts))


@router.delete("/{environment}")
def remove_environment(environment: str, parts: PartsDep) -> Removed:
    """Remove a definition with its names, and what targets have built of it.

    Given one of several names, only that name is removed.
    """
    return Removed(removed=environments.remove(parts, environment))


def _view(known: Known, built: dict[str, list[dict[str, Any]]]) -> EnvironmentView:
    plain = {"kind", "python", "image", "dockerfile", "context"}
    definition = known.environment.model_dump(include=plain)
    return EnvironmentView(
        **definition,
        channels=list(known.environment.channels),
        conda=list(known.environment.conda),
        pip=list(known.environment.pip),
        name=known.name,
        digest=known.digest,
        created=known.created,
        built=[Built.model_validate(each) for each in built.get(known.digest, [])],
    )
