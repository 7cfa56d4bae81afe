"""Pools of hosts: jobs on two hosts, and hosts that fall silent."""

from typing import Any

import pytest

from retarget.control.decide import LOST_MARGIN_SECONDS
from tests.chaos.chaos_server import Submitted, eventually
from tests.chaos.invariants import KILLED, REBOOTED, check
from tests.chaos.remote_targets import LOST_AFTER, OnHosts
from tests.testbeds.hosts import SshHost

pytestmark = pytest.mark.chaos


def test_a_gang_continues_when_a_link_was_down_for_a_while(on_hosts: OnHosts) -> None:
    job = _gang(on_hosts)
    host = on_hosts.hosts[2]
    host.link_down()
    before = on_hosts.size_of(job)
    eventually(lambda: on_hosts.size_of(job) > before + 2000, "its scripts write more")
    host.link_up()
    on_hosts.open_gate(job)
    assert on_hosts.wait(job)["state"] == "succeeded"
    check(on_hosts, job)
    on_hosts.settle()


def test_one_rank_that_fails_ends_all(on_hosts: OnHosts) -> None:
    job = _gang(on_hosts)
    last = [process for process in on_hosts.scripts(job) if process.environ["RANK"] == "1"]
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
        eventually(lambda: on_hosts.starts(job) == 4, "it is retried")
        on_hosts.open_gate(job)
    view = on_hosts.wait(job)
    assert view["state"] == ("succeeded" if retries else "failed")
    assert view["attempts"][0]["reason"] == f"node {number - 1}: {REBOOTED}"
    check(on_hosts, job)
    on_hosts.settle()


def test_the_job_of_a_silent_host_never_runs_twice_at_once(on_hosts: OnHosts) -> None:
    """Its runner stops it first, and only then is it retried on another host."""
    job = on_hosts.submit("hold", target="pool", retries=1)
    on_hosts.wait_for(job, "running")
    host = _host_of(on_hosts, on_hosts.show(job)["attempts"][0]["nodes"][0])
    on_hosts.silence(host, job)
    record = on_hosts.record_of(job)
    eventually(lambda: _node(on_hosts, host)["unavailable"], "the host is unavailable")
    timeout = LOST_AFTER + LOST_MARGIN_SECONDS + 30
    eventually(lambda: on_hosts.starts(job) == 2, "it is retried elsewhere", timeout=timeout)
    assert not [process for process in on_hosts.scripts(job) if _is_on(host, process.pid)]
    assert on_hosts.start_times(job)[1] > record.stat().st_mtime + 1
    on_hosts.open_gate(job)
    assert on_hosts.wait(job)["state"] == "succeeded"
    host.link_up()
    eventually(lambda: not _node(on_hosts, host)["unavailable"], "the host is available again")
    check(on_hosts, job)
    on_hosts.settle()


def test_a_silent_idle_host_is_unavailable_until_it_answers(on_hosts: OnHosts) -> None:
    host = on_hosts.hosts[1]
    on_hosts.call("POST", "/api/targets/pool/check")  # else a login may be cut, and say so
    host.link_down()
    on_hosts.call("POST", "/api/targets/pool/check")
    assert "answer" in _node(on_hosts, host)["unavailable"]
    job = on_hosts.submit("quick", target="pool")
    assert on_hosts.wait(job)["attempts"][0]["nodes"] == [on_hosts.hosts[2].address]
    host.link_up()
    eventually(lambda: not _node(on_hosts, host)["unavailable"], "it is available again")
    check(on_hosts, job)
    on_hosts.settle()


def test_a_job_placed_on_an_unreachable_host_gets_another(on_hosts: OnHosts) -> None:
    """Nothing was started on the first host, so no attempt and no retry is counted."""
    host = on_hosts.hosts[1]
    on_hosts.call("POST", "/api/targets/pool/check")
    host.link_down()
    job = on_hosts.submit("quick", target="pool")
    view = on_hosts.wait(job)
    assert view["state"] == "succeeded"
    assert [attempt["nodes"] for attempt in view["attempts"]] == [[on_hosts.hosts[2].address]]
    history = on_hosts.call("GET", f"/api/jobs/{job.id}/history")
    events = [transition["event"] for transition in history]
    assert events[1:4] == ["placed", "unplaced", "placed"]
    host.link_up()
    check(on_hosts, job)
    on_hosts.settle()


def test_a_job_for_an_unreachable_host_waits_for_it(on_hosts: OnHosts) -> None:
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


def _gang(chaos_server: OnHosts, **options: Any) -> Submitted:
    """Start a job on both hosts of the pool."""
    job = chaos_server.submit("hold", target="pool", nodes=2, **options)
    chaos_server.wait_for(job, "running")
    eventually(lambda: chaos_server.starts(job) == 2, "its scripts run")
    return job


def _host_of(chaos_server: OnHosts, name: str) -> SshHost:
    return next(host for host in chaos_server.hosts if host.address == name)


def _node(chaos_server: OnHosts, host: SshHost) -> dict[str, Any]:
    nodes = chaos_server.call("GET", "/api/targets/pool")["inventory"]["nodes"]
    return next(node for node in nodes if node["name"] == host.address)


def _is_on(host: SshHost, pid: int) -> bool:
    return pid in [other for other, _ in host.processes()]
