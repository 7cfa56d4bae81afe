"""MLflow's API: runs, and what is logged to them."""

import json
import random
import uuid
from typing import Any

from retarget.core.errors import Invalid
from retarget.core.limits import (
    MAX_TAG_LENGTH,
    check_batch,
    check_dataset,
    check_length,
    check_metrics,
    check_param,
    check_run_id,
    check_tag,
    check_unique,
    invalid,
)
from retarget.core.names import suggest_name
from retarget.core.tracking import (
    NAME_TAG,
    Dataset,
    DatasetInput,
    Metric,
    ModelLink,
    Run,
    RunStatus,
    address_below,
)
from retarget.server.mlflow.app import RouteTable
from retarget.server.mlflow.request import (
    MlflowRequest,
    missing,
    read_double,
    read_integer,
    read_pairs,
    wrong_type,
)
from retarget.server.mlflow.show import show_run, show_run_info
from retarget.store.experiments import check_active

_MAX_BATCH_CHARACTERS = 1_000_000  # characters
_LOGGED_MODELS_TAG = "mlflow.log-model.history"


def create(request: MlflowRequest) -> dict[str, Any]:
    experiment = check_active(
        request.context.store.experiments.get(request.string("experiment_id") or "0")
    )
    tags = {key: check_tag(key, value) for key, value in request.pairs("tags").items()}
    name, tagged = request.string("run_name"), tags.get(NAME_TAG, "")
    if name and tagged and name != tagged:
        raise Invalid(
            "Both 'run_name' argument and 'mlflow.runName' tag are specified, but with different "
            f"values (run_name='{name}', mlflow.runName='{tagged}')."
        )
    run_id = uuid.uuid4().hex
    run = Run(
        id=run_id,
        experiment_id=experiment.id,
        job_id=request.principal.job_id,
        name=name or tagged or suggest_name(random.Random(), tries=2),
        user=request.string("user_id"),
        status=RunStatus.RUNNING,
        started_at=request.integer("start_time", 0),
        location=address_below(experiment.location, f"{run_id}/artifacts"),
        tags=tags,
    )
    request.context.store.runs.create(run)
    return {"run": show_run(request.context.store.runs.get(run_id))}


def get(request: MlflowRequest) -> dict[str, Any]:
    run_id = _run_id(request)
    request.move_to_chosen_experiment(run_id)
    return {"run": show_run(request.context.store.runs.get(run_id))}


def update(request: MlflowRequest) -> dict[str, Any]:
    run_id = _writable(request)
    change: dict[str, Any] = {}
    if request.body.get("status") is not None:
        change["status"] = _status(request.body["status"])
    if request.body.get("end_time") is not None:
        change["ended_at"] = request.integer("end_time")
    if request.string("run_name"):
        change["name"] = check_length("run_name", request.string("run_name"), MAX_TAG_LENGTH)
    return {"run_info": show_run_info(request.context.store.runs.update(run_id, change))}


def delete(request: MlflowRequest) -> dict[str, Any]:
    request.context.store.runs.delete(_writable(request), now=request.now)
    return {}


def restore(request: MlflowRequest) -> dict[str, Any]:
    request.context.store.runs.restore(_writable(request))
    return {}


def log_metric(request: MlflowRequest) -> dict[str, Any]:
    run_id = _run_id(request)
    for name in ("key", "value", "timestamp"):
        if request.body.get(name) in (None, ""):
            raise missing(name)
    metric = _metric(request.body, "")
    check_metrics([metric], alone=True)
    _check_writes(request, run_id)
    request.context.store.runs.log(run_id, [metric])
    return {}


def log_param(request: MlflowRequest) -> dict[str, Any]:
    run_id, key = _run_id(request), request.required_string("key")
    value = check_param(key, request.string("value"))
    _check_writes(request, run_id)
    request.context.store.runs.log(run_id, params={key: value})
    return {}


def set_tag(request: MlflowRequest) -> dict[str, Any]:
    run_id, key = _run_id(request), request.required_string("key")
    value = check_tag(key, request.string("value"))
    _check_writes(request, run_id)
    request.context.store.runs.log(run_id, tags={key: value})
    return {}


