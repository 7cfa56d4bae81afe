"""Kills containers, their engine, the agents in them and the server, at every stage of a job."""

import os
from collections.abc import Callable

import pytest

from tests.chaos.chaos_server import Submitted, eventually
from tests.chaos.invariants import LOST, check
from tests.chaos.processes import kill_together
from tests.chaos.remote_targets import InContainers

pytestmark = pytest.mark.chaos
Break = Callable[[InContainers, Submitted], None]


def _container(chaos_server: InContainers, job: Submitted) -> None:
    chaos_server.kills += chaos_server.stop_runners(job)
    chaos_server.engine.cli("kill", *chaos_server.containers(job))


def _daemon(chaos_server: InContainers, job: Submitted) -> None:
    chaos_server.engine.kill()
    chaos_server.engine.start()


def _server(chaos_server: InContainers, job: Submitted) -> None:
    chaos_server.kill_server()
    chaos_server.start()


def _agent(chaos_server: InContainers, job: Submitted) -> None:
    eventually(chaos_server.agents, "an agent runs")
    assert kill_together(chaos_server.agents())


def _server_and_container(chaos_server: InContainers, job: Submitted) -> None:
    chaos_server.kill_server()
    _container(chaos_server, job)
    chaos_server.start()


BREAKS: dict[str, Break] = {
    "container": _container,
    "agent": _agent,
    "server": _server,
    "server and container": _server_and_container,
}
FATAL = ("container", "server and container")  # they end a running script


def breaks(*names: str) -> pytest.MarkDecorator:
    """Break each of these parts. The random rounds cover all others."""
    return pytest.mark.parametrize("broken", names or BREAKS)


@breaks("container", "server")
def test_preparing(on_docker: InContainers, broken: str) -> None:
    """While its code is downloaded."""
    job = on_docker.submit("quick", bulk=os.urandom(32 << 20))
    blobs = on_docker.records.parent / "blobs"
    eventually(lambda: list(blobs.glob("*.part")), "a blob is being downloaded")
    BREAKS[broken](on_docker, job)
    _ends(on_docker, job, "succeeded")
    on_docker.settle()


@breaks()
@pytest.mark.parametrize("fixture", ["on_docker", "on_podman"])
def test_running(fixture: str, broken: str, request: pytest.FixtureRequest) -> None:
    chaos_server = request.getfixturevalue(fixture)
    job = chaos_server.submit("hold")
    chaos_server.wait_for(job, "running")
    BREAKS[broken](chaos_server, job)
    if broken in FATAL:
        _ends(chaos_server, job, "failed", LOST, None)
    else:
        _continues(chaos_server, job)
    chaos_server.settle()


@breaks("container", "server and container")
def test_finalizing(on_docker: InContainers, broken: str) -> None:
    """After the script has ended, while its runner cannot send the results."""
    job = on_docker.submit("late")
    on_docker.wait_for(job, "running")
    on_docker.pause_server()
    on_docker.open_gate(job)
    eventually(lambda: on_docker.has_event(job, "exited"), "the script has ended")
    BREAKS[broken](on_docker, job)
    on_docker.continue_server()
    _ends(on_docker, job, "succeeded")
    on_docker.settle()


@breaks("container", "agent", "server")
def test_canceling(on_docker: InContainers, broken: str) -> None:
    """After a stop was requested, which may have arrived."""
    job = on_docker.submit("deaf", grace_seconds=3)
    on_docker.wait_for(job, "running")
    eventually(lambda: on_docker.starts(job) == 1, "it ignores signals")
    assert on_docker.cancel(job)
    BREAKS[broken](on_docker, job)
    _ends(on_docker, job, "canceled", code=None)
    on_docker.settle()


@pytest.mark.parametrize("fixture", ["on_live_docker", "on_podman"])
def test_a_script_outlives_its_engine(fixture: str, request: pytest.FixtureRequest) -> None:
    chaos_server = request.getfixturevalue(fixture)
    job = chaos_server.submit("hold")
    chaos_server.wait_for(job, "running")
    _daemon(chaos_server, job)
    _continues(chaos_server, job)
    chaos_server.settle()


@pytest.mark.parametrize("fixture", ["on_live_docker", "on_podman"])
def test_a_script_that_ends_without_its_engine(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    chaos_server = request.getfixturevalue(fixture)
    job = chaos_server.submit("late")
    chaos_server.wait_for(job, "running")
    chaos_server.engine.kill()
    chaos_server.open_gate(job)
    eventually(lambda: chaos_server.has_event(job, "exited"), "the script has ended")
    chaos_server.engine.start()
    _ends(chaos_server, job, "succeeded")
    chaos_server.settle()


def test_an_engine_that_ends_with_its_containers(on_docker: InContainers) -> None:
    job = on_docker.submit("hold", retries=1)
    on_docker.wait_for(job, "running")
    on_docker.kills += on_docker.stop_runners(job)
    _daemon(on_docker, job)
    eventually(lambda: on_docker.starts(job) == 2, "it is retried")
    on_docker.open_gate(job)
    _ends(on_docker, job, "succeeded")
    on_docker.settle()


def _continues(chaos_server: InContainers, job: Submitted) -> None:
    before = len(chaos_server.log(job, 1))
    eventually(lambda: len(chaos_server.log(job, 1)) > before, "its log grows")
    chaos_server.open_gate(job)
    _ends(chaos_server, job, "succeeded")


def _ends(
    chaos_server: InContainers, job: Submitted, state: str, reason: str = "", code: int | None = 0
) -> None:
    view = chaos_server.wait(job)
    check(chaos_server, job)
    assert (view["state"], view["exit_code"]) == (state, code), view["reason"]
    assert reason in view["reason"]
