"""Fixtures: a receiver, a harness whose runners report to it, and container engines."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from retarget.testing import Receiver
from tests.runner.engines import ContainerEngine, isolated_podman
from tests.runner.harness import RunnerHarness
from tests.testbeds.engines import Engine


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    receiver.start()
    yield receiver
    receiver.stop()


@pytest.fixture
def harness(tmp_path: Path, receiver: Receiver) -> Iterator[RunnerHarness]:
    harness = RunnerHarness(tmp_path / "machine", receiver)
    yield harness
    receiver.refused.clear()
    receiver.start()
    harness.end()


@pytest.fixture(scope="session")
def docker_engine(worker_docker: Engine) -> ContainerEngine:
    return ContainerEngine("docker", {"DOCKER_HOST": worker_docker.url})


@pytest.fixture(scope="session")
def podman_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerEngine]:
    yield from isolated_podman(tmp_path_factory.mktemp("podman"))


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.targets) for name in ("docker", "podman")]
)
def engine(
    request: pytest.FixtureRequest, harness: RunnerHarness, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ContainerEngine]:
    """Each engine in turn, used by the harness's runners. No container may remain."""
    engine: ContainerEngine = request.getfixturevalue(f"{request.param}_engine")
    for name, value in engine.variables.items():
        monkeypatch.setenv(name, value)
    harness.node["engine"] = engine.name
    yield engine
    remaining = engine.containers()
    engine.clear()
    assert remaining == []
