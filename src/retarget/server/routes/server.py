"""/api/server: the server itself."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, BackgroundTasks, Query
from pydantic import BaseModel

from retarget import __version__
from retarget.control.snapshots import referenced_blobs
from retarget.server.auth import StateDep
from retarget.server.request_bodies import BoundedRoute
from retarget.server.views import LivingServer, ServerView, to_unicode

router = APIRouter(route_class=BoundedRoute, prefix="/api/server", tags=["server"])


class Stopping(BaseModel):
    status: Literal["stopping"] = "stopping"


class Pruned(BaseModel):
    blobs: int
    bytes: int


@router.get("")
def show_server(state: StateDep) -> ServerView:
    """Show the version and address of the server, the number of jobs per state, and the other
    servers of its database.
    """
    counts = state.context.store.jobs.counts()
    return ServerView(
        id=state.context.links.leases.server.id,
        version=__version__,
        pid=state.pid,
        url=state.url,
        home=to_unicode(str(state.home.root)),
        started_at=state.started_at,
        jobs={str(job_state): count for job_state, count in counts.items()},
        servers=[_living_server(row) for row in state.context.links.leases.servers()],
    )


def _living_server(row: dict[str, Any]) -> LivingServer:
    return LivingServer.model_validate(
        {name: row[name] for name in LivingServer.model_fields} | {"host": row["host_name"]}
    )


@router.post("/stop", status_code=202)
def stop_server(state: StateDep, background: BackgroundTasks) -> Stopping:
    """Stop the server. Running jobs continue; the next server takes them over."""
    background.add_task(state.stop)
    return Stopping()


@router.post("/prune")
def prune_blobs(
    state: StateDep, keep_seconds: Annotated[float, Query(ge=0, le=1e9)] = 3600.0
) -> Pruned:
    """Remove blobs that nothing refers to, except those requested in the last `keep_seconds`."""
    context = state.context
    before = context.clock() - keep_seconds
    count, volume = context.files.snapshots.prune(referenced_blobs(context), before=before)
    return Pruned(blobs=count, bytes=volume)
