"""MLflow's REST API over our own store: what its clients send is kept with our jobs."""

from retarget.server.mlflow import artifacts, experiments, logged_models, metrics, registry, runs
from retarget.server.mlflow import search as searches
from retarget.server.mlflow.app import Table

# Searches stand first: "/mlflow/logged-models/search" would be a model's id otherwise.
TABLES: list[Table] = [
    searches.TABLE,
    experiments.TABLE,
    runs.TABLE,
    metrics.TABLE,
    artifacts.TABLE,
    logged_models.TABLE,
    registry.TABLE,
]
