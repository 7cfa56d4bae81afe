"""Breaks the links to SSH hosts, their agents and all their processes, at every stage of a job."""

import os
import signal
import time
from collections.abc import Callable

import pytest

from tests.chaos.chaos_server import Submitted, eventually
from tests.chaos.invariants import LOST, REBOOTED, check
from tests.chaos.processes import kill_together
from tests.chaos.remote_targets import OnHosts

pytestmark = pytest.mark.chaos
Break = Callable[[OnHosts, Submitted], None]
_LINK_DOWN_SECONDS = 2.0


def _link(chaos_server: OnHosts, job: Submitted) -> None:
    chaos_server.host.link_down()
    time.sleep(_LINK_DOWN_SECONDS)
    chaos_server.host.link_up()


def _sshd(chaos_server: OnHosts, job: Submitted) -> None:
    chaos_server.host.kill_sshd()
    chaos_server.host.start_sshd()


def _everything(chaos_server: OnHosts, job: Submitted) -> None:
    chaos_server.kill_everything(chaos_server.host, job)


def _reboot(chaos_server: OnHosts, job: Submitted) -> None:
    chaos_server.kill_everything(chaos_server.host, job, reboot=True)


def _agent(chaos_server: OnHosts, job: Submitted) -> None:
    kill_together(chaos_server.agents())


def _server(chaos_server: OnHosts, job: Submitted) -> None:
    chaos_server.kill_server()
    chaos_server.start()


def _server_without_link(chaos_server: OnHosts, job: Submitted) -> None:
    chaos_server.host.link_down()
    chaos_server.kill_server()
    chaos_server.start()
    chaos_server.host.link_up()


def _server_and_agent(chaos_server: OnHosts, job: Submitted) -> None:
    chaos_server.kill_server()
    kill_together(chaos_server.agents())
    chaos_server.start()


def _server_and_host(chaos_server: OnHosts, job: Submitted) -> None:
    chaos_server.kill_server()
    _reboot(chaos_server, job)
    chaos_server.start()


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
REBOOTS = ("reboot", "server and host")
FATAL = ("everything", *REBOOTS)  # they end a running script


def breaks(*names: str) -> pytest.MarkDecorator:
    """Break each of these parts. The random rounds cover all others."""
    return pytest.mark.parametrize("broken", names or BREAKS)


@breaks("link", "sshd", "reboot", "agent", "server")
def test_launching(on_hosts: OnHosts, broken: str) -> None:
    """After the launch was sent to the host, before it has answered."""
    stopped = eventually(on_hosts.agents, "an agent runs")
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
    """While its code is downloaded."""
    job = on_hosts.submit("quick", bulk=os.urandom(32 << 20))
    blobs = on_hosts.host.home / ".retarget-host/blobs"
    eventually(lambda: list(blobs.glob("*.part")), "a blob is being downloaded")
    on_hosts.pause_server()  # so that the download does not end
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
        _ends(on_hosts, job, "failed", REBOOTED if broken in REBOOTS else LOST, None)
    else:
        before = len(on_hosts.log(job, 1))
        eventually(lambda: len(on_hosts.log(job, 1)) > before, "its log grows")
        on_hosts.open_gate(job)
        _ends(on_hosts, job, "succeeded")
    on_hosts.settle()


@breaks("link", "sshd", "reboot", "server while the link is down")
def test_finalizing(on_hosts: OnHosts, broken: str) -> None:
    """After the script has ended while the link was down, before its results are reported."""
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
    """After a stop was requested, before it reaches the host."""
    job = on_hosts.submit("hold")
    on_hosts.wait_for(job, "running")
    on_hosts.host.link_down()
    assert on_hosts.cancel(job)
    BREAKS[broken](on_hosts, job)
    on_hosts.host.link_up()
    _ends(on_hosts, job, "canceled", code=None)
    on_hosts.settle()


def test_a_link_that_is_declared_dead_recovers(on_hosts: OnHosts) -> None:
    """The previous agent still holds the relay port and does not know that its link is dead."""
    job = on_hosts.submit("late")
    on_hosts.wait_for(job, "running")
    on_hosts.host.link_down()
    reason = "the job continues there"
    eventually(lambda: reason in on_hosts.show(job)["reason"], "the link is declared dead")
    assert on_hosts.agents()
    on_hosts.host.link_up()
    on_hosts.open_gate(job)
    _ends(on_hosts, job, "succeeded")
    on_hosts.settle()


def _ends(
    chaos_server: OnHosts, job: Submitted, state: str, reason: str = "", code: int | None = 0
) -> None:
    view = chaos_server.wait(job)
    check(chaos_server, job)
    assert (view["state"], view["exit_code"]) == (state, code), view["reason"]
    assert reason in view["reason"]
