"""`--kills N` random rounds from `--seed`; a server is shared until a test fails on it."""

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TypeVar, cast

import pytest

from tests.chaos.chaos_server import ChaosServer
from tests.chaos.remote_targets import InContainers, OnHosts
from tests.store.conftest import cluster as cluster  # a fixture
from tests.testbeds.engines import Engine, docker_engine, missing_for_engines
from tests.testbeds.hosts import SshHost
from tests.testbeds.namespaces import require

_KILLS = 10  # rounds of a plain `make test`
_failed = pytest.StashKey[bool]()
T = TypeVar("T", bound=ChaosServer)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("chaos")
    group.addoption("--kills", type=int, default=_KILLS, help="random rounds of tests/chaos")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        first = int(metafunc.config.option.seed)
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


class ChaosServers:
    """The servers of this worker, one per kind of target, replaced after a failure."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        self._present: dict[str, ChaosServer] = {}

    def get(self, target: str, make: Callable[[Path], T]) -> T:
        if target not in self._present:
            chaos_server = self._present[target] = make(self._factory.mktemp("chaos_server"))
            chaos_server.start()
            chaos_server.attach()
        return cast(T, self._present[target])

    def drop(self, *targets: str) -> None:
        for target in targets or list(self._present):
            if target in self._present:
                self._present.pop(target).close()

    def used(
        self, target: str, make: Callable[[Path], T], request: pytest.FixtureRequest
    ) -> Iterator[T]:
        """Yield a server for a test; drop it if the test failed or the server has stopped."""
        chaos_server = self.get(target, make)
        yield chaos_server
        if request.node.stash.get(_failed, False) or not chaos_server.is_up:
            self.drop(target)


@pytest.fixture(scope="session")
def chaos_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChaosServers]:
    servers = ChaosServers(tmp_path_factory)
    yield servers
    servers.drop()


@pytest.fixture
def chaos_server(
    chaos_servers: ChaosServers, request: pytest.FixtureRequest
) -> Iterator[ChaosServer]:
    """A home with a running server, which tests share until one fails."""
    yield from chaos_servers.used("local", ChaosServer, request)


@pytest.fixture
def on_hosts(
    ssh_hosts: list[SshHost], chaos_servers: ChaosServers, request: pytest.FixtureRequest
) -> Iterator[OnHosts]:
    """A server whose jobs run on SSH hosts."""
    yield from chaos_servers.used("hosts", lambda root: OnHosts(root, ssh_hosts), request)


@pytest.fixture
def on_docker(
    docker: Engine, chaos_servers: ChaosServers, request: pytest.FixtureRequest
) -> Iterator[InContainers]:
    """A server whose jobs run in Docker's containers."""
    yield from chaos_servers.used("docker", lambda root: InContainers(root, docker), request)


@pytest.fixture
def on_podman(
    podman: Engine, chaos_servers: ChaosServers, request: pytest.FixtureRequest
) -> Iterator[InContainers]:
    """A server whose jobs run in Podman's containers."""
    yield from chaos_servers.used("podman", lambda root: InContainers(root, podman), request)


@pytest.fixture(scope="session")
def worker_live_docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    require(missing_for_engines("docker"))
    with docker_engine(tmp_path_factory.mktemp("live"), live_restore=True) as engine:
        engine.load_image()
        yield engine


@pytest.fixture
def on_live_docker(
    worker_live_docker: Engine, chaos_servers: ChaosServers, request: pytest.FixtureRequest
) -> Iterator[InContainers]:
    """A server whose jobs run in containers of a dockerd with live-restore."""
    engine = worker_live_docker
    yield from chaos_servers.used("live docker", lambda root: InContainers(root, engine), request)
    engine.restore()


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[ChaosServer]:
    """A new home for one test, with no server yet."""
    chaos_server = ChaosServer(tmp_path / "chaos_server")
    yield chaos_server
    chaos_server.close()
