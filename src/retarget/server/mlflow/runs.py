"""MLflow's API: runs."""

from retarget.server.mlflow.app import Table

TABLE: Table = []
