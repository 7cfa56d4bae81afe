"""/api/environments: definitions, their names and versions, and the targets that built them."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel

from retarget.control import environments
from retarget.control.snapshots import check_context
from retarget.core.environments import Environment
from retarget.core.locks import Lock
from retarget.server.auth import ContextDep
from retarget.server.openapi_links import ENVIRONMENT_LINKS, ENVIRONMENTS_LINKS
from retarget.server.request_bodies import BoundedRoute
from retarget.server.views import Built, EnvironmentView
from retarget.store.environments import StoredEnvironment

router = APIRouter(route_class=BoundedRoute, prefix="/api/environments", tags=["environments"])


class Removed(BaseModel):
    removed: list[str]


@router.get("", responses={200: ENVIRONMENTS_LINKS})
def list_environments(context: ContextDep) -> list[EnvironmentView]:
    """List all environments: every version of every name, then those without a name."""
    built = environments.built(context)
    return [_view(known, built) for known in context.store.environments.list()]


@router.get("/{environment}")
def show_environment(environment: str, context: ContextDep) -> EnvironmentView:
    """Show an environment: `torch` or `torch@latest` is the newest version, `torch:3` the third.

    It can also be named by its digest; the first 8 digits are enough.
    """
    known = context.store.environments.find(environment)
    return _view(known, environments.built(context), context.store.locks.of(known.digest))


@router.put("/{environment}", responses={200: ENVIRONMENT_LINKS})
def name_environment(
    environment: str, definition: Environment, context: ContextDep
) -> EnvironmentView:
    """Register a definition under a name. A changed definition becomes a new version."""
    check_context(context, definition)
    known = environments.register(context, environment, definition)
    return _view(known, environments.built(context))


@router.get("/{environment}/versions")
def list_environment_versions(environment: str, context: ContextDep) -> list[EnvironmentView]:
    """List the versions of a name with their locks, the newest first."""
    built = environments.built(context)
    versions = context.store.environments.versions(environment)
    return [_view(known, built, context.store.locks.of(known.digest)) for known in versions]


@router.post("/{environment}/update", status_code=201, responses={201: ENVIRONMENT_LINKS})
def update_environment(environment: str, context: ContextDep) -> EnvironmentView:
    """Add a version with the same definition. Its first build resolves the versions again."""
    return _view(environments.update(context, environment), environments.built(context))


@router.delete("/{environment}")
def remove_environment(environment: str, context: ContextDep) -> Removed:
    """Remove an environment, and what targets built of it.

    A name stands for all its versions, `torch:3` for one. A definition that another name or
    version also has stays.
    """
    return Removed(removed=environments.remove(context, environment))


def _view(
    known: StoredEnvironment, built: dict[str, list[dict[str, Any]]], locks: Sequence[Lock] = ()
) -> EnvironmentView:
    fields = {"kind", "python", "image", "dockerfile", "context"}
    fields |= {"version", "resolution", "conda_from_pypi"}
    definition = known.environment.model_dump(include=fields)
    return EnvironmentView(
        **definition,
        channels=list(known.environment.channels),
        conda=list(known.environment.conda),
        pip=list(known.environment.pip),
        name=known.name,
        digest=known.digest,
        created_at=known.created_at,
        built=[Built.model_validate(build) for build in built.get(known.digest, [])],
        locks=list(locks),
    )
