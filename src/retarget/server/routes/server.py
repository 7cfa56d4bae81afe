"""/api/server: the server itself."""

from typing import Annotated, Literal

from fastapi import APIRouter, BackgroundTasks, Query
from pydantic import BaseModel

from retarget import __version__
from retarget.control import orders
from retarget.server.auth import StateDep
from retarget.server.bodies import BoundedRoute
from retarget.server.views import ServerView

router = APIRouter(route_class=BoundedRoute, prefix="/api/server", tags=["server"])


class Stopping(BaseModel):
    status: Literal["stopping"] = "stopping"


class Collected(BaseModel):
    blobs: int
    bytes: int


@router.get("")
def show_server(state: StateDep) -> ServerView:
    counts = state.parts.jobs.counts()
    return ServerView(
        version=__version__,
        pid=state.pid,
        url=state.url,
        home=str(state.home.root),
        started=state.started,
        jobs={str(job_state): number for job_state, number in counts.items()},
    )


@router.post("/stop", status_code=202)
def stop_server(state: StateDep, later: BackgroundTasks) -> Stopping:
    """Stop the server. Jobs go on, and the next server takes them up."""
    later.add_task(state.stop)
    return Stopping()


@router.post("/collect")
def collect_blobs(
    state: StateDep, keep: Annotated[float, Query(ge=0, le=1e9)] = 3600.0
) -> Collected:
    """Remove blobs that nothing refers to, sparing those asked for in the last `keep` seconds."""
    parts = state.parts
    before = parts.now() - keep
    count, volume = parts.snapshots.collect(orders.wanted_blobs(parts), before=before)
    return Collected(blobs=count, bytes=volume)
