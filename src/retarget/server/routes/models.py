"""/api/models: the model registry."""

from typing import Annotated

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict, Field

from retarget.control import models
from retarget.control.context import Context
from retarget.core.errors import Invalid, NotFound
from retarget.core.jobs import Output
from retarget.core.locks import Lock
from retarget.core.models import (
    Lineage,
    Model,
    ModelVersion,
    Registration,
    check_alias,
    check_model_name,
    check_new_alias,
    check_version,
)
from retarget.server.auth import ContextDep
from retarget.server.openapi_links import (
    ALIAS_LINKS,
    FILES_LINKS,
    MODELS_LINKS,
    NEW_VERSION_LINKS,
    VERSION_LINKS,
)
from retarget.server.request_bodies import BoundedRoute
from retarget.server.routes.blobs import BYTES
from retarget.server.views import Timestamp

router = APIRouter(route_class=BoundedRoute, prefix="/api/models", tags=["models"])

_MAX_NAMED_PATHS = 5  # in an error message


class VersionView(BaseModel):
    name: str
    version: int
    description: str
    stage: str
    status: str
    source: str
    location: str
    run_id: str
    model_id: str | None
    created_at: Timestamp
    changed_at: Timestamp
    tags: dict[str, str]
    aliases: list[str]
    lineage: Lineage
    lock: Lock | None = None  # the versions that its job ran with; only of a single version


class ModelView(BaseModel):
    name: str
    description: str
    created_at: Timestamp
    changed_at: Timestamp
    tags: dict[str, str]
    aliases: dict[str, int]
    latest: VersionView | None
    versions: list[VersionView] | None = None


class AliasTarget(BaseModel):
    """The version that an alias points to."""

    model_config = ConfigDict(extra="forbid")

    version: Annotated[int, Field(ge=1, lt=2**31, strict=True)]


@router.get("", responses={200: MODELS_LINKS})
def list_models(context: ContextDep) -> list[ModelView]:
    """List all models by name, each with its newest version."""
    return [_view(model) for model in context.store.models.list()]


@router.get("/{name}")
def show_model(name: str, context: ContextDep) -> ModelView:
    """Show a model with its versions, newest first."""
    versions = [_version_view(version) for version in context.store.models.versions(name)]
    return _view(context.store.models.get(name)).model_copy(update={"versions": versions})


@router.delete("/{name}", status_code=204)
def delete_model(name: str, context: ContextDep) -> Response:
    """Delete a model with its versions and their files."""
    models.delete(context, name)
    return Response(status_code=204)


@router.post("/{name}/versions", status_code=201, responses={201: NEW_VERSION_LINKS})
def register_version(name: str, body: Registration, context: ContextDep) -> VersionView:
    """Register a file or a folder of a job as a new version. A missing model is created."""
    return _version_view(models.register(context, name, body))


@router.get("/{name}/versions/{version}", responses={200: VERSION_LINKS})
def show_version(name: str, version: str, context: ContextDep) -> VersionView:
    """Show a version by its number, by an alias, or as `latest`."""
    model_version = _find(context, name, version)
    lock_id = model_version.lineage.lock
    lock = context.store.locks.read([lock_id]).get(lock_id) if lock_id else None
    return _version_view(model_version).model_copy(update={"lock": lock})


@router.delete("/{name}/versions/{version}", status_code=204)
def delete_version(name: str, version: str, context: ContextDep) -> Response:
    """Delete a version with its files. Its number is never used again."""
    models.delete(context, name, check_version(version))
    return Response(status_code=204)


@router.get("/{name}/versions/{version}/files", responses={200: FILES_LINKS})
def list_version_files(name: str, version: str, context: ContextDep) -> list[Output]:
    """List the files of a version."""
    return models.files_of(context, _find(context, name, version))


@router.get(
    "/{name}/versions/{version}/files/{path:any}",
    response_class=FileResponse,
    responses={200: BYTES},
)
def read_version_file(name: str, version: str, path: str, context: ContextDep) -> FileResponse:
    """Download a file of a version."""
    model_version = _find(context, name, version)
    files = models.files_of(context, model_version)
    for file in files:
        if file.path == path:
            return FileResponse(
                context.files.blobs.path(file.digest), media_type="application/octet-stream"
            )
    raise _no_file(model_version, files, path)


@router.put("/{name}/aliases/{alias}", responses={200: ALIAS_LINKS})
def set_alias(name: str, alias: str, body: AliasTarget, context: ContextDep) -> VersionView:
    """Point an alias at a version. An existing alias is moved."""
    check_model_name(name)
    if alias.isdecimal():
        message = f"{alias!r} cannot be an alias: it looks like a version number"
        raise Invalid(message, field="alias")
    context.store.models.set_alias(name, check_new_alias(alias), body.version)
    return _version_view(context.store.models.get_version(name, body.version))


@router.delete("/{name}/aliases/{alias}", status_code=204)
def delete_alias(name: str, alias: str, context: ContextDep) -> Response:
    """Delete an alias. The version stays."""
    context.store.models.delete_alias(name, check_alias(alias))
    return Response(status_code=204)


def _find(context: Context, name: str, version: str) -> ModelVersion:
    if version.isdecimal():
        return context.store.models.get_version(name, check_version(version))
    return context.store.models.by_alias(name, check_alias(version))


def _view(model: Model) -> ModelView:
    newest = max(model.latest, key=lambda version: version.version, default=None)
    return ModelView(
        **model.model_dump(include={"name", "description", "tags", "aliases"}),
        created_at=model.created_at / 1000,
        changed_at=model.changed_at / 1000,
        latest=None if newest is None else _version_view(newest),
    )


def _version_view(version: ModelVersion) -> VersionView:
    fields = version.model_dump(include=set(VersionView.model_fields))
    times = {"created_at": version.created_at / 1000, "changed_at": version.changed_at / 1000}
    return VersionView.model_validate(fields | times)


def _no_file(version: ModelVersion, files: list[Output], path: str) -> NotFound:
    names = ", ".join(file.path for file in files[:_MAX_NAMED_PATHS])
    more = ", …" if len(files) > _MAX_NAMED_PATHS else ""
    hint = f"it has {names}{more}" if files else f"look for its files at {version.location}"
    return NotFound(f"version {version.version} of {version.name!r} has no file {path!r}; {hint}")
