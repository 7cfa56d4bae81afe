"""Hosts with SSH: the way to them, their agents and all that is on them, broken at every stage."""

import os
import signal
import time
from collections.abc import Callable

import pytest

from tests.chaos.arena import Submitted, eventually
from tests.chaos.places import OnHosts
from tests.chaos.processes import kill_together
from tests.chaos.truth import LOST, check

pytestmark = pytest.mark.chaos
Break = Callable[[OnHosts, Submitted], None]
_AWAY = 2.0  # seconds


def _link(arena: OnHosts, job: Submitted) -> None:
    arena.host.link_down()
    time.sleep(_AWAY)
    arena.host.link_up()


def _sshd(arena: OnHosts, job: Submitted) -> None:
    arena.host.kill_sshd()
    arena.host.start_sshd()


def _everything(arena: OnHosts, job: Submitted) -> None:
    arena.kill_everything(arena.host, job)


def _reboot(arena: OnHosts, job: Submitted) -> None:
    arena.kill_everything(arena.host, job, reboot=True)


def _agent(arena: OnHosts, job: Submitted) -> None:
    kill_together(arena.agents())


def _server(arena: OnHosts, job: Submitted) -> None:
    arena.kill_server()
    arena.start()


def _server_without_link(arena: OnHosts, job: Submitted) -> None:
    arena.host.link_down()
    arena.kill_server()
    arena.start()
    arena.host.link_up()


def _server_and_agent(arena: OnHosts, job: Submitted) -> None:
    arena.kill_server()
    kill_together(arena.agents())
    arena.start()


def _server_and_host(arena: OnHosts, job: Submitted) -> None:
    arena.kill_server()
    _reboot(arena, job)
    arena.start()


BREAKS: dict[str, Break] = {
    "link": _link,
    "sshd": _sshd,
    "everything": _everything,
    "reboot": _reboot,
    "agent": _agent,
    "server": _server,
    "server while the link is down": _server_without_link,
    "server and agent": _server_and_agent,
    "server and host": _server_and_host,
}
FATAL = ("everything", "reboot", "server and host")  # to a script that runs


def breaks(*names: str) -> pytest.MarkDecorator:
    """Break each of these. All others come up in the random rounds."""
    return pytest.mark.parametrize("broken", names or BREAKS)


@breaks("link", "sshd", "reboot", "agent", "server")
def test_launching(on_hosts: OnHosts, broken: str) -> None:
    """The host has been told of it, and has not answered."""
    stopped = eventually(on_hosts.agents, "an agent is there")
    for agent in stopped:
        os.kill(agent.pid, signal.SIGSTOP)
    job = on_hosts.submit("quick")
    on_hosts.wait_for(job, "launching")
    BREAKS[broken](on_hosts, job)
    for agent in on_hosts.alive(stopped):
        os.kill(agent.pid, signal.SIGCONT)
    _ends(on_hosts, job, "succeeded")
    on_hosts.settle()


@breaks("link", "everything", "reboot", "server")
def test_preparing(on_hosts: OnHosts, broken: str) -> None:
    """Its code is on the way."""
    job = on_hosts.submit("quick", bulk=os.urandom(32 << 20))
    blobs = on_hosts.host.home / ".retarget-host/blobs"
    eventually(lambda: list(blobs.glob("*.part")), "a blob is on the way")
    on_hosts.pause_server()  # so that it stays there
    BREAKS[broken](on_hosts, job)
    on_hosts.continue_server()
    _ends(on_hosts, job, "succeeded")
    on_hosts.settle()


@breaks()
def test_running(on_hosts: OnHosts, broken: str) -> None:
    job = on_hosts.submit("hold")
    on_hosts.wait_for(job, "running")
    BREAKS[broken](on_hosts, job)
    if broken in FATAL:
        _ends(on_hosts, job, "failed", LOST, None)
    else:
        before = len(on_hosts.log(job, 1))
        eventually(lambda: len(on_hosts.log(job, 1)) > before, "its log goes on")
        on_hosts.open_gate(job)
        _ends(on_hosts, job, "succeeded")
    on_hosts.settle()


@breaks("link", "sshd", "reboot", "server while the link is down")
def test_finalizing(on_hosts: OnHosts, broken: str) -> None:
    """The script has ended while the link was down, and what it left is not reported yet."""
    job = on_hosts.submit("late")
    on_hosts.wait_for(job, "running")
    on_hosts.host.link_down()
    on_hosts.open_gate(job)
    eventually(lambda: on_hosts.has_event(job, "exited"), "the script has ended")
    BREAKS[broken](on_hosts, job)
    on_hosts.host.link_up()
    _ends(on_hosts, job, "succeeded")
    on_hosts.settle()


@breaks("link", "everything", "agent", "server")
def test_canceling(on_hosts: OnHosts, broken: str) -> None:
    """It was ordered to stop, and does not hear of it yet."""
    job = on_hosts.submit("hold")
    on_hosts.wait_for(job, "running")
    on_hosts.host.link_down()
    assert on_hosts.cancel(job)
    BREAKS[broken](on_hosts, job)
    on_hosts.host.link_up()
    _ends(on_hosts, job, "canceled", code=None)
    on_hosts.settle()


def test_a_link_that_is_given_up_and_found_again(on_hosts: OnHosts) -> None:
    """The agent of before still has the door, and does not know that its link is dead."""
    job = on_hosts.submit("late")
    on_hosts.wait_for(job, "running")
    on_hosts.host.link_down()
    told = "its work goes on there unseen"
    eventually(lambda: told in on_hosts.show(job)["reason"], "the link is given up")
    assert on_hosts.agents()
    on_hosts.host.link_up()
    on_hosts.open_gate(job)
    _ends(on_hosts, job, "succeeded")
    on_hosts.settle()


def _ends(
    arena: OnHosts, job: Submitted, state: str, reason: str = "", code: int | None = 0
) -> None:
    view = arena.wait(job)
    check(arena, job)
    assert (view["state"], view["exit_code"]) == (state, code), view["reason"]
    assert reason in view["reason"]
