"""The composition root: builds the application and everything it depends on."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel
from sqlalchemy import Engine
from starlette.types import ASGIApp

from retarget import __version__
from retarget.blobs.files import Files
from retarget.blobs.scrub import Scrub
from retarget.control.context import Context, ControlSettings
from retarget.control.leases import LeaseKeeper
from retarget.control.links import TargetLinks, is_local, open_driver
from retarget.control.reconcile import Loop
from retarget.core.conda_policy import AUTO
from retarget.core.home import Home
from retarget.core.kept import DEFAULT_KEEP_LIMIT
from retarget.core.links import Links
from retarget.core.targets import Target
from retarget.runner.processes import boot
from retarget.server.auth import require_user
from retarget.server.connections import log_briefly_without_descriptors
from retarget.server.errors import PROBLEMS, add_handlers
from retarget.server.event_bus import EventBus
from retarget.server.fast_path import FastPath
from retarget.server.gate import Gate
from retarget.server.identity import describe_server
from retarget.server.mlflow import ROUTE_TABLES
from retarget.server.mlflow.app import MlflowDispatcher
from retarget.server.mlflow.artifacts import download_routes
from retarget.server.mlflow.artifacts import routes as artifact_routes
from retarget.server.proofs import RunnerProofs
from retarget.server.routes import (
    attempts,
    blobs,
    environments,
    events,
    executions,
    jobs,
    models,
    secrets,
    server,
    sizes,
    targets,
    tracking,
)
from retarget.server.state import State
from retarget.store.engine import migrate, open_engine, sqlite_url
from retarget.store.leases import Leases
from retarget.store.store import Store
from retarget.store.targets import Targets

if TYPE_CHECKING:
    from retarget.server.event_relay import EventRelay

_LOCAL_TARGET = "local"  # the target that every server has
_USER_ROUTES = (
    *(jobs, tracking, models, targets, sizes),
    *(environments, secrets, blobs, events, server),
)


@dataclass(frozen=True)
class Settings:
    home: Home
    server_id: str  # names its folder in the home
    url: str  # where clients and runners reach the server
    token: str
    secret: bytes
    database: str | None = None  # a URL; default: SQLite in the home
    poll_seconds: float = 1.0  # seconds between two checks of the targets
    conda: str = AUTO  # whether PyPI may replace conda channels
    keep_limit: int = DEFAULT_KEEP_LIMIT  # bytes that a job may keep outside of outputs/


class Health(BaseModel):
    status: Literal["ok"] = "ok"
    version: str = __version__


def show_health() -> Health:
    """Report that the server is up. Needs no token."""
    return Health()


def make_app(settings: Settings, *, bus: EventBus, stop: Callable[[], None]) -> ASGIApp:
    """Open the stores and return the application. `stop` ends the process that serves it.

    Closing the bus ends the responses that would go on for ever.
    """
    home = settings.home
    engine = open_engine(settings.database or sqlite_url(home.database), publish=bus.publish)
    migrate(engine)
    links = Links()
    context = _make_context(settings, engine, bus, links)
    _prepare_home(context, home)
    background = _Background(
        engine=engine,
        bus=bus,
        relay=_relay(engine, bus),
        leases=context.links.leases,
        links=links,
        loop=Loop(context, bus.work_available, interval_seconds=settings.poll_seconds),
        scrub=Scrub(context.files.blobs, context.files.snapshots),
    )
    app = FastAPI(
        title="Retarget",
        version=__version__,
        summary="Write the training script once. Run it on any compute target.",
        lifespan=_lifespan(background, stop),
        generate_unique_id_function=_operation_id,
        docs_url=None,
        redoc_url=None,
    )
    app.state.retarget = State(
        context=context, bus=bus, home=home, token=settings.token, url=settings.url, stop=stop
    )
    return _with_routes(app)


def _make_context(settings: Settings, engine: Engine, bus: EventBus, links: Links) -> Context:
    leases = _register(settings, engine, links)
    return Context(
        store=Store(engine, server=lambda: leases.server.incarnation),
        files=Files(settings.home),
        links=TargetLinks(leases, settings.secret, partial(open_driver, links, settings.secret)),
        bus=bus,
        clock=time.time,
        settings=ControlSettings(
            url=settings.url,
            secret=settings.secret,
            conda_policy=settings.conda,
            keep_limit=settings.keep_limit,
            managed_settings={_LOCAL_TARGET: frozenset({"root", "blobs"})},
        ),
    )


@dataclass(frozen=True)
class _Background:
    """What runs beside the requests."""

    engine: Engine
    bus: EventBus
    relay: "EventRelay | None"
    leases: LeaseKeeper
    links: Links
    loop: Loop
    scrub: Scrub

    def start(self, stop: Callable[[], None]) -> None:
        if self.relay is not None:
            self.relay.start()
        self.leases.start(on_change=self.bus.wake, on_replaced=stop)
        self.loop.start()
        self.scrub.start()

    def stop(self) -> None:
        self.loop.stop()
        self.scrub.stop()
        self.leases.stop()
        self.links.close()
        if self.relay is not None:
            self.relay.stop()
        self.engine.dispose()


def _lifespan(
    background: _Background, stop: Callable[[], None]
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        event_loop = asyncio.get_running_loop()
        background.bus.attach(event_loop)
        log_briefly_without_descriptors(event_loop)
        background.start(stop)
        yield
        background.bus.close()
        await asyncio.to_thread(background.stop)

    return lifespan


def _relay(engine: Engine, bus: EventBus) -> "EventRelay | None":
    """Return what exchanges events with other servers. On SQLite there are none."""
    if engine.dialect.name != "postgresql":
        return None
    # its package may not be installed, and importing it takes time that SQLite users need not spend
    from retarget.server.event_relay import EventRelay

    return EventRelay(engine, bus, bus.wake)


def _with_routes(app: FastAPI) -> ASGIApp:
    state: State = app.state.retarget
    add_handlers(app)
    mlflow = MlflowDispatcher(state, ROUTE_TABLES, app)
    mlflow.mount(artifact_routes(state))
    app.add_api_route("/health", show_health, methods=["GET"], tags=["server"])
    for module in _USER_ROUTES:
        app.include_router(module.router, dependencies=[Depends(require_user)], responses=PROBLEMS)
    app.include_router(attempts.router, responses=PROBLEMS)
    app.router.routes.extend([*download_routes(state), executions.route(state)])
    return RunnerProofs(state.context.settings.secret, Gate(state, FastPath(state, mlflow)))


def _operation_id(route: APIRoute) -> str:
    return route.name


def _register(settings: Settings, engine: Engine, links: Links) -> LeaseKeeper:
    """Announce this server on its database, and take the leases that are free."""
    expire, secret = engine.dialect.name == "postgresql", settings.secret
    # a connection of its own: renewals must not wait for requests
    own = open_engine(engine.url).execution_options(**engine.get_execution_options())
    keeper = LeaseKeeper(
        Leases(own if expire else engine, expire=expire),
        Targets(own if expire else engine),
        describe_server(settings.home, settings.server_id, url=settings.url, secret=secret),
        is_local=partial(is_local, links, secret),
    )
    keeper.register()
    return keeper


def _prepare_home(context: Context, home: Home) -> None:
    if context.links.leases.is_alone():  # a killed server left them: this one receives nothing yet
        context.files.blobs.remove_partial_files()
    if _has_rebooted(home):  # perhaps after a power cut, so nothing is complete unless checked
        context.files.snapshots.clear_marks()
    _ensure_local(context, home)


def _has_rebooted(home: Home) -> bool:
    """Return whether this host has booted since the last server of this home started."""
    before = home.boot.read_text(errors="replace") if home.boot.exists() else ""
    if before == boot():
        return False
    home.boot.write_text(boot())
    return True


def _ensure_local(context: Context, home: Home) -> None:
    """Register this machine as a target, with its folders in the current home.

    Nothing changes while another server looks after the target.
    """
    targets_by_name = {target.name: target for target in context.store.targets.list()}
    stored = targets_by_name.get(_LOCAL_TARGET)
    if stored is not None and _LOCAL_TARGET not in context.links.leases.held():
        return
    folders = {"root": str(home.target(_LOCAL_TARGET)), "blobs": [str(home.blobs)]}
    config, tags = (stored.config, stored.tags) if stored else ({}, {})
    context.store.targets.save(
        Target(name=_LOCAL_TARGET, kind="local", config=config | folders, tags=tags)
    )
    context.links.leases.renew()
