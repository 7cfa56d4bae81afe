"""The testbeds as fixtures: one of each for a worker, started when it is first asked for."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbeds.hosts import Host, hosts_missing, machines
from tests.testbeds.namespaces import need


@pytest.fixture(scope="session")
def worker_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Host]]:
    need(hosts_missing())
    where: Path = tmp_path_factory.mktemp("lab")
    with machines(3, where=where) as hosts:
        yield hosts


@pytest.fixture
def lab(worker_lab: list[Host]) -> Iterator[list[Host]]:
    """Three hosts with SSH, which are as new after every test."""
    yield worker_lab
    for host in worker_lab:
        host.restore()
