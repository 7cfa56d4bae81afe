"""MLflow's API: the model registry."""

from typing import Any

from retarget.control import models
from retarget.core.limits import check_key, check_length
from retarget.core.models import (
    STAGES,
    Model,
    ModelVersion,
    check_alias,
    check_model_name,
    check_model_tag,
    check_new_alias,
    check_stage,
    check_version,
)
from retarget.server.mlflow.app import NotSupported, RouteTable
from retarget.server.mlflow.request import MlflowRequest, show_pairs
from retarget.server.mlflow.sources import read_source

_PROMPT_TAG = "mlflow.prompt.is_prompt"

_MAX_DESCRIPTION = 100_000


def create_model(request: MlflowRequest) -> dict[str, Any]:
    name = check_model_name(request.required_string("name"))
    tags, description = _tags(request), _description(request)
    job_id = request.principal.job_id
    model = request.context.store.models.create(
        name, description, tags, now=request.now, by_job=job_id
    )
    return _model(model)


def get_model(request: MlflowRequest) -> dict[str, Any]:
    return _model(request.context.store.models.get(_name(request)))


def update_model(request: MlflowRequest) -> dict[str, Any]:
    name, description = _name(request), _description(request)
    return _model(request.context.store.models.describe(name, description, now=request.now))


def rename_model(request: MlflowRequest) -> dict[str, Any]:
    name, new_name = (
        request.required_string("name"),
        check_model_name(request.required_string("new_name")),
    )
    check_model_name(name)
    job_id = request.principal.job_id
    return _model(
        request.context.store.models.rename(name, new_name, now=request.now, by_job=job_id)
    )


def delete_model(request: MlflowRequest) -> dict[str, Any]:
    models.delete(request.context, _name(request), by_job=request.principal.job_id)
    return {}


def latest_versions(request: MlflowRequest) -> dict[str, Any]:
    name, stages = _name(request), request.strings("stages")
    checked_stages = [check_stage(stage) for stage in stages] or STAGES
    versions = request.context.store.models.latest(name, checked_stages)
    return {"model_versions": [show_version(version) for version in versions]}


def set_model_tag(request: MlflowRequest) -> dict[str, Any]:
    name, key, value = (
        request.required_string("name"),
        request.required_string("key"),
        request.string("value"),
    )
    check_model_tag(key, value)
    request.context.store.models.set_tag(check_model_name(name), key, value)
    return {}


def delete_model_tag(request: MlflowRequest) -> dict[str, Any]:
    name, key = request.required_string("name"), request.required_string("key")
    check_key(key, "key")
    request.context.store.models.delete_tag(check_model_name(name), key)
    return {}


def set_alias(request: MlflowRequest) -> dict[str, Any]:
    name, alias, version = (
        request.required_string("name"),
        request.required_string("alias"),
        request.required_string("version"),
    )
    check_model_name(name)
    request.context.store.models.set_alias(name, check_new_alias(alias), check_version(version))
    return {}


def delete_alias(request: MlflowRequest) -> dict[str, Any]:
    name, alias = request.required_string("name"), request.required_string("alias")
    request.context.store.models.delete_alias(check_model_name(name), check_alias(alias))
    return {}


def get_by_alias(request: MlflowRequest) -> dict[str, Any]:
    name, alias = request.required_string("name"), request.required_string("alias")
    return _version(
        request.context.store.models.by_alias(check_model_name(name), check_alias(alias))
    )


def create_version(request: MlflowRequest) -> dict[str, Any]:
    name, address = request.required_string("name"), request.required_string("source")
    tags = _tags(request)
    source = read_source(
        request.context,
        address,
        request.string("run_id"),
        request.string("model_id"),
        request.principal.job_id or "",
    )
    draft = ModelVersion(
        name=check_model_name(name),
        description=_description(request),
        source=source.source,
        location=source.location,
        run_id=source.run_id,
        run_link=request.string("run_link"),
        model_id=source.model_id,
        created_at=request.now,
        changed_at=request.now,
        created_by_job=request.principal.job_id,
        lineage=source.lineage,
        tags=tags,
    )
    return _version(request.context.store.models.add_version(draft))


def get_version(request: MlflowRequest) -> dict[str, Any]:
    name, version = _name_and_version(request)
    return _version(request.context.store.models.get_version(name, version))


def update_version(request: MlflowRequest) -> dict[str, Any]:
    name, version = _name_and_version(request)
    description = _description(request)
    return _version(
        request.context.store.models.describe_version(name, version, description, now=request.now)
    )


