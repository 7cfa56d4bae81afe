"""MLflow's REST API on top of the store of jobs."""

from retarget.server.mlflow import artifacts, experiments, logged_models, metrics, registry, runs
from retarget.server.mlflow import search as searches
from retarget.server.mlflow.app import RouteTable

# Searches come first: else "search" in "/mlflow/logged-models/search" would be a model id.
ROUTE_TABLES: list[RouteTable] = [
    searches.ROUTES,
    experiments.ROUTES,
    runs.ROUTES,
    metrics.ROUTES,
    artifacts.ROUTES,
    logged_models.ROUTES,
    registry.ROUTES,
]
