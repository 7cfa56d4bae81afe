"""Containers: they, their engine, the agents in them and the server, broken at every stage."""

import os
from collections.abc import Callable

import pytest

from tests.chaos.arena import Submitted, eventually
from tests.chaos.places import InContainers
from tests.chaos.processes import kill_together
from tests.chaos.truth import LOST, check

pytestmark = pytest.mark.chaos
Break = Callable[[InContainers, Submitted], None]


def _container(arena: InContainers, job: Submitted) -> None:
    arena.kills += arena.stop_runners(job)
    arena.engine.cli("kill", *arena.containers(job))


def _daemon(arena: InContainers, job: Submitted) -> None:
    arena.engine.kill()
    arena.engine.start()


def _server(arena: InContainers, job: Submitted) -> None:
    arena.kill_server()
    arena.start()


def _agent(arena: InContainers, job: Submitted) -> None:
    eventually(arena.agents, "an agent is there")
    assert kill_together(arena.agents())


def _server_and_container(arena: InContainers, job: Submitted) -> None:
    arena.kill_server()
    _container(arena, job)
    arena.start()


BREAKS: dict[str, Break] = {
    "container": _container,
    "agent": _agent,
    "server": _server,
    "server and container": _server_and_container,
}
FATAL = ("container", "server and container")  # to a script that runs


def breaks(*names: str) -> pytest.MarkDecorator:
    """Break each of these. All others come up in the random rounds."""
    return pytest.mark.parametrize("broken", names or BREAKS)


@breaks("container", "server")
def test_preparing(on_docker: InContainers, broken: str) -> None:
    """Its code is on the way."""
    job = on_docker.submit("quick", bulk=os.urandom(32 << 20))
    blobs = on_docker.records.parent / "blobs"
    eventually(lambda: list(blobs.glob("*.part")), "a blob is on the way")
    BREAKS[broken](on_docker, job)
    _ends(on_docker, job, "succeeded")
    on_docker.settle()


@breaks()
@pytest.mark.parametrize("place", ["on_docker", "on_podman"])
def test_running(place: str, broken: str, request: pytest.FixtureRequest) -> None:
    arena = request.getfixturevalue(place)
    job = arena.submit("hold")
    arena.wait_for(job, "running")
    BREAKS[broken](arena, job)
    if broken in FATAL:
        _ends(arena, job, "failed", LOST, None)
    else:
        _goes_on(arena, job)
    arena.settle()


@breaks("container", "server and container")
def test_finalizing(on_docker: InContainers, broken: str) -> None:
    """The script has ended, and its runner cannot deliver what it left."""
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
    """It was ordered to stop, and may have heard of it."""
    job = on_docker.submit("deaf", grace=3)
    on_docker.wait_for(job, "running")
    eventually(lambda: on_docker.starts(job) == 1, "it hears no signal")
    assert on_docker.cancel(job)
    BREAKS[broken](on_docker, job)
    _ends(on_docker, job, "canceled", code=None)
    on_docker.settle()


@pytest.mark.parametrize("place", ["on_live_docker", "on_podman"])
def test_a_script_outlives_its_engine(place: str, request: pytest.FixtureRequest) -> None:
    arena = request.getfixturevalue(place)
    job = arena.submit("hold")
    arena.wait_for(job, "running")
    _daemon(arena, job)
    _goes_on(arena, job)
    arena.settle()


@pytest.mark.parametrize("place", ["on_live_docker", "on_podman"])
def test_a_script_that_ends_without_its_engine(place: str, request: pytest.FixtureRequest) -> None:
    arena = request.getfixturevalue(place)
    job = arena.submit("late")
    arena.wait_for(job, "running")
    arena.engine.kill()
    arena.open_gate(job)
    eventually(lambda: arena.has_event(job, "exited"), "the script has ended")
    arena.engine.start()
    _ends(arena, job, "succeeded")
    arena.settle()


def test_an_engine_that_takes_its_containers_along(on_docker: InContainers) -> None:
    job = on_docker.submit("hold", retries=1)
    on_docker.wait_for(job, "running")
    on_docker.kills += on_docker.stop_runners(job)
    _daemon(on_docker, job)
    eventually(lambda: on_docker.starts(job) == 2, "it is tried again")
    on_docker.open_gate(job)
    _ends(on_docker, job, "succeeded")
    on_docker.settle()


def _goes_on(arena: InContainers, job: Submitted) -> None:
    before = len(arena.log(job, 1))
    eventually(lambda: len(arena.log(job, 1)) > before, "its log goes on")
    arena.open_gate(job)
    _ends(arena, job, "succeeded")


def _ends(
    arena: InContainers, job: Submitted, state: str, reason: str = "", code: int | None = 0
) -> None:
    view = arena.wait(job)
    check(arena, job)
    assert (view["state"], view["exit_code"]) == (state, code), view["reason"]
    assert reason in view["reason"]
