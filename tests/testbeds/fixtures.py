"""Fixtures for SSH hosts and container engines. Each pytest worker starts its own on demand."""

from collections.abc import Iterator

import pytest

from tests.testbeds.engines import Engine, docker_engine, missing_for_engines, podman_engine
from tests.testbeds.hosts import SshHost, missing_for_ssh_hosts, start_ssh_hosts
from tests.testbeds.namespaces import require


@pytest.fixture(scope="session")
def worker_ssh_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[SshHost]]:
    require(missing_for_ssh_hosts())
    with start_ssh_hosts(3, folder=tmp_path_factory.mktemp("ssh_hosts")) as hosts:
        yield hosts


@pytest.fixture
def ssh_hosts(worker_ssh_hosts: list[SshHost]) -> Iterator[list[SshHost]]:
    """Three SSH hosts, which are reset after every test."""
    yield worker_ssh_hosts
    for host in worker_ssh_hosts:
        host.restore()


@pytest.fixture
def ssh_host(worker_ssh_hosts: list[SshHost]) -> Iterator[SshHost]:
    """The first of the SSH hosts, for tests that need only one."""
    yield worker_ssh_hosts[0]
    worker_ssh_hosts[0].restore()


@pytest.fixture(scope="session")
def worker_docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    require(missing_for_engines("docker"))
    with docker_engine(tmp_path_factory.mktemp("docker")) as engine:
        engine.load_image()
        yield engine


@pytest.fixture
def docker(worker_docker: Engine) -> Iterator[Engine]:
    """A dockerd with the test image. Containers are removed after every test."""
    yield worker_docker
    worker_docker.restore()


@pytest.fixture(scope="session")
def worker_podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    require(missing_for_engines("podman"))
    with podman_engine(tmp_path_factory.mktemp("podman")) as engine:
        engine.load_image()
        yield engine


@pytest.fixture
def podman(worker_podman: Engine) -> Iterator[Engine]:
    """A Podman with the test image. Containers are removed after every test."""
    yield worker_podman
    worker_podman.restore()
