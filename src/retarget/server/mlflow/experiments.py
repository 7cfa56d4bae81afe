"""MLflow's API: experiments."""

from typing import Any
from urllib.parse import unquote, urlparse

from retarget.core.errors import Invalid
from retarget.core.limits import (
    MAX_LOCATION_LENGTH,
    check_experiment_name,
    check_experiment_tag,
    check_length,
)
from retarget.core.tracking import artifact_path
from retarget.server.mlflow.app import RouteTable
from retarget.server.mlflow.request import MlflowRequest
from retarget.server.mlflow.show import show_experiment


def create(request: MlflowRequest) -> dict[str, Any]:
    name = check_experiment_name(request.required_string("name"))
    location = _check_location(request.string("artifact_location"))
    if location and artifact_path(location) is not None:
        request.principal.check_is_user(
            "set the artifact location of an experiment to a folder of this server"
        )
    tags = request.pairs("tags")
    for key, value in tags.items():
        check_experiment_tag(key, value)
    job_id = request.principal.job_id
    experiment = request.context.store.experiments.create(
        name, location, tags, now=request.now, by_job=job_id
    )
    request.remember_experiment(experiment)
    return {"experiment_id": experiment.id}


def get(request: MlflowRequest) -> dict[str, Any]:
    return {
        "experiment": show_experiment(
            request.context.store.experiments.get(request.required_string("experiment_id"))
        )
    }


def get_by_name(request: MlflowRequest) -> dict[str, Any]:
    experiment = request.context.store.experiments.find(request.required_string("experiment_name"))
    request.remember_experiment(experiment)
    return {"experiment": show_experiment(experiment)}


def update(request: MlflowRequest) -> dict[str, Any]:
    experiment_id, name = (
        request.required_string("experiment_id"),
        check_experiment_name(request.required_string("new_name")),
    )
    job_id = request.principal.job_id
    request.context.store.experiments.rename(experiment_id, name, now=request.now, by_job=job_id)
    return {}


def delete(request: MlflowRequest) -> dict[str, Any]:
    experiment_id, job_id = request.required_string("experiment_id"), request.principal.job_id
    request.context.store.experiments.delete(experiment_id, now=request.now, by_job=job_id)
    return {}


def restore(request: MlflowRequest) -> dict[str, Any]:
    experiment_id, job_id = request.required_string("experiment_id"), request.principal.job_id
    request.context.store.experiments.restore(experiment_id, now=request.now, by_job=job_id)
    return {}


def set_tag(request: MlflowRequest) -> dict[str, Any]:
    experiment_id, key, value = (
        request.required_string("experiment_id"),
        request.required_string("key"),
        request.string("value"),
    )
    check_experiment_tag(key, value)
    request.context.store.experiments.set_tag(experiment_id, key, value)
    return {}


def delete_tag(request: MlflowRequest) -> dict[str, Any]:
    request.context.store.experiments.delete_tag(
        request.required_string("experiment_id"), request.required_string("key")
    )
    return {}


def _check_location(location: str) -> str:
    """Refuse locations that lead elsewhere than they seem to, or that nobody can reach."""
    if not location:
        return ""
    check_length("artifact_location", location, MAX_LOCATION_LENGTH)
    try:
        parsed = urlparse(location)
    except ValueError:
        raise Invalid(f"'artifact_location' is not an address: {location!r}") from None
    if "#" in location or parsed.params:
        raise Invalid("'artifact_location' URL can't include fragments or params.")
    if ".." in parsed.query or ".." in unquote(parsed.path).split("/"):
        raise Invalid("'artifact_location' must not lead upwards with '..'")
    return location


ROUTES: RouteTable = [
    ("POST", "/mlflow/experiments/create", create),
    ("GET", "/mlflow/experiments/get", get),
    ("GET", "/mlflow/experiments/get-by-name", get_by_name),
    ("POST", "/mlflow/experiments/update", update),
    ("POST", "/mlflow/experiments/delete", delete),
    ("POST", "/mlflow/experiments/restore", restore),
    ("POST", "/mlflow/experiments/set-experiment-tag", set_tag),
    ("POST", "/mlflow/experiments/delete-experiment-tag", delete_tag),
]
