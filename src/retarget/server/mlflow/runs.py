"""MLflow's API: runs, and what is logged to them."""

import json
import random
import uuid
from typing import Any

from retarget.core.errors import Invalid
from retarget.core.limits import (
    LONGEST_TAG,
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
    Dataset,
    DatasetInput,
    Metric,
    ModelLink,
    Run,
    RunStatus,
    address_below,
)
from retarget.server.mlflow.app import Table
from retarget.server.mlflow.ask import Ask, double, missing, read_pairs, whole, wrong_type
from retarget.server.mlflow.show import show_run, show_run_info
from retarget.store.experiments import check_active
from retarget.store.runs import NAME_TAG

_LARGEST_BATCH = 1_000_000  # characters
_LOGGED_MODELS = "mlflow.log-model.history"


def create(ask: Ask) -> dict[str, Any]:
    experiment = check_active(ask.parts.experiments.get(ask.text("experiment_id") or "0"))
    tags = {key: check_tag(key, value) for key, value in ask.pairs("tags").items()}
    name, tagged = ask.text("run_name"), tags.get(NAME_TAG, "")
    if name and tagged and name != tagged:
        raise Invalid(
            "Both 'run_name' argument and 'mlflow.runName' tag are specified, but with different "
            f"values (run_name='{name}', mlflow.runName='{tagged}')."
        )
    run_id = uuid.uuid4().hex
    run = Run(
        id=run_id,
        experiment_id=experiment.id,
        job_id=ask.caller.job_id,
        name=name or tagged or suggest_name(random.Random(), tries=2),
        user=ask.text("user_id"),
        status=RunStatus.RUNNING,
        started=ask.whole("start_time", 0),
        location=address_below(experiment.location, f"{run_id}/artifacts"),
        tags=tags,
    )
    ask.parts.runs.create(run)
    return {"run": show_run(ask.parts.runs.get(run_id))}


def get(ask: Ask) -> dict[str, Any]:
    run_id = _run_id(ask)
    ask.takes_up(run_id)
    return {"run": show_run(ask.parts.runs.get(run_id))}


def update(ask: Ask) -> dict[str, Any]:
    run_id = _writable(ask)
    change: dict[str, Any] = {}
    if ask.body.get("status") is not None:
        change["status"] = _status(ask.body["status"])
    if ask.body.get("end_time") is not None:
        change["ended"] = ask.whole("end_time")
    if ask.text("run_name"):
        change["name"] = check_length("run_name", ask.text("run_name"), LONGEST_TAG)
    return {"run_info": show_run_info(ask.parts.runs.update(run_id, change))}


def delete(ask: Ask) -> dict[str, Any]:
    ask.parts.runs.delete(_writable(ask), now=ask.now)
    return {}


def restore(ask: Ask) -> dict[str, Any]:
    ask.parts.runs.restore(_writable(ask))
    return {}


def log_metric(ask: Ask) -> dict[str, Any]:
    run_id = _run_id(ask)
    for name in ("key", "value", "timestamp"):
        if ask.body.get(name) in (None, ""):
            raise missing(name)
    metric = _metric(ask.body, "")
    check_metrics([metric], alone=True)
    _check_writes(ask, run_id)
    ask.parts.runs.log(run_id, [metric])
    return {}


def log_param(ask: Ask) -> dict[str, Any]:
    run_id, key = _run_id(ask), ask.need("key")
    value = check_param(key, ask.text("value"))
    _check_writes(ask, run_id)
    ask.parts.runs.log(run_id, params={key: value})
    return {}


def set_tag(ask: Ask) -> dict[str, Any]:
    run_id, key = _run_id(ask), ask.need("key")
    value = check_tag(key, ask.text("value"))
    _check_writes(ask, run_id)
    ask.parts.runs.log(run_id, tags={key: value})
    return {}


def delete_tag(ask: Ask) -> dict[str, Any]:
    ask.parts.runs.delete_tag(_writable(ask), ask.need("key"))
    return {}


def log_batch(ask: Ask) -> dict[str, Any]:
    run_id = check_run_id(ask.need("run_id"))
    rows, given, words = ask.rows("metrics"), ask.rows("params"), ask.rows("tags")
    _check_present("metrics", rows, ("key", "value", "timestamp"))
    _check_present("params", given, ("key",))
    _check_present("tags", words, ("key",))
    metrics = [_metric(row, f"metrics[{index}].") for index, row in enumerate(rows)]
    check_metrics(metrics)
    pairs = list(enumerate(ask.pairs("params").items()))
    params = {key: check_param(key, value, f"params[{index}].") for index, (key, value) in pairs}
    pairs = list(enumerate(ask.pairs("tags").items()))
    tags = {key: check_tag(key, value, f"tags[{index}].") for index, (key, value) in pairs}
    check_batch(rows, given, words)
    check_unique(row["key"] for row in given)
    _check_writes(ask, run_id)
    ask.parts.runs.log(run_id, metrics, params, tags)
    return {}


def log_inputs(ask: Ask) -> dict[str, Any]:
    run_id = check_run_id(ask.need("run_id"))
    given = [_dataset_input(row) for row in ask.rows("datasets")]
    models = [_link(row) for row in ask.rows("models")]
    _check_writes(ask, run_id)
    ask.parts.runs.add_inputs(run_id, given, models)
    return {}