def delete_tag(request: MlflowRequest) -> dict[str, Any]:
    request.context.store.runs.delete_tag(_writable(request), request.required_string("key"))
    return {}


def log_batch(request: MlflowRequest) -> dict[str, Any]:
    run_id = check_run_id(request.required_string("run_id"))
    metric_rows, param_rows, tag_rows = (
        request.rows(name) for name in ("metrics", "params", "tags")
    )
    _check_present("metrics", metric_rows, ("key", "value", "timestamp"))
    _check_present("params", param_rows, ("key",))
    _check_present("tags", tag_rows, ("key",))
    metrics = [_metric(row, f"metrics[{index}].") for index, row in enumerate(metric_rows)]
    check_metrics(metrics)
    pairs = list(enumerate(request.pairs("params").items()))
    params = {key: check_param(key, value, f"params[{index}].") for index, (key, value) in pairs}
    pairs = list(enumerate(request.pairs("tags").items()))
    tags = {key: check_tag(key, value, f"tags[{index}].") for index, (key, value) in pairs}
    check_batch(metric_rows, param_rows, tag_rows)
    check_unique(row["key"] for row in param_rows)
    _check_writes(request, run_id)
    request.context.store.runs.log(run_id, metrics, params, tags)
    return {}


def log_inputs(request: MlflowRequest) -> dict[str, Any]:
    run_id = check_run_id(request.required_string("run_id"))
    datasets = [_dataset_input(row) for row in request.rows("datasets")]
    models = [_link(row) for row in request.rows("models")]
    _check_writes(request, run_id)
    request.context.store.runs.add_inputs(run_id, datasets, models)
    return {}


def log_outputs(request: MlflowRequest) -> dict[str, Any]:
    run_id = check_run_id(request.required_string("run_id"))
    if not request.body.get("models"):
        raise missing("models")
    models = [_link(row) for row in request.rows("models")]
    _check_writes(request, run_id)
    request.context.store.runs.add_outputs(run_id, models)
    return {}


def log_model(request: MlflowRequest) -> dict[str, Any]:
    """Record a model in a tag of its run, for clients older than MLflow 3."""
    run_id, text = request.required_string("run_id"), request.required_string("model_json")
    try:
        model = json.loads(text)
    except (ValueError, RecursionError):
        raise Invalid(f"Malformed model info. \n {text} \n is not a valid JSON.") from None
    mandatory = {"artifact_path", "flavors", "utc_time_created", "run_id"}
    absent = mandatory - set(model) if isinstance(model, dict) else mandatory  # pyright: ignore[reportUnknownArgumentType]
    if absent:
        raise Invalid(f"Model json is missing mandatory fields: {absent}")
    _check_writes(request, run_id)

    def append(tag: str | None) -> str:
        return _write_newest([*_read_models(tag), model])

    request.context.store.runs.append_to_tag(run_id, _LOGGED_MODELS_TAG, append)
    return {}


def _read_models(tag: str | None) -> list[Any]:
    """Return the models in the tag, or none if the tag holds something else."""
    try:
        models = json.loads(tag or "[]")
    except (ValueError, RecursionError):
        return []
    return models if isinstance(models, list) else []  # pyright: ignore[reportUnknownVariableType]


def _write_newest(models: list[Any]) -> str:
    """Return as many of the newest models as fit into a tag, as JSON."""
    while len(text := json.dumps(models)) > MAX_TAG_LENGTH and models:
        models = models[1:]
    if not models:
        raise Invalid(
            f"the model info has more than {MAX_TAG_LENGTH} characters", field="model_json"
        )
    return text


def _run_id(request: MlflowRequest) -> str:
    return request.string("run_uuid") or request.required_string("run_id")


def _writable(request: MlflowRequest) -> str:
    run_id = _run_id(request)
    _check_writes(request, run_id)
    return run_id


def _check_writes(request: MlflowRequest, run_id: str) -> None:
    if request.principal.job_id is not None:
        request.principal.check_writes(request.context.store.runs.owner(run_id), f"run {run_id!r}")


