"""MLflow's API: registry."""

from retarget.server.mlflow.app import Table

TABLE: Table = []