def log_outputs(ask: Ask) -> dict[str, Any]:
    run_id = check_run_id(ask.need("run_id"))
    if not ask.body.get("models"):
        raise missing("models")
    models = [_link(row) for row in ask.rows("models")]
    _check_writes(ask, run_id)
    ask.parts.runs.add_outputs(run_id, models)
    return {}


def log_model(ask: Ask) -> dict[str, Any]:
    """Note a model in a tag of its run, as clients before MLflow 3 do."""
    run_id, text = ask.need("run_id"), ask.need("model_json")
    try:
        model = json.loads(text)
    except (ValueError, RecursionError):
        raise Invalid(f"Malformed model info. \n {text} \n is not a valid JSON.") from None
    needed = {"artifact_path", "flavors", "utc_time_created", "run_id"}
    absent = needed - set(model) if isinstance(model, dict) else needed  # pyright: ignore[reportUnknownArgumentType]
    if absent:
        raise Invalid(f"Model json is missing mandatory fields: {absent}")
    _check_writes(ask, run_id)

    def join(seen: str | None) -> str:
        return _newest([*_listed(seen), model])

    ask.parts.runs.append_to_tag(run_id, _LOGGED_MODELS, join)
    return {}


def _listed(seen: str | None) -> list[Any]:
    """Return the models in the tag; none if somebody has written something else there."""
    try:
        found = json.loads(seen or "[]")
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []  # pyright: ignore[reportUnknownVariableType]


def _newest(models: list[Any]) -> str:
    """Write as many of the newest models as a tag has room for."""
    while len(text := json.dumps(models)) > LONGEST_TAG and models:
        models = models[1:]
    if not models:
        raise Invalid(f"the model info has more than {LONGEST_TAG} characters", field="model_json")
    return text


def _run_id(ask: Ask) -> str:
    return ask.text("run_uuid") or ask.need("run_id")


def _writable(ask: Ask) -> str:
    run_id = _run_id(ask)
    _check_writes(ask, run_id)
    return run_id


def _check_writes(ask: Ask, run_id: str) -> None:
    if ask.caller.job_id is not None:
        ask.caller.check_writes(ask.parts.runs.owner(run_id), f"run {run_id!r}")


def _check_present(name: str, rows: list[dict[str, Any]], fields: tuple[str, ...]) -> None:
    for index, row in enumerate(rows):
        for field in fields:
            value = row.get(field)
            if value is None or value == "":
                raise missing(f"{name}[{index}].{field}")


def _metric(row: dict[str, Any], where: str) -> Metric:
    key, value, timestamp, step = row["key"], row["value"], row["timestamp"], row.get("step", 0)
    if type(key) is not str:
        raise wrong_type(f"{where}key", key)
    # nearly all come as what they are: a batch has a thousand of them
    if type(value) is not float:
        value = double(value, f"{where}value")
    if type(timestamp) is not int or timestamp > _LONG:
        timestamp = whole(timestamp, f"{where}timestamp")
    if type(step) is not int or abs(step) > _LONG:
        step = whole(step or 0, f"{where}step")
    if "model_id" not in row and "dataset_name" not in row and "dataset_digest" not in row:
        return Metric(key, value, timestamp, step)
    about = [row.get(name) or None for name in ("model_id", "dataset_name", "dataset_digest")]
    if not all(value is None or isinstance(value, str) for value in about):
        raise wrong_type(f"{where}model_id", about)
    if (about[1] is None) != (about[2] is None):
        raise Invalid("Both dataset_name and dataset_digest must be provided if one is provided")
    return Metric(key, value, timestamp, step, *about)


_LONG = (1 << 63) - 1


def _status(value: Any) -> RunStatus:
    """Read a status, which protobuf lets be the number of one."""
    numbered = [RunStatus.RUNNING, RunStatus.SCHEDULED, RunStatus.FINISHED]
    numbered += [RunStatus.FAILED, RunStatus.KILLED]
    if isinstance(value, int) and 1 <= value <= len(numbered):
        return numbered[value - 1]
    try:
        return RunStatus(value)
    except ValueError:
        raise invalid("status", value, f"It must be one of {[*RunStatus]}") from None


def _dataset_input(row: dict[str, Any]) -> DatasetInput:
    dataset = row.get("dataset")
    if not isinstance(dataset, dict):
        raise Invalid("Dataset cannot be None")
    known: dict[str, Any] = dataset  # pyright: ignore[reportUnknownVariableType]
    for name in ("name", "digest", "source_type", "source"):
        if not known.get(name):
            raise missing(name)
    for name in ("name", "digest", "source_type", "source", "schema", "profile"):
        if not isinstance(known.get(name), str | None):
            raise wrong_type(name, known[name])
    values = {name: known.get(name) for name in ("name", "digest", "source_type", "source")}
    values |= {"schema_": known.get("schema"), "profile": known.get("profile")}
    read = Dataset.model_validate(values)
    tags = read_pairs(row.get("tags"), "tags")
    check_dataset(read, tags)
    return DatasetInput(dataset=read, tags=tags)


def _link(row: dict[str, Any]) -> ModelLink:
    model_id = row.get("model_id")
    if not isinstance(model_id, str) or not model_id:
        raise missing("model_id")
    return ModelLink(model_id=model_id, step=whole(row.get("step") or 0, "step"))


TABLE: Table = [
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
