"""MLflow's API: logged models."""

from retarget.server.mlflow.app import Table

TABLE: Table = []
