"""MLflow's API: metrics."""

from retarget.server.mlflow.app import Table

TABLE: Table = []
