"""MLflow's API: experiments."""

from retarget.server.mlflow.app import Table

TABLE: Table = []
