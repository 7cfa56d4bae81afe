"""MLflow's API: experiments."""

from typing import Any
from urllib.parse import unquote, urlparse

from retarget.core.errors import Invalid
from retarget.core.limits import (
    LONGEST_LOCATION,
    check_experiment_name,
    check_experiment_tag,
    check_length,
)
from retarget.core.tracking import artifact_path
from retarget.server.mlflow.app import Table
from retarget.server.mlflow.ask import Ask
from retarget.server.mlflow.show import show_experiment


def create(ask: Ask) -> dict[str, Any]:
    name = check_experiment_name(ask.need("name"))
    location = _check_location(ask.text("artifact_location"))
    if location and artifact_path(location) is not None:
        ask.caller.check_owner("choose where in the server's own artifacts an experiment has its")
    tags = ask.pairs("tags")
    for key, value in tags.items():
        check_experiment_tag(key, value)
    made = ask.parts.experiments.create(name, location, tags, now=ask.now)
    ask.chose(made)
    return {"experiment_id": made.id}


def get(ask: Ask) -> dict[str, Any]:
    return {"experiment": show_experiment(ask.parts.experiments.get(ask.need("experiment_id")))}


def get_by_name(ask: Ask) -> dict[str, Any]:
    found = ask.parts.experiments.find(ask.need("experiment_name"))
    ask.chose(found)
    return {"experiment": show_experiment(found)}


def update(ask: Ask) -> dict[str, Any]:
    ask.caller.check_owner("rename experiments")
    experiment_id, name = ask.need("experiment_id"), check_experiment_name(ask.need("new_name"))
    ask.parts.experiments.rename(experiment_id, name, now=ask.now)
    return {}


def delete(ask: Ask) -> dict[str, Any]:
    ask.caller.check_owner("delete experiments")
    ask.parts.experiments.delete(ask.need("experiment_id"), now=ask.now)
    return {}


def restore(ask: Ask) -> dict[str, Any]:
    ask.caller.check_owner("restore experiments")
    ask.parts.experiments.restore(ask.need("experiment_id"), now=ask.now)
    return {}


def set_tag(ask: Ask) -> dict[str, Any]:
    experiment_id, key, value = ask.need("experiment_id"), ask.need("key"), ask.text("value")
    check_experiment_tag(key, value)
    ask.parts.experiments.set_tag(experiment_id, key, value)
    return {}


def delete_tag(ask: Ask) -> dict[str, Any]:
    ask.parts.experiments.delete_tag(ask.need("experiment_id"), ask.need("key"))
    return {}


def _check_location(location: str) -> str:
    """Refuse places that only the server itself could reach, or nobody."""
    if not location:
        return ""
    check_length("artifact_location", location, LONGEST_LOCATION)
    try:
        parsed = urlparse(location)
    except ValueError:
        raise Invalid(f"'artifact_location' is not an address: {location!r}") from None
    if "#" in location or parsed.params:
        raise Invalid("'artifact_location' URL can't include fragments or params.")
    if ".." in parsed.query or ".." in unquote(parsed.path).split("/"):
        raise Invalid("'artifact_location' must not lead upwards with '..'")
    return location


TABLE: Table = [
    ("POST", "/mlflow/experiments/create", create),
    ("GET", "/mlflow/experiments/get", get),
    ("GET", "/mlflow/experiments/get-by-name", get_by_name),
    ("POST", "/mlflow/experiments/update", update),
    ("POST", "/mlflow/experiments/delete", delete),
    ("POST", "/mlflow/experiments/restore", restore),
    ("POST", "/mlflow/experiments/set-experiment-tag", set_tag),
    ("POST", "/mlflow/experiments/delete-experiment-tag", delete_tag),
]
