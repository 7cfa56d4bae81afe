"""A receiver, and a workshop that reports to it, for every test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from retarget.testing import Receiver
from tests.runner.engines import Bed, own_podman
from tests.runner.workshop import Workshop
from tests.testbeds.engines import Engine


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    receiver.start()
    yield receiver
    receiver.stop()


@pytest.fixture
def workshop(tmp_path: Path, receiver: Receiver) -> Iterator[Workshop]:
    workshop = Workshop(tmp_path / "machine", receiver)
    yield workshop
    receiver.refuses.clear()
    receiver.start()
    workshop.end()


@pytest.fixture(scope="session")
def docker_bed(worker_docker: Engine) -> Bed:
    return Bed("docker", {"DOCKER_HOST": worker_docker.url})


@pytest.fixture(scope="session")
def podman_bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    yield from own_podman(tmp_path_factory.mktemp("podman"))


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.targets) for name in ("docker", "podman")]
)
def bed(
    request: pytest.FixtureRequest, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bed]:
    """An engine, each in turn, that the workshop's runners use; all containers must be gone."""
    bed: Bed = request.getfixturevalue(f"{request.param}_bed")
    for name, value in bed.variables.items():
        monkeypatch.setenv(name, value)
    workshop.node["engine"] = bed.name
    yield bed
    left = bed.containers()
    bed.clear()
    assert left == []
