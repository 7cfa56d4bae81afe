"""The testbeds as fixtures: one of each for a worker, started when it is first asked for."""

from collections.abc import Iterator

import pytest

from tests.testbeds.engines import Engine, docker_engine, engines_missing, podman_engine
from tests.testbeds.hosts import Host, hosts_missing, machines
from tests.testbeds.namespaces import need


@pytest.fixture(scope="session")
def worker_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Host]]:
    need(hosts_missing())
    with machines(3, where=tmp_path_factory.mktemp("lab")) as hosts:
        yield hosts


@pytest.fixture
def lab(worker_lab: list[Host]) -> Iterator[list[Host]]:
    """Three hosts with SSH, which are as new after every test."""
    yield worker_lab
    for host in worker_lab:
        host.restore()


@pytest.fixture
def host(worker_lab: list[Host]) -> Iterator[Host]:
    """The first of them, for tests that need one and leave the others alone."""
    yield worker_lab[0]
    worker_lab[0].restore()


@pytest.fixture(scope="session")
def worker_docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    need(engines_missing("docker"))
    with docker_engine(tmp_path_factory.mktemp("docker")) as engine:
        engine.load_image()
        yield engine


@pytest.fixture
def docker(worker_docker: Engine) -> Iterator[Engine]:
    """A dockerd that has our image, and after every test no containers."""
    yield worker_docker
    worker_docker.restore()


@pytest.fixture(scope="session")
def worker_podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    need(engines_missing("podman"))
    with podman_engine(tmp_path_factory.mktemp("podman")) as engine:
        engine.load_image()
        yield engine


@pytest.fixture
def podman(worker_podman: Engine) -> Iterator[Engine]:
    """A Podman that has our image, and after every test no containers."""
    yield worker_podman
    worker_podman.restore()
