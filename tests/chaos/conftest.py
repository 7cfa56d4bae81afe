"""`--kills N` random rounds, from `--seed`; an arena that outlives a test that went well."""

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TypeVar, cast

import pytest

from tests.chaos.arena import Arena
from tests.chaos.places import InContainers, OnHosts
from tests.testbeds.engines import Engine, docker_engine, engines_missing
from tests.testbeds.hosts import Host
from tests.testbeds.namespaces import need

_KILLS = 10  # rounds of a plain `make test`
_failed = pytest.StashKey[bool]()
T = TypeVar("T", bound=Arena)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("chaos")
    group.addoption("--kills", type=int, default=_KILLS, help="random rounds of tests/chaos")
    group.addoption("--seed", type=int, default=1, help="the first round's seed in tests/chaos")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        first = int(metafunc.config.getoption("--seed", None) or 1)
        count = int(metafunc.config.getoption("--kills", None) or _KILLS)
        metafunc.parametrize("seed", range(first, first + count))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_failed] = True
    return report


class Arenas:
    """The arenas of this worker, one for each place, replaced after a failure."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        self._present: dict[str, Arena] = {}

    def get(self, place: str, make: Callable[[Path], T]) -> T:
        if place not in self._present:
            arena = self._present[place] = make(self._factory.mktemp("arena"))
            arena.start()
            arena.attach()
        found = self._present[place]
        return cast(T, found)

    def drop(self, *places: str) -> None:
        for place in places or list(self._present):
            if place in self._present:
                self._present.pop(place).close()

    def used(
        self, place: str, make: Callable[[Path], T], request: pytest.FixtureRequest
    ) -> Iterator[T]:
        """Lend one to a test, and keep it if that leaves it well."""
        arena = self.get(place, make)
        yield arena
        if request.node.stash.get(_failed, False) or not arena.is_up:
            self.drop(place)


@pytest.fixture(scope="session")
def arenas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arenas]:
    made = Arenas(tmp_path_factory)
    yield made
    made.drop()


@pytest.fixture
def arena(arenas: Arenas, request: pytest.FixtureRequest) -> Iterator[Arena]:
    """A home with a running server, shared by tests as long as they leave it well."""
    yield from arenas.used("local", Arena, request)


@pytest.fixture
def on_hosts(lab: list[Host], arenas: Arenas, request: pytest.FixtureRequest) -> Iterator[OnHosts]:
    """An arena whose jobs run on hosts with SSH."""
    yield from arenas.used("hosts", lambda root: OnHosts(root, lab), request)


@pytest.fixture
def on_docker(
    docker: Engine, arenas: Arenas, request: pytest.FixtureRequest
) -> Iterator[InContainers]:
    """An arena whose jobs run in Docker's containers."""
    yield from arenas.used("docker", lambda root: InContainers(root, docker), request)


@pytest.fixture
def on_podman(
    podman: Engine, arenas: Arenas, request: pytest.FixtureRequest
) -> Iterator[InContainers]:
    """An arena whose jobs run in Podman's containers."""
    yield from arenas.used("podman", lambda root: InContainers(root, podman), request)


@pytest.fixture(scope="session")
def worker_live_docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    need(engines_missing("docker"))
    with docker_engine(tmp_path_factory.mktemp("live"), live_restore=True) as engine:
        engine.load_image()
        yield engine


@pytest.fixture
def on_live_docker(
    worker_live_docker: Engine, arenas: Arenas, request: pytest.FixtureRequest
) -> Iterator[InContainers]:
    """An arena whose jobs run in containers of a dockerd that restores what lives."""
    engine = worker_live_docker
    yield from arenas.used("live docker", lambda root: InContainers(root, engine), request)
    engine.restore()


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Arena]:
    """A home of this test's own, with no server yet."""
    arena = Arena(tmp_path / "arena")
    yield arena
    arena.close()
