"""MLflow's API: models as runs logged them."""

import random
import uuid
from typing import Any

from retarget.core.errors import Invalid
from retarget.core.limits import check_param
from retarget.core.models import LoggedModel, LoggedModelStatus, ModelMetric, check_logged_name
from retarget.core.names import suggest_name
from retarget.core.tracking import address_below
from retarget.server.mlflow.app import Table
from retarget.server.mlflow.artifacts import listed, ours
from retarget.server.mlflow.ask import Ask, missing, show_pairs, wrong_type
from retarget.server.mlflow.show import show_metric
from retarget.server.mlflow.tree import clean, join
from retarget.store.experiments import check_active

_STATUSES = list(LoggedModelStatus)  # protobuf's numbers are places in this list


def create(ask: Ask) -> dict[str, Any]:
    name = ask.text("name")
    check_logged_name(name)
    experiment = check_active(ask.parts.experiments.get(ask.need("experiment_id")))
    model_id = f"m-{uuid.uuid4().hex}"
    model = LoggedModel(
        id=model_id,
        experiment_id=experiment.id,
        run_id=ask.text("source_run_id") or None,
        job_id=ask.caller.job_id,
        name=name or suggest_name(random.Random(), tries=3),
        type=ask.text("model_type"),
        location=address_below(experiment.location, f"models/{model_id}/artifacts"),
        created=ask.now,
        changed=ask.now,
        params=ask.pairs("params"),
        tags=ask.pairs("tags"),
    )
    ask.parts.logged_models.create(model)
    return _model(model)


def get(ask: Ask) -> dict[str, Any]:
    deleted = ask.flag("allow_deleted")
    return _model(ask.parts.logged_models.get(ask.path["model_id"], deleted=deleted))


def finalize(ask: Ask) -> dict[str, Any]:
    status = _status(ask.body.get("status"))
    return _model(ask.parts.logged_models.finalize(_writable(ask), status, now=ask.now))


def delete(ask: Ask) -> dict[str, Any]:
    ask.parts.logged_models.delete(_writable(ask), now=ask.now)
    return {}


def set_tags(ask: Ask) -> dict[str, Any]:
    ask.parts.logged_models.set_tags(_writable(ask), ask.pairs("tags"))
    return {}


def delete_tag(ask: Ask) -> dict[str, Any]:
    ask.parts.logged_models.delete_tag(_writable(ask), ask.path["key"])
    return {}


def log_params(ask: Ask) -> dict[str, Any]:
    params = {key: check_param(key, value) for key, value in ask.pairs("params").items()}
    ask.parts.logged_models.log_params(_writable(ask), params)
    return {}


def list_artifacts(ask: Ask) -> dict[str, Any]:
    """List what a model's folder holds; the paths begin there."""
    path = clean(ask.text("artifact_directory_path"))
    location = ask.parts.logged_models.get(ask.path["model_id"]).location
    return {"root_uri": location} | listed(ask.parts, join(ours(location), path), path)


def show_logged_model(model: LoggedModel) -> dict[str, Any]:
    info: dict[str, Any] = {
        "model_id": model.id,
        "experiment_id": model.experiment_id,
        "name": model.name,
        "creation_timestamp_ms": model.created,
        "last_updated_timestamp_ms": model.changed,
        "artifact_uri": model.location,
        "status": model.status,
        "model_type": model.type,
        "source_run_id": model.run_id or "",
    }
    if model.message:
        info["status_message"] = model.message
    if model.tags:
        info["tags"] = show_pairs(model.tags)
    data: dict[str, Any] = {}
    if model.params:
        data["params"] = show_pairs(model.params)
    if model.metrics:
        data["metrics"] = [_metric(metric) for metric in model.metrics]
    return {"info": info, "data": data}


def _model(model: LoggedModel) -> dict[str, Any]:
    return {"model": show_logged_model(model)}


def _metric(metric: ModelMetric) -> dict[str, Any]:
    return show_metric(metric.metric) | {"run_id": metric.run_id}


def _writable(ask: Ask) -> str:
    """Return the id of the model, if the caller may write to it."""
    model_id = ask.path["model_id"]
    if ask.caller.job_id is not None:
        model = ask.parts.logged_models.get(model_id, deleted=True)
        ask.caller.check_writes(model.job_id, f"logged model {model_id!r}")
    return model_id


def _status(value: Any) -> LoggedModelStatus:
    """Read a status: protobuf's JSON has its name, or its number."""
    if value is None or value == "":
        raise missing("status")
    if isinstance(value, str) and value in _STATUSES:
        return LoggedModelStatus(value)
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise wrong_type("status", value) from None
    if not 0 <= number < len(_STATUSES):
        raise Invalid(f"Unknown model status: {number}", field="status")
    return _STATUSES[number]


_MODELS = "/mlflow/logged-models"

TABLE: Table = [
    ("POST", _MODELS, create),
    ("GET", f"{_MODELS}/{{model_id}}", get),
    ("PATCH", f"{_MODELS}/{{model_id}}", finalize),
    ("DELETE", f"{_MODELS}/{{model_id}}", delete),
    ("PATCH", f"{_MODELS}/{{model_id}}/tags", set_tags),
    ("DELETE", f"{_MODELS}/{{model_id}}/tags/{{key:path}}", delete_tag),
    ("POST", f"{_MODELS}/{{model_id}}/params", log_params),
    ("GET", f"{_MODELS}/{{model_id}}/artifacts/directories", list_artifacts),
]
