"""A world for the tests of the loop: see tests/control/world.py."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from retarget.core.targets import Target
from retarget.server.event_bus import EventBus
from retarget.store.engine import open_engine, sqlite_url
from tests.control.world import Clock, StubDriver, World, make_context
from tests.store.new_schema import create_schema


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = open_engine(sqlite_url(tmp_path / "retarget.db"))
    create_schema(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def world(engine: Engine, tmp_path: Path) -> World:
    clock, drivers, bus = Clock(), dict[str, StubDriver](), EventBus()

    def connect(target: Target) -> StubDriver:
        return drivers[target.name]

    context = make_context(engine, tmp_path, connect=connect, bus=bus, clock=clock)
    return World(context, clock, drivers, bus.work_available)
