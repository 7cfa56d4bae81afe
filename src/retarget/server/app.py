"""The composition root: everything is made here, once, and handed on."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.types import ASGIApp

from retarget import __version__, drivers
from retarget.blobs.folder import Blobs
from retarget.blobs.snapshots import Snapshots
from retarget.blobs.streams import Streams
from retarget.blobs.uploads import Uploads
from retarget.control.parts import Parts
from retarget.control.reconcile import Loop
from retarget.control.secrets import unseal
from retarget.core.driver import Driver
from retarget.core.errors import Invalid, TargetUnreachable
from retarget.core.home import Home
from retarget.core.targets import Target
from retarget.server.auth import owner
from retarget.server.errors import PROBLEMS, add_handlers
from retarget.server.front import Front
from retarget.server.mlflow import TABLES
from retarget.server.mlflow.app import MlflowFirst
from retarget.server.mlflow.artifacts import loose_routes
from retarget.server.mlflow.artifacts import routes as artifact_routes
from retarget.server.routes import (
    attempts,
    blobs,
    environments,
    jobs,
    models,
    server,
    targets,
    tracking,
)
from retarget.server.signals import Signals
from retarget.server.state import State
from retarget.store.artifacts import Artifacts
from retarget.store.engine import migrate, open_engine
from retarget.store.environments import Environments
from retarget.store.experiments import Experiments
from retarget.store.jobs import Jobs
from retarget.store.logged_models import LoggedModels
from retarget.store.members import Members
from retarget.store.metrics import Metrics
from retarget.store.models import Models
from retarget.store.outputs import Outputs
from retarget.store.overview import Overview
from retarget.store.runs import Runs
from retarget.store.search import Searches
from retarget.store.targets import Targets
from retarget.store.track import TrackFiles

_LOCAL = "local"  # the target that is always there


@dataclass(frozen=True)
class Settings:
    home: Home
    url: str  # where clients and runners find the server
    token: str
    secret: bytes
    database: str | None = None  # a URL; default: SQLite in the home
    every: float = 1.0  # seconds between two looks at the targets


class Health(BaseModel):
    status: Literal["ok"] = "ok"
    version: str = __version__


def show_health() -> Health:
    """Tell that the server is there. Needs no token."""
    return Health()


def make_app(settings: Settings, *, stop: Callable[[], None]) -> ASGIApp:
    """Open everything and return the application. `stop` ends the process that serves it."""
    home, signals = settings.home, Signals()
    engine = open_engine(settings.database or f"sqlite:///{home.database}")
    migrate(engine)
    woken, held = threading.Event(), Blobs(home.blobs)
    parts = Parts(
        jobs=Jobs(engine),
        members=Members(engine),
        outputs=Outputs(engine),
        targets=Targets(engine),
        environments=Environments(engine),
        experiments=Experiments(engine),
        runs=Runs(engine),
        metrics=Metrics(engine),
        track=TrackFiles(engine),
        overview=Overview(engine),
        artifacts=Artifacts(engine),
        logged_models=LoggedModels(engine),
        models=Models(engine),
        searches=Searches(engine),
        blobs=held,
        snapshots=Snapshots(home.snapshots, held),
        streams=Streams(home.logs),
        uploads=Uploads(home.uploads),
        connect=partial(_connect, settings.secret),
        url=settings.url,
        secret=settings.secret,
        wake=woken.set,
        notify=signals.notify,
        own={_LOCAL: frozenset({"root", "blobs"})},
    )
    parts.blobs.remove_parts()  # a home has one server, and it takes nothing in yet
    _ensure_local(parts, home)
    loop = Loop(parts, woken, every=settings.every)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        signals.attach(asyncio.get_running_loop())
        loop.start()
        yield
        signals.close()
        await asyncio.to_thread(loop.stop)
        engine.dispose()

    app = FastAPI(
        title="Retarget",
        version=__version__,
        summary="Write the training script once. Run it on any compute target.",
        lifespan=lifespan,
        generate_unique_id_function=_operation,
        docs_url=None,
        redoc_url=None,
    )
    app.state.retarget = State(
        parts=parts, signals=signals, home=home, token=settings.token, url=settings.url, stop=stop
    )
    add_handlers(app)
    mlflow = MlflowFirst(app.state.retarget, TABLES, app)
    mlflow.mount(artifact_routes(app.state.retarget))
    app.add_api_route("/health", show_health, methods=["GET"], tags=["server"])
    for part in (jobs, tracking, models, targets, environments, blobs, server):
        app.include_router(part.router, dependencies=[Depends(owner)], responses=PROBLEMS)
    app.include_router(attempts.router, responses=PROBLEMS)
    app.router.routes.extend(loose_routes(app.state.retarget))
    return Front(app.state.retarget, mlflow)


def _operation(route: APIRoute) -> str:
    return route.name


def _connect(secret: bytes, target: Target) -> Driver:
    try:
        config = unseal(target.config, secret=secret, target=target.name)
        return drivers.connect(target.kind, config)
    except Invalid as error:  # right when it was stored: a package is gone, or the kind is another
        raise TargetUnreachable(f"target {target.name!r} cannot be used: {error}") from None


def _ensure_local(parts: Parts, home: Home) -> None:
    """Make sure that this machine is a target, with its folders where the home is now."""
    there = {target.name: target for target in parts.targets.list()}
    known = there.get(_LOCAL) or Target(name=_LOCAL, kind="local")
    here = {"root": str(home.target(_LOCAL)), "blobs": [str(home.blobs)]}
    parts.targets.save(
        Target(name=_LOCAL, kind="local", config=known.config | here, tags=known.tags)
    )
