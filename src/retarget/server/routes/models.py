"""/api/models: the registry."""

from typing import Annotated

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict, Field

from retarget.control import models
from retarget.control.parts import Parts
from retarget.core.errors import Invalid, NotFound
from retarget.core.jobs import Output
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
from retarget.server.auth import PartsDep
from retarget.server.bodies import BoundedRoute
from retarget.server.links import OF_ALIAS, OF_FILES, OF_MODELS, OF_NEW_VERSION, OF_VERSION
from retarget.server.routes.blobs import BYTES

router = APIRouter(route_class=BoundedRoute, prefix="/api/models", tags=["models"])

_SHOWN = 5  # how many paths a message names


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
    created: float
    changed: float
    tags: dict[str, str]
    aliases: list[str]
    lineage: Lineage


class ModelView(BaseModel):
    name: str
    description: str
    created: float
    changed: float
    tags: dict[str, str]
    aliases: dict[str, int]
    latest: VersionView | None
    versions: list[VersionView] | None = None


class Meaning(BaseModel):
    """What an alias is to mean."""

    model_config = ConfigDict(extra="forbid")

    version: Annotated[int, Field(ge=1, lt=2**31, strict=True)]


@router.get("", responses={200: OF_MODELS})
def list_models(parts: PartsDep) -> list[ModelView]:
    """List all models, by name, each with its newest version."""
    return [_view(model) for model in parts.models.list()]


@router.get("/{name}")
def show_model(name: str, parts: PartsDep) -> ModelView:
    """Show a model with its versions, the newest first."""
    versions = [_version_view(version) for version in parts.models.versions(name)]
    return _view(parts.models.get(name)).model_copy(update={"versions": versions})


@router.delete("/{name}", status_code=204)
def delete_model(name: str, parts: PartsDep) -> Response:
    """Delete a model with its versions and their files."""
    models.delete(parts, name)
    return Response(status_code=204)


@router.post("/{name}/versions", status_code=201, responses={201: OF_NEW_VERSION})
def register_version(name: str, wanted: Registration, parts: PartsDep) -> VersionView:
    """Make a version of a file or a folder that a job left; the model, too, if there is none."""
    return _version_view(models.register(parts, name, wanted))


@router.get("/{name}/versions/{version}", responses={200: OF_VERSION})
def show_version(name: str, version: str, parts: PartsDep) -> VersionView:
    """Show a version, by its number, an alias, or `latest`."""
    return _version_view(_find(parts, name, version))


@router.delete("/{name}/versions/{version}", status_code=204)
def delete_version(name: str, version: str, parts: PartsDep) -> Response:
    """Delete a version with its files. Its number is not given again."""
    models.delete(parts, name, check_version(version))
    return Response(status_code=204)


@router.get("/{name}/versions/{version}/files", responses={200: OF_FILES})
def list_version_files(name: str, version: str, parts: PartsDep) -> list[Output]:
    return models.files_of(parts, _find(parts, name, version))


@router.get(
    "/{name}/versions/{version}/files/{path:any}",
    response_class=FileResponse,
    responses={200: BYTES},
)
def read_version_file(name: str, version: str, path: str, parts: PartsDep) -> FileResponse:
    found = _find(parts, name, version)
    files = models.files_of(parts, found)
    for file in files:
        if file.path == path:
            return FileResponse(
                parts.blobs.path(file.digest), media_type="application/octet-stream"
            )
    raise _no_file(found, files, path)


@router.put("/{name}/aliases/{alias}", responses={200: OF_ALIAS})
def set_alias(name: str, alias: str, meaning: Meaning, parts: PartsDep) -> VersionView:
    """Point an alias at a version; it leaves the one that had it before."""
    check_model_name(name)
    if alias.isdecimal():
        message = f"{alias!r} cannot be an alias: it looks like the number of a version"
        raise Invalid(message, field="alias")
    parts.models.set_alias(name, check_new_alias(alias), meaning.version)
    return _version_view(parts.models.get_version(name, meaning.version))


@router.delete("/{name}/aliases/{alias}", status_code=204)
def delete_alias(name: str, alias: str, parts: PartsDep) -> Response:
    parts.models.delete_alias(name, check_alias(alias))
    return Response(status_code=204)


def _find(parts: Parts, name: str, version: str) -> ModelVersion:
    if version.isdecimal():
        return parts.models.get_version(name, check_version(version))
    return parts.models.by_alias(name, check_alias(version))


def _view(model: Model) -> ModelView:
    newest = max(model.latest, key=lambda version: version.version, default=None)
    return ModelView(
        **model.model_dump(include={"name", "description", "tags", "aliases"}),
        created=model.created / 1000,
        changed=model.changed / 1000,
        latest=None if newest is None else _version_view(newest),
    )


def _version_view(version: ModelVersion) -> VersionView:
    known = version.model_dump(include=set(VersionView.model_fields))
    times = {"created": version.created / 1000, "changed": version.changed / 1000}
    return VersionView.model_validate(known | times)


def _no_file(version: ModelVersion, files: list[Output], path: str) -> NotFound:
    some = ", ".join(file.path for file in files[:_SHOWN])
    more = ", …" if len(files) > _SHOWN else ""
    there = f"it has {some}{more}" if files else f"look for its files at {version.location}"
    return NotFound(f"version {version.version} of {version.name!r} has no file {path!r}; {there}")
