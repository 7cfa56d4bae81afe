"""Pools of hosts: jobs on two of them, and hosts of which nothing is heard."""

from typing import Any

import pytest

from retarget.control.decide import MARGIN
from tests.chaos.arena import Submitted, eventually
from tests.chaos.places import FENCE, OnHosts
from tests.chaos.truth import KILLED, LOST, check
from tests.testbeds.hosts import Host

pytestmark = pytest.mark.chaos


def test_a_gang_goes_on_when_a_link_was_down_for_a_while(on_hosts: OnHosts) -> None:
    job = _gang(on_hosts)
    host = on_hosts.hosts[2]
    host.link_down()
    before = on_hosts.size_of(job)
    eventually(lambda: on_hosts.size_of(job) > before + 2000, "its scripts talk on")
    host.link_up()
    on_hosts.open_gate(job)
    assert on_hosts.wait(job)["state"] == "succeeded"
    check(on_hosts, job)
    on_hosts.settle()


def test_one_rank_that_fails_ends_all(on_hosts: OnHosts) -> None:
    job = _gang(on_hosts)
    last = [each for each in on_hosts.scripts(job) if each.environ["RANK"] == "1"]
    on_hosts.kill(("script",), job, scripts=last)
    view = on_hosts.wait(job)
    assert (view["state"], view["reason"]) == ("failed", f"node 1: the script {KILLED}")
    check(on_hosts, job)
    on_hosts.settle()


@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize("number", [1, 2])
def test_a_host_that_reboots_ends_a_gang(on_hosts: OnHosts, number: int, retries: int) -> None:
    job = _gang(on_hosts, retries=retries)
    on_hosts.kill_everything(on_hosts.hosts[number], job, reboot=True)
    if retries:
        eventually(lambda: on_hosts.starts(job) == 4, "it is tried again")
        on_hosts.open_gate(job)
    view = on_hosts.wait(job)
    assert view["state"] == ("succeeded" if retries else "failed")
    assert view["attempts"][0]["reason"] == f"node {number - 1}: {LOST}"
    check(on_hosts, job)
    on_hosts.settle()


def test_the_job_of_a_silent_host_never_runs_twice_at_once(on_hosts: OnHosts) -> None:
    """Its runner ends it by itself, and only then is it tried on another host."""
    job = on_hosts.submit("hold", target="pool", retries=1)
    on_hosts.wait_for(job, "running")
    host = _host_of(on_hosts, on_hosts.show(job)["attempts"][0]["nodes"][0])
    on_hosts.silence(host, job)
    record = on_hosts.record_of(job)
    eventually(lambda: _node(on_hosts, host)["reason"], "the host is set aside")
    patience = FENCE + MARGIN + 30
    eventually(lambda: on_hosts.starts(job) == 2, "it is tried elsewhere", patience=patience)
    assert not [each for each in on_hosts.scripts(job) if _is_on(host, each.pid)]
    assert on_hosts.start_times(job)[1] > record.stat().st_mtime + 1
    on_hosts.open_gate(job)
    assert on_hosts.wait(job)["state"] == "succeeded"
    host.link_up()
    eventually(lambda: not _node(on_hosts, host)["reason"], "the host is taken back")
    check(on_hosts, job)
    on_hosts.settle()


def test_a_silent_idle_host_is_set_aside_and_taken_back(on_hosts: OnHosts) -> None:
    host = on_hosts.hosts[1]
    host.link_down()
    on_hosts.call("POST", "/api/targets/pool/check")
    assert "answer" in _node(on_hosts, host)["reason"]
    job = on_hosts.submit("quick", target="pool")
    assert on_hosts.wait(job)["attempts"][0]["nodes"] == [on_hosts.hosts[2].address]
    host.link_up()
    eventually(lambda: not _node(on_hosts, host)["reason"], "it is taken back")
    check(on_hosts, job)
    on_hosts.settle()


def test_a_job_placed_on_a_host_that_is_no_longer_there_gets_another(on_hosts: OnHosts) -> None:
    """Nothing was started on the first: that is no attempt, and takes no retry."""
    host = on_hosts.hosts[1]
    on_hosts.call("POST", "/api/targets/pool/check")
    host.link_down()
    job = on_hosts.submit("quick", target="pool")
    view = on_hosts.wait(job)
    assert view["state"] == "succeeded"
    assert [each["nodes"] for each in view["attempts"]] == [[on_hosts.hosts[2].address]]
    history = on_hosts.call("GET", f"/api/jobs/{job.id}/history")
    events = [move["event"] for move in history]
    assert events[1:4] == ["placed", "returned", "placed"]
    host.link_up()
    check(on_hosts, job)
    on_hosts.settle()


def test_a_job_for_a_host_that_is_no_longer_there_waits_for_it(on_hosts: OnHosts) -> None:
    on_hosts.call("POST", "/api/targets/lab/check")
    on_hosts.host.link_down()
    job = on_hosts.submit("quick")
    eventually(lambda: "cannot be used" in on_hosts.show(job)["reason"], "it says so")
    other = on_hosts.submit("quick")
    on_hosts.call("POST", f"/api/jobs/{other.name}/cancel")
    assert on_hosts.wait(other)["state"] == "canceled"
    on_hosts.host.link_up()
    assert on_hosts.wait(job)["state"] == "succeeded"
    check(on_hosts, job)
    on_hosts.settle()


def _gang(arena: OnHosts, **options: Any) -> Submitted:
    """Start a job on both hosts of the pool."""
    job = arena.submit("hold", target="pool", nodes=2, **options)
    arena.wait_for(job, "running")
    eventually(lambda: arena.starts(job) == 2, "its scripts are there")
    return job


def _host_of(arena: OnHosts, name: str) -> Host:
    return next(host for host in arena.hosts if host.address == name)


def _node(arena: OnHosts, host: Host) -> dict[str, Any]:
    nodes = arena.call("GET", "/api/targets/pool")["facts"]["nodes"]
    return next(node for node in nodes if node["name"] == host.address)


def _is_on(host: Host, pid: int) -> bool:
    return pid in [each for each, _ in host.processes()]
