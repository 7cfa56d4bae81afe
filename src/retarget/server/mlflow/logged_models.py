"""MLflow's API: logged models."""

import random
import uuid
from typing import Any

from retarget.core.errors import Invalid
from retarget.core.limits import check_param
from retarget.core.models import LoggedModel, LoggedModelStatus, ModelMetric, check_logged_name
from retarget.core.names import suggest_name
from retarget.core.tracking import address_below
from retarget.server.mlflow.app import RouteTable
from retarget.server.mlflow.artifacts import artifact_folder, list_folder
from retarget.server.mlflow.request import MlflowRequest, missing, show_pairs, wrong_type
from retarget.server.mlflow.show import show_metric
from retarget.server.mlflow.tree import join, normalize
from retarget.store.experiments import check_active

_STATUSES = list(LoggedModelStatus)  # protobuf's numbers are indexes of this list


def create(request: MlflowRequest) -> dict[str, Any]:
    name = request.string("name")
    check_logged_name(name)
    experiment = check_active(
        request.context.store.experiments.get(request.required_string("experiment_id"))
    )
    model_id = f"m-{uuid.uuid4().hex}"
    model = LoggedModel(
        id=model_id,
        experiment_id=experiment.id,
        run_id=request.string("source_run_id") or None,
        job_id=request.principal.job_id,
        name=name or suggest_name(random.Random(), tries=3),
        type=request.string("model_type"),
        location=address_below(experiment.location, f"models/{model_id}/artifacts"),
        created_at=request.now,
        changed_at=request.now,
        params=request.pairs("params"),
        tags=request.pairs("tags"),
    )
    request.context.store.logged_models.create(model)
    return _model(model)


def get(request: MlflowRequest) -> dict[str, Any]:
    deleted = request.flag("allow_deleted")
    return _model(
        request.context.store.logged_models.get(request.path_params["model_id"], deleted=deleted)
    )


def finalize(request: MlflowRequest) -> dict[str, Any]:
    status = _status(request.body.get("status"))
    return _model(
        request.context.store.logged_models.finalize(_writable(request), status, now=request.now)
    )


def delete(request: MlflowRequest) -> dict[str, Any]:
    request.context.store.logged_models.delete(_writable(request), now=request.now)
    return {}


def set_tags(request: MlflowRequest) -> dict[str, Any]:
    request.context.store.logged_models.set_tags(_writable(request), request.pairs("tags"))
    return {}


def delete_tag(request: MlflowRequest) -> dict[str, Any]:
    request.context.store.logged_models.delete_tag(_writable(request), request.path_params["key"])
    return {}


def log_params(request: MlflowRequest) -> dict[str, Any]:
    params = {key: check_param(key, value) for key, value in request.pairs("params").items()}
    request.context.store.logged_models.log_params(_writable(request), params)
    return {}


def list_artifacts(request: MlflowRequest) -> dict[str, Any]:
    """List a folder of a logged model. Paths are relative to the root of the model."""
    path = normalize(request.string("artifact_directory_path"))
    location = request.context.store.logged_models.get(request.path_params["model_id"]).location
    return {"root_uri": location} | list_folder(
        request.context, join(artifact_folder(location), path), path
    )


def show_logged_model(model: LoggedModel) -> dict[str, Any]:
    info: dict[str, Any] = {
        "model_id": model.id,
        "experiment_id": model.experiment_id,
        "name": model.name,
        "creation_timestamp_ms": model.created_at,
        "last_updated_timestamp_ms": model.changed_at,
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


def _writable(request: MlflowRequest) -> str:
    """Return the id of the model, or raise Forbidden if the principal cannot change it."""
    model_id = request.path_params["model_id"]
    if request.principal.job_id is not None:
        model = request.context.store.logged_models.get(model_id, deleted=True)
        request.principal.check_writes(model.job_id, f"logged model {model_id!r}")
    return model_id


def _status(value: Any) -> LoggedModelStatus:
    """Read a status. Protobuf's JSON allows its name or its number."""
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

ROUTES: RouteTable = [
    ("POST", _MODELS, create),
    ("GET", f"{_MODELS}/{{model_id}}", get),
    ("PATCH", f"{_MODELS}/{{model_id}}", finalize),
    ("DELETE", f"{_MODELS}/{{model_id}}", delete),
    ("PATCH", f"{_MODELS}/{{model_id}}/tags", set_tags),
    ("DELETE", f"{_MODELS}/{{model_id}}/tags/{{key:path}}", delete_tag),
    ("POST", f"{_MODELS}/{{model_id}}/params", log_params),
    ("GET", f"{_MODELS}/{{model_id}}/artifacts/directories", list_artifacts),
]
