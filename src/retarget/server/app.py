"""The composition root: builds the application and everything it depends on."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel
from sqlalchemy import Engine
from starlette.types import ASGIApp

from retarget import __version__, drivers
from retarget.blobs.disk import sync_file_system
from retarget.blobs.folder import Blobs
from retarget.blobs.scrub import Scrub
from retarget.blobs.snapshots import Snapshots
from retarget.blobs.streams import Streams
from retarget.blobs.uploads import Uploads
from retarget.control.context import Context
from retarget.control.leases import LeaseKeeper
from retarget.control.reconcile import Loop
from retarget.control.secrets import unseal
from retarget.core.conda_policy import AUTO
from retarget.core.driver import Driver, MayBeLocal
from retarget.core.errors import Invalid, TargetUnreachable
from retarget.core.events import Change, Noun
from retarget.core.home import Home
from retarget.core.kept import DEFAULT_KEEP_LIMIT
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
from retarget.store.artifacts import Artifacts
from retarget.store.engine import migrate, open_engine, sqlite_url
from retarget.store.environments import Environments
from retarget.store.experiment_choices import ExperimentChoices
from retarget.store.experiments import Experiments
from retarget.store.jobs import Jobs
from retarget.store.kept import KeptFiles
from retarget.store.leases import Leases
from retarget.store.locks import Locks
from retarget.store.logged_models import LoggedModels
from retarget.store.metrics import Metrics
from retarget.store.models import Models
from retarget.store.node_reports import NodeReports
from retarget.store.outputs import Outputs
from retarget.store.overview import Overview
from retarget.store.runs import Runs
from retarget.store.search import Searches
from retarget.store.secrets import Secrets
from retarget.store.target_locks import TargetLocks
from retarget.store.targets import Targets
from retarget.store.track import TrackFiles

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
    leases = _register(settings, engine)
    work_available, blob_folder = threading.Event(), Blobs(home.blobs)
    context = Context(
        jobs=Jobs(engine),
        node_reports=NodeReports(engine),
        outputs=Outputs(engine),
        targets=Targets(engine),
        environments=Environments(engine),
        locks=Locks(engine),
        experiments=Experiments(engine),
        runs=Runs(engine),
        metrics=Metrics(engine),
        track=TrackFiles(engine),
        overview=Overview(engine),
        artifacts=Artifacts(engine),
        logged_models=LoggedModels(engine),
        models=Models(engine),
        searches=Searches(engine),
        secrets=Secrets(engine),
        kept_files=KeptFiles(engine),
        target_locks=TargetLocks(engine, server=lambda: leases.server.incarnation),
        experiment_choices=ExperimentChoices(engine),
        leases=leases,
        blobs=blob_folder,
        snapshots=Snapshots(home.snapshots, blob_folder),
        streams=Streams(home.logs),
        uploads=Uploads(home.uploads),
        connect=partial(_connect_here, settings.secret, leases),
        url=settings.url,
        secret=settings.secret,
        wake=work_available.set,
        notify=lambda job_id: bus.publish([Change(Noun.LOG, job_id, job=job_id)]),
        sync=partial(sync_file_system, home.root),
        conda_policy=settings.conda,
        keep_limit=settings.keep_limit,
        managed_settings={_LOCAL_TARGET: frozenset({"root", "blobs"})},
    )
    _prepare_home(context, home)
    scrub = Scrub(context.blobs, context.snapshots)
    loop = Loop(context, work_available, interval_seconds=settings.poll_seconds)
    relay = _relay(engine, bus, work_available.set)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        bus.attach(asyncio.get_running_loop())
        log_briefly_without_descriptors(asyncio.get_running_loop())
        if relay is not None:
            relay.start()
        leases.start(on_change=work_available.set, on_replaced=stop)
        loop.start()
        scrub.start()
        yield
        bus.close()
        await asyncio.to_thread(loop.stop)
        await asyncio.to_thread(scrub.stop)
        await asyncio.to_thread(leases.stop)
        if relay is not None:
            await asyncio.to_thread(relay.stop)
        engine.dispose()

    app = FastAPI(
        title="Retarget",
        version=__version__,
        summary="Write the training script once. Run it on any compute target.",
        lifespan=lifespan,
        generate_unique_id_function=_operation_id,
        docs_url=None,
        redoc_url=None,
    )
    app.state.retarget = State(
        context=context,
        bus=bus,
        home=home,
        token=settings.token,
        url=settings.url,
        stop=stop,
    )
    return _with_routes(app)


def _relay(engine: Engine, bus: EventBus, wake: Callable[[], None]) -> "EventRelay | None":
    """Return what exchanges events with other servers. On SQLite there are none."""
    if engine.dialect.name != "postgresql":
        return None
    # its package may not be installed, and importing it takes time that SQLite users need not spend
    from retarget.server.event_relay import EventRelay

    return EventRelay(engine, bus, wake)


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
    return RunnerProofs(state.context.secret, Gate(state, FastPath(state, mlflow)))


def _operation_id(route: APIRoute) -> str:
    return route.name


def _register(settings: Settings, engine: Engine) -> LeaseKeeper:
    """Announce this server on its database, and take the leases that are free."""
    expire, secret = engine.dialect.name == "postgresql", settings.secret
    # a connection of its own: renewals must not wait for requests
    own = open_engine(engine.url).execution_options(**engine.get_execution_options())
    keeper = LeaseKeeper(
        Leases(own if expire else engine, expire=expire),
        Targets(own if expire else engine),
        describe_server(settings.home, settings.server_id, url=settings.url, secret=secret),
        is_local=partial(_is_local, secret),
    )
    keeper.register()
    return keeper


def _is_local(secret: bytes, target: Target) -> bool:
    """Whether a target belongs to the machine that this server runs on."""
    try:
        if not issubclass(drivers.load(target.kind), MayBeLocal):
            return False  # connecting may take long
        driver = _connect(secret, target)
    except (Invalid, TargetUnreachable):
        return False
    return isinstance(driver, MayBeLocal) and driver.is_local()


def _connect_here(secret: bytes, leases: LeaseKeeper, target: Target) -> Driver:
    url = leases.elsewhere(target.name)
    if url is None:
        return _connect(secret, target)
    raise TargetUnreachable(
        f"target {target.name!r} belongs to another machine, "
        + (f"whose server is at {url}" if url else "where no server runs now")
    )


def _connect(secret: bytes, target: Target) -> Driver:
    try:
        config = unseal(target.config, secret=secret, target=target.name)
        return drivers.connect(target.kind, config)
    except Invalid as error:  # valid when stored: a package was removed, or the kind changed
        raise TargetUnreachable(f"target {target.name!r} cannot be used: {error}") from None


def _prepare_home(context: Context, home: Home) -> None:
    if context.leases.is_alone():
        context.blobs.remove_partial_files()  # of a killed server: this one receives nothing yet
    if _has_rebooted(home):  # perhaps after a power cut, so nothing is complete unless checked
        context.snapshots.clear_marks()
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
    targets_by_name = {target.name: target for target in context.targets.list()}
    stored = targets_by_name.get(_LOCAL_TARGET)
    if stored is not None and _LOCAL_TARGET not in context.leases.held():
        return
    folders = {"root": str(home.target(_LOCAL_TARGET)), "blobs": [str(home.blobs)]}
    config, tags = (stored.config, stored.tags) if stored else ({}, {})
    context.targets.save(
        Target(name=_LOCAL_TARGET, kind="local", config=config | folders, tags=tags)
    )
    context.leases.renew()
