"""MLflow's API: search."""

from retarget.server.mlflow.app import Table

TABLE: Table = []