def _check_present(name: str, rows: list[dict[str, Any]], fields: tuple[str, ...]) -> None:
    for index, row in enumerate(rows):
        for field in fields:
            value = row.get(field)
            if value is None or value == "":
                raise missing(f"{name}[{index}].{field}")


def _metric(row: dict[str, Any], prefix: str) -> Metric:
    key, value, timestamp, step = row["key"], row["value"], row["timestamp"], row.get("step", 0)
    if type(key) is not str:
        raise wrong_type(f"{prefix}key", key)
    # the fast path: nearly all have the right type, and a batch holds a thousand
    if type(value) is not float:
        value = read_double(value, f"{prefix}value")
    if type(timestamp) is not int or timestamp > _MAX_INT64:
        timestamp = read_integer(timestamp, f"{prefix}timestamp")
    if type(step) is not int or abs(step) > _MAX_INT64:
        step = read_integer(step or 0, f"{prefix}step")
    if "model_id" not in row and "dataset_name" not in row and "dataset_digest" not in row:
        return Metric(key, value, timestamp, step)
    related = [row.get(name) or None for name in ("model_id", "dataset_name", "dataset_digest")]
    if not all(value is None or isinstance(value, str) for value in related):
        raise wrong_type(f"{prefix}model_id", related)
    if (related[1] is None) != (related[2] is None):
        raise Invalid("Both dataset_name and dataset_digest must be provided if one is provided")
    return Metric(key, value, timestamp, step, *related)


_MAX_INT64 = (1 << 63) - 1


def _status(value: Any) -> RunStatus:
    """Read a status. Protobuf's JSON allows its name or its number."""
    by_number = [RunStatus.RUNNING, RunStatus.SCHEDULED, RunStatus.FINISHED]
    by_number += [RunStatus.FAILED, RunStatus.KILLED]
    if isinstance(value, int) and 1 <= value <= len(by_number):
        return by_number[value - 1]
    try:
        return RunStatus(value)
    except ValueError:
        raise invalid("status", value, f"It must be one of {[*RunStatus]}") from None


def _dataset_input(row: dict[str, Any]) -> DatasetInput:
    value = row.get("dataset")
    if not isinstance(value, dict):
        raise Invalid("Dataset cannot be None")
    fields: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
    for name in ("name", "digest", "source_type", "source"):
        if not fields.get(name):
            raise missing(name)
    for name in ("name", "digest", "source_type", "source", "schema", "profile"):
        if not isinstance(fields.get(name), str | None):
            raise wrong_type(name, fields[name])
    values = {name: fields.get(name) for name in ("name", "digest", "source_type", "source")}
    values |= {"schema_": fields.get("schema"), "profile": fields.get("profile")}
    dataset = Dataset.model_validate(values)
    tags = read_pairs(row.get("tags"), "tags")
    check_dataset(dataset, tags)
    return DatasetInput(dataset=dataset, tags=tags)


def _link(row: dict[str, Any]) -> ModelLink:
    model_id = row.get("model_id")
    if not isinstance(model_id, str) or not model_id:
        raise missing("model_id")
    return ModelLink(model_id=model_id, step=read_integer(row.get("step") or 0, "step"))


ROUTES: RouteTable = [
    ("POST", "/mlflow/runs/create", create),
    ("GET", "/mlflow/runs/get", get),
    ("POST", "/mlflow/runs/update", update),
    ("POST", "/mlflow/runs/delete", delete),
    ("POST", "/mlflow/runs/restore", restore),
    ("POST", "/mlflow/runs/log-metric", log_metric),
    ("POST", "/mlflow/runs/log-parameter", log_param),
    ("POST", "/mlflow/runs/set-tag", set_tag),
    ("POST", "/mlflow/runs/delete-tag", delete_tag),
    ("POST", "/mlflow/runs/log-batch", log_batch),
    ("POST", "/mlflow/runs/log-inputs", log_inputs),
    ("POST", "/mlflow/runs/outputs", log_outputs),
    ("POST", "/mlflow/runs/log-model", log_model),
]
