"""`mlflow run --env-manager local`, from Python, with MLflow already imported."""

import os

import mlflow
from respond import respond


def submit(script, out):
    submitted = mlflow.projects.run(
        os.path.dirname(script),
        parameters={"out": out},
        backend="local",
        env_manager="local",
        synchronous=False,
    )
    return submitted.wait


mlflow.set_tracking_uri(f"sqlite:///{os.getcwd()}/mlflow.db")
respond(submit)
