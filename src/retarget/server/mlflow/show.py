"""Experiments and runs in the format of MLflow's API."""

from typing import Any

from retarget.core.tracking import DatasetInput, Experiment, Metric, ModelLink, Run
from retarget.server.mlflow.request import show_double, show_pairs


def show_experiment(experiment: Experiment) -> dict[str, Any]:
    return {
        "experiment_id": experiment.id,
        "name": experiment.name,
        "artifact_location": experiment.location,
        "lifecycle_stage": experiment.stage,
        "last_update_time": experiment.changed_at,
        "creation_time": experiment.created_at,
        "tags": show_pairs(experiment.tags),
    }


def show_run(run: Run) -> dict[str, Any]:
    return {
        "info": show_run_info(run),
        "data": {
            "metrics": [show_metric(metric) for metric in run.metrics],
            "params": show_pairs(run.params),
            "tags": show_pairs(run.tags),
        },
        "inputs": {
            "dataset_inputs": [_dataset(dataset_input) for dataset_input in run.datasets],
            "model_inputs": [{"model_id": link.model_id} for link in run.models_in],
        },
        "outputs": {"model_outputs": [_model(link) for link in run.models_out]},
    }


def show_run_info(run: Run) -> dict[str, Any]:
    info: dict[str, Any] = {
        "run_uuid": run.id,
        "run_id": run.id,
        "run_name": run.name,
        "experiment_id": run.experiment_id,
        "user_id": run.user,
        "status": run.status,
        "start_time": run.started_at,
        "artifact_uri": run.location,
        "lifecycle_stage": run.stage,
    }
    if run.ended_at is not None:
        info["end_time"] = run.ended_at
    return info


def show_metric(metric: Metric) -> dict[str, Any]:
    fields = {
        "key": metric.key,
        "value": show_double(metric.value),
        "timestamp": metric.logged_at,
        "step": metric.step,
    }
    for name in ("model_id", "dataset_name", "dataset_digest"):
        value = getattr(metric, name)
        if value is not None:
            fields[name] = value
    return fields


def _dataset(dataset_input: DatasetInput) -> dict[str, Any]:
    dataset = dataset_input.dataset.model_dump(exclude_none=True)
    if "schema_" in dataset:
        dataset["schema"] = dataset.pop("schema_")
    return {"dataset": dataset, "tags": show_pairs(dataset_input.tags)}


def _model(link: ModelLink) -> dict[str, Any]:
    return {"model_id": link.model_id, "step": link.step}
