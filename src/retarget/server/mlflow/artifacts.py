"""MLflow's API: artifacts, through the server."""

from starlette.routing import BaseRoute

from retarget.server.mlflow.app import Table
from retarget.server.state import State

TABLE: Table = []


def routes(state: State) -> list[BaseRoute]:
    """Return the routes that carry bytes."""
    return []
