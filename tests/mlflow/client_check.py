# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""Does what a user of MLflow with scikit-learn does, with MLflow's own client, and prints it.

Arguments: a prefix that makes names unique, and the servers, which are checked one by one.
"""

import sys
from pathlib import Path
from typing import Any

import mlflow
import mlflow.pyfunc
import mlflow.sklearn
from scrub import Scrubber
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

PREFIX = sys.argv[1]
NOT_COMPARED = {"mlflow.user", "mlflow.source.name", "mlflow.source.git.commit"}
X, Y = load_iris(return_X_y=True, as_frame=True)


def main() -> None:
    global client, scrubber
    for server in sys.argv[2:]:
        mlflow.set_tracking_uri(server)
        client, scrubber = mlflow.MlflowClient(), Scrubber({PREFIX: "prefix", server: "server"})
        scrubber.print(check())


def check() -> dict[str, Any]:
    run_id = train()
    manual_run_id = log_by_hand()
    return {
        "autologged": show_run(run_id),
        "logged by hand": show_run(manual_run_id),
        "history": [
            (m.key, m.value, m.step) for m in client.get_metric_history(manual_run_id, "m")
        ],
        "texts": texts(manual_run_id),
        "model": register(manual_run_id),
        "predictions": predictions(manual_run_id),
        "search": search(),
        "all in one run": show_run(all_in_one()),
    }


def train() -> str:
    experiment = mlflow.set_experiment(f"{PREFIX}-exp")
    scrubber.name(experiment.experiment_id, "experiment")
    mlflow.sklearn.autolog()
    with mlflow.start_run(run_name="auto", tags={"a": "b"}) as run:
        LogisticRegression(max_iter=200).fit(X, Y)
    mlflow.sklearn.autolog(disable=True)
    return scrubber.name(run.info.run_id, "autologged run")


def log_by_hand() -> str:
    with mlflow.start_run(run_name="manual", tags={"a": "b"}) as run:
        mlflow.log_params({"x": 1, "y": 2})
        mlflow.log_metrics({"m": 1.0, "n": 2.0}, step=3)
        mlflow.log_metric("m", float("nan"), step=1)
        mlflow.log_metric("k", 3)
        mlflow.set_tags({"q": "1"})
        mlflow.log_dict({"a": 1}, "d.json")
        mlflow.log_text("héllo", "notes/ä b.txt")
        Path("f.txt").write_text("hi")
        mlflow.log_artifact("f.txt", "sub")
        mlflow.log_artifacts(_folder(), "whole")
        mlflow.log_input(mlflow.data.from_pandas(X, name="iris"), context="training")
        mlflow.sklearn.log_model(
            LogisticRegression(max_iter=200).fit(X, Y),
            name="m1",
            registered_model_name=f"{PREFIX}-reg",
            input_example=X[:2],
            pip_requirements=["scikit-learn"],
        )
    return scrubber.name(run.info.run_id, "run")


def all_in_one() -> str:
    """Autolog, log by hand and register in the same run, without naming requirements."""
    mlflow.set_experiment(f"{PREFIX}-all")
    mlflow.sklearn.autolog()
    with mlflow.start_run(run_name="all", tags={"a": "b"}) as run:
        LogisticRegression(max_iter=200).fit(X, Y)
        mlflow.log_params({"x": 1, "y": 2})
        mlflow.log_metrics({"m": 1.0, "n": 2.0}, step=3)
        mlflow.log_dict({"a": 1}, "d.json")
        model = LogisticRegression(max_iter=200).fit(X, Y)
        mlflow.sklearn.log_model(model, name="m2", registered_model_name=f"{PREFIX}-all")
    mlflow.sklearn.autolog(disable=True)
    return scrubber.name(run.info.run_id, "run of all")


def _folder() -> str:
    for name in ("one.txt", "deep/er/two.txt"):
        path = Path("folder", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return "folder"


def show_run(run_id: str) -> dict[str, Any]:
    run = client.get_run(run_id)
    outputs = run.outputs.model_outputs if run.outputs else []
    for number, model in enumerate(outputs):
        scrubber.name(model.model_id, f"model {number} of {run.info.run_name}")
    return {
        "status": run.info.status,
        "name": run.info.run_name,
        "stage": run.info.lifecycle_stage,
        "params": run.data.params,
        "metrics": run.data.metrics,
        "tags": {k: v for k, v in run.data.tags.items() if k not in NOT_COMPARED},
        "has": sorted(set(run.data.tags) & NOT_COMPARED),
        "datasets": [_dataset(dataset_input) for dataset_input in run.inputs.dataset_inputs],
        "models": sorted((_logged_model(model.model_id) for model in outputs), key=str),
        "files": files(run_id),
        "location": run.info.artifact_uri.partition(":")[0],
        "ended": run.info.end_time >= run.info.start_time,
    }


def _dataset(dataset_input: Any) -> dict[str, Any]:
    tags = {tag.key: tag.value for tag in dataset_input.tags}
    return {
        "name": dataset_input.dataset.name,
        "digest": dataset_input.dataset.digest,
        "tags": tags,
    } | {
        "kind": dataset_input.dataset.source_type,
        "schema": dataset_input.dataset.schema,
        "profile": dataset_input.dataset.profile,
    }


def _logged_model(model_id: str) -> dict[str, Any]:
    model = mlflow.get_logged_model(model_id)
    return {
        "name": model.name,
        "status": str(model.status),
        "type": model.model_type,
        "params": model.params,
        "metrics": sorted((m.key, m.value, m.dataset_name or "") for m in model.metrics or []),
        "tags": sorted(set(model.tags) - NOT_COMPARED),
        "run": model.source_run_id,
        "files": sorted(
            file.path for file in mlflow.artifacts.list_artifacts(f"models:/{model_id}")
        ),
    }


def files(run_id: str, folder: str | None = None) -> list[Any]:
    listing: list[Any] = []
    for entry in client.list_artifacts(run_id, folder):
        # files of a model contain its id and the time, so their sizes differ
        size = None if "MLmodel" in entry.path or "estimator" in entry.path else entry.file_size
        listing.append((entry.path, entry.is_dir, size))
        if entry.is_dir:
            listing += files(run_id, entry.path)
    return listing


def texts(run_id: str) -> list[Any]:
    root = f"runs:/{run_id}"
    fetched = Path(mlflow.artifacts.download_artifacts(f"{root}/whole"))
    return [
        mlflow.artifacts.load_text(f"{root}/notes/ä b.txt"),
        mlflow.artifacts.load_dict(f"{root}/d.json"),
        mlflow.artifacts.load_text(f"{root}/sub/f.txt"),
        sorted(str(path.relative_to(fetched)) for path in fetched.rglob("*.txt")),
    ]


def register(run_id: str) -> dict[str, Any]:
    name = f"{PREFIX}-reg"
    client.set_registered_model_alias(name, "champ", 1)
    version = client.get_model_version_by_alias(name, "champ")
    return {
        "version": str(version.version),
        "status": version.status,
        "stage": version.current_stage,
        "aliases": list(version.aliases),
        "run": version.run_id == run_id,
        "source": version.source,
        "location": client.get_model_version_download_uri(name, "1").partition(":")[0],
        "model": dict(client.get_registered_model(name).aliases),
    }


def predictions(run_id: str) -> dict[str, Any]:
    uris = [f"models:/{PREFIX}-reg@champ", f"models:/{PREFIX}-reg/1", f"runs:/{run_id}/m1"]
    return {uri: mlflow.pyfunc.load_model(uri).predict(X[::25]).tolist() for uri in uris}


def search() -> dict[str, Any]:
    frame = mlflow.search_runs(experiment_names=[f"{PREFIX}-exp"], order_by=["metrics.m DESC"])
    models = mlflow.search_logged_models(
        experiment_ids=[client.get_experiment_by_name(f"{PREFIX}-exp").experiment_id],
        output_format="list",
    )
    return {
        "columns": sorted(frame.columns),
        "rows": frame[["tags.mlflow.runName", "status", "params.x", "metrics.m"]].values.tolist(),
        "models": [(model.name, model.source_run_id) for model in models],
    }


if __name__ == "__main__":
    main()