def move_version(request: MlflowRequest) -> dict[str, Any]:
    (name, version), stage = (
        _name_and_version(request),
        check_stage(request.required_string("stage")),
    )
    archive = request.flag("archive_existing_versions")
    return _version(
        request.context.store.models.move(name, version, stage, now=request.now, archive=archive)
    )


def delete_version(request: MlflowRequest) -> dict[str, Any]:
    name, version = _name_and_version(request)
    models.delete(request.context, name, version, by_job=request.principal.job_id)
    return {}


def download_uri(request: MlflowRequest) -> dict[str, Any]:
    name, version = (
        check_model_name(request.string("name")),
        check_version(request.string("version")),
    )
    return {"artifact_uri": request.context.store.models.get_version(name, version).location}


def set_version_tag(request: MlflowRequest) -> dict[str, Any]:
    (name, version), key, value = (
        _name_and_version(request),
        request.required_string("key"),
        request.string("value"),
    )
    check_model_tag(key, value)
    request.context.store.models.set_version_tag(name, version, key, value)
    return {}


def delete_version_tag(request: MlflowRequest) -> dict[str, Any]:
    (name, version), key = _name_and_version(request), request.required_string("key")
    check_key(key, "key")
    request.context.store.models.delete_version_tag(name, version, key)
    return {}


def show_model(model: Model) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "name": model.name,
        "creation_timestamp": model.created_at,
        "last_updated_timestamp": model.changed_at,
    }
    if model.description:
        fields["description"] = model.description
    latest = [show_version(version) for version in model.latest]
    aliases = [{"alias": alias, "version": str(number)} for alias, number in model.aliases.items()]
    optional = {"latest_versions": latest, "tags": show_pairs(model.tags), "aliases": aliases}
    return fields | {name: value for name, value in optional.items() if value}


def show_version(version: ModelVersion) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "name": version.name,
        "version": str(version.version),
        "creation_timestamp": version.created_at,
        "last_updated_timestamp": version.changed_at,
        "description": version.description,
        "current_stage": version.stage,
        "source": version.source,
        "run_id": version.run_id,
        "run_link": version.run_link,
        "status": version.status,
    }
    optional = {
        "user_id": version.user,
        "status_message": version.message,
        "tags": show_pairs(version.tags),
        "aliases": list(version.aliases),
    }
    return fields | {name: value for name, value in optional.items() if value}


def _model(model: Model) -> dict[str, Any]:
    return {"registered_model": show_model(model)}


def _version(version: ModelVersion) -> dict[str, Any]:
    return {"model_version": show_version(version)}


def _name(request: MlflowRequest) -> str:
    return check_model_name(request.required_string("name"))


def _name_and_version(request: MlflowRequest) -> tuple[str, int]:
    name, version = request.required_string("name"), request.required_string("version")
    return check_model_name(name), check_version(version)


def _description(request: MlflowRequest) -> str:
    return check_length("description", request.string("description"), _MAX_DESCRIPTION)


def _tags(request: MlflowRequest) -> dict[str, str]:
    tags = request.pairs("tags")
    for key, value in tags.items():
        check_model_tag(key, value)
    if tags.get(_PROMPT_TAG, "").lower() == "true":
        raise NotSupported("this server does not store prompts; its registry holds models only")
    return tags


_MODELS, _VERSIONS = "/mlflow/registered-models", "/mlflow/model-versions"

ROUTES: RouteTable = [
    ("POST", f"{_MODELS}/create", create_model),
    ("GET", f"{_MODELS}/get", get_model),
    ("PATCH", f"{_MODELS}/update", update_model),
    ("POST", f"{_MODELS}/rename", rename_model),
    ("DELETE", f"{_MODELS}/delete", delete_model),
    ("GET", f"{_MODELS}/get-latest-versions", latest_versions),
    ("POST", f"{_MODELS}/get-latest-versions", latest_versions),
    ("POST", f"{_MODELS}/set-tag", set_model_tag),
    ("DELETE", f"{_MODELS}/delete-tag", delete_model_tag),
    ("POST", f"{_MODELS}/alias", set_alias),
    ("DELETE", f"{_MODELS}/alias", delete_alias),
    ("GET", f"{_MODELS}/alias", get_by_alias),
    ("POST", f"{_VERSIONS}/create", create_version),
    ("GET", f"{_VERSIONS}/get", get_version),
    ("PATCH", f"{_VERSIONS}/update", update_version),
    ("POST", f"{_VERSIONS}/transition-stage", move_version),
    ("DELETE", f"{_VERSIONS}/delete", delete_version),
    ("GET", f"{_VERSIONS}/get-download-uri", download_uri),
    ("POST", f"{_VERSIONS}/set-tag", set_version_tag),
    ("DELETE", f"{_VERSIONS}/delete-tag", delete_version_tag),
]
