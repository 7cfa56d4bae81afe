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
from retarget.server.mlflow.app import NotOffered, Table
from retarget.server.mlflow.ask import Ask, show_pairs
from retarget.server.mlflow.sources import read_source

_PROMPT_TAG = "mlflow.prompt.is_prompt"

_LONGEST_DESCRIPTION = 100_000


def create_model(ask: Ask) -> dict[str, Any]:
    name = check_model_name(ask.need("name"))
    tags, description = _tags(ask), _description(ask)
    return _model(ask.parts.models.create(name, description, tags, now=ask.now))


def get_model(ask: Ask) -> dict[str, Any]:
    return _model(ask.parts.models.get(_name(ask)))


def update_model(ask: Ask) -> dict[str, Any]:
    name, description = _name(ask), _description(ask)
    return _model(ask.parts.models.describe(name, description, now=ask.now))


def rename_model(ask: Ask) -> dict[str, Any]:
    ask.caller.check_owner("rename registered models")
    name, new_name = ask.need("name"), check_model_name(ask.need("new_name"))
    return _model(ask.parts.models.rename(check_model_name(name), new_name, now=ask.now))


def delete_model(ask: Ask) -> dict[str, Any]:
    ask.caller.check_owner("delete registered models")
    models.delete(ask.parts, _name(ask))
    return {}


def latest_versions(ask: Ask) -> dict[str, Any]:
    name, stages = _name(ask), ask.texts("stages")
    wanted = [check_stage(stage) for stage in stages] or STAGES
    found = ask.parts.models.latest(name, wanted)
    return {"model_versions": [show_version(version) for version in found]}


def set_model_tag(ask: Ask) -> dict[str, Any]:
    name, key, value = ask.need("name"), ask.need("key"), ask.text("value")
    check_model_tag(key, value)
    ask.parts.models.set_tag(check_model_name(name), key, value)
    return {}


def delete_model_tag(ask: Ask) -> dict[str, Any]:
    name, key = ask.need("name"), ask.need("key")
    check_key(key, "key")
    ask.parts.models.delete_tag(check_model_name(name), key)
    return {}


def set_alias(ask: Ask) -> dict[str, Any]:
    name, alias, version = ask.need("name"), ask.need("alias"), ask.need("version")
    check_model_name(name)
    ask.parts.models.set_alias(name, check_new_alias(alias), check_version(version))
    return {}


def delete_alias(ask: Ask) -> dict[str, Any]:
    name, alias = ask.need("name"), ask.need("alias")
    ask.parts.models.delete_alias(check_model_name(name), check_alias(alias))
    return {}


def get_by_alias(ask: Ask) -> dict[str, Any]:
    name, alias = ask.need("name"), ask.need("alias")
    return _version(ask.parts.models.by_alias(check_model_name(name), check_alias(alias)))


def create_version(ask: Ask) -> dict[str, Any]:
    name, given = ask.need("name"), ask.need("source")
    tags = _tags(ask)
    found = read_source(
        ask.parts, given, ask.text("run_id"), ask.text("model_id"), ask.caller.job_id or ""
    )
    draft = ModelVersion(
        name=check_model_name(name),
        description=_description(ask),
        source=found.source,
        location=found.location,
        run_id=found.run_id,
        run_link=ask.text("run_link"),
        model_id=found.model_id,
        created=ask.now,
        changed=ask.now,
        lineage=found.lineage,
        tags=tags,
    )
    return _version(ask.parts.models.add_version(draft))


def get_version(ask: Ask) -> dict[str, Any]:
    name, version = _pair(ask)
    return _version(ask.parts.models.get_version(name, version))


def update_version(ask: Ask) -> dict[str, Any]:
    name, version = _pair(ask)
    description = _description(ask)
    return _version(ask.parts.models.describe_version(name, version, description, now=ask.now))


def move_version(ask: Ask) -> dict[str, Any]:
    (name, version), stage = _pair(ask), check_stage(ask.need("stage"))
    archive = ask.flag("archive_existing_versions")
    return _version(ask.parts.models.move(name, version, stage, now=ask.now, archive=archive))


def delete_version(ask: Ask) -> dict[str, Any]:
    ask.caller.check_owner("delete versions of models")
    models.delete(ask.parts, *_pair(ask))
    return {}


def download_uri(ask: Ask) -> dict[str, Any]:
    name, version = check_model_name(ask.text("name")), check_version(ask.text("version"))
    return {"artifact_uri": ask.parts.models.get_version(name, version).location}


def set_version_tag(ask: Ask) -> dict[str, Any]:
    (name, version), key, value = _pair(ask), ask.need("key"), ask.text("value")
    check_model_tag(key, value)
    ask.parts.models.set_version_tag(name, version, key, value)
    return {}


def delete_version_tag(ask: Ask) -> dict[str, Any]:
    (name, version), key = _pair(ask), ask.need("key")
    check_key(key, "key")
    ask.parts.models.delete_version_tag(name, version, key)
    return {}


def show_model(model: Model) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "name": model.name,
        "creation_timestamp": model.created,
        "last_updated_timestamp": model.changed,
    }
    if model.description:
        shown["description"] = model.description
    latest = [show_version(version) for version in model.latest]
    names = [{"alias": alias, "version": str(number)} for alias, number in model.aliases.items()]
    parts = {"latest_versions": latest, "tags": show_pairs(model.tags), "aliases": names}
    return shown | {name: value for name, value in parts.items() if value}


def show_version(version: ModelVersion) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "name": version.name,
        "version": str(version.version),
        "creation_timestamp": version.created,
        "last_updated_timestamp": version.changed,
        "description": version.description,
        "current_stage": version.stage,
        "source": version.source,
        "run_id": version.run_id,
        "run_link": version.run_link,
        "status": version.status,
    }
    more = {
        "user_id": version.user,
        "status_message": version.message,
        "tags": show_pairs(version.tags),
        "aliases": list(version.aliases),
    }
    return shown | {name: value for name, value in more.items() if value}


def _model(model: Model) -> dict[str, Any]:
    return {"registered_model": show_model(model)}


def _version(version: ModelVersion) -> dict[str, Any]:
    return {"model_version": show_version(version)}


def _name(ask: Ask) -> str:
    return check_model_name(ask.need("name"))


def _pair(ask: Ask) -> tuple[str, int]:
    name, version = ask.need("name"), ask.need("version")
    return check_model_name(name), check_version(version)


def _description(ask: Ask) -> str:
    return check_length("description", ask.text("description"), _LONGEST_DESCRIPTION)


def _tags(ask: Ask) -> dict[str, str]:
    tags = ask.pairs("tags")
    for key, value in tags.items():
        check_model_tag(key, value)
    if tags.get(_PROMPT_TAG, "").lower() == "true":
        raise NotOffered("this server keeps models and no prompts")
    return tags


_MODELS, _VERSIONS = "/mlflow/registered-models", "/mlflow/model-versions"

TABLE: Table = [
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
