"""Targets whose settings change, or that are detached, while jobs run on them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.testbeds.hosts import SshHost
from tests.testbeds.namespaces import wait_until

_PRINT_LINES = "i=0; while [ $i -lt 30 ]; do echo line $i; i=$((i+1)); sleep 0.1; done"


@pytest.fixture
def attached(retarget: Cli, ssh_hosts: list[SshHost]) -> Iterator[Cli]:
    address = ("--address", f"ml@{ssh_hosts[0].address}", "--key", ssh_hosts[0].key)
    attached = retarget("target", "attach", "far", "--kind", "ssh", *address)
    assert attached.returncode == 0, attached.stderr
    yield retarget
    retarget("target", "detach", "far", "--force")


def _start(retarget: Cli, tmp_path: Path, name: str, *command: str, target: str = "far") -> None:
    (folder := tmp_path / "code").mkdir()
    options = ("--detach", "--name", name, "-t", target, "--code", folder)
    assert retarget("run", *options, "--", *command).returncode == 0


def _assert_all_lines_are_logged(retarget: Cli) -> None:
    ended = retarget("job", "wait", "printer", timeout=200)
    assert ended.returncode == 0, ended.stderr
    log = retarget("job", "logs", "printer").stdout
    assert log.splitlines() == [f"line {n}" for n in range(30)]


def _sleepers(host: SshHost) -> list[list[str]]:
    return [argv for _, argv in host.processes() if argv[1:] == ["1000"]]


@pytest.mark.targets
def test_settings_can_change_while_a_job_runs(attached: Cli, tmp_path: Path) -> None:
    _start(attached, tmp_path, "printer", "sh", "-c", _PRINT_LINES)
    changed = attached("target", "update", "far", "--lost-after", "400", "--timeout", "20")
    assert changed.returncode == 0, changed.stderr
    _assert_all_lines_are_logged(attached)


@pytest.mark.targets
def test_a_target_with_a_job_is_detached_only_by_force_and_the_job_is_killed(
    attached: Cli, ssh_hosts: list[SshHost], tmp_path: Path
) -> None:
    _start(attached, tmp_path, "sleeper", "sleep", "1000")
    wait_until(lambda: bool(_sleepers(ssh_hosts[0])), "it sleeps")
    refused = attached("target", "detach", "far")
    assert refused.returncode != 0
    assert "sleeper" in refused.stderr
    detached = attached("target", "detach", "far", "--force")
    assert detached.returncode == 0, detached.stderr
    jobs = attached("job", "list").stdout
    assert "failed" in jobs
    assert not _sleepers(ssh_hosts[0])


@pytest.mark.targets
def test_settings_that_make_a_job_unreachable_are_refused(
    attached: Cli, ssh_hosts: list[SshHost], tmp_path: Path
) -> None:
    _start(attached, tmp_path, "stays", "sleep", "1000")
    moved = attached("target", "update", "far", "--address", ssh_hosts[1].address)
    assert moved.returncode != 0
    assert "job 'stays' would be unreachable with these settings" in moved.stderr
    attached("job", "cancel", "stays")
    attached("job", "wait", "stays", timeout=200)
    moved = attached("target", "update", "far", "--address", ssh_hosts[1].address)
    assert moved.returncode == 0, moved.stderr


@pytest.mark.targets
def test_a_new_host_key_is_accepted_on_request(
    attached: Cli, ssh_hosts: list[SshHost], tmp_path: Path
) -> None:
    _start(attached, tmp_path, "printer", "sh", "-c", _PRINT_LINES)
    attached("job", "logs", "printer")
    ssh_hosts[0].new_host_key()
    refused = attached("target", "check", "far")
    assert refused.returncode != 0
    assert refused.stderr.strip().endswith("retarget target update NAME --unset host-key")
    accepted = attached("target", "update", "far", "--unset", "host-key")
    assert accepted.returncode == 0, accepted.stderr
    _assert_all_lines_are_logged(attached)


@pytest.mark.targets
def test_the_key_of_a_host_that_answered_late_is_kept(
    retarget: Cli, ssh_hosts: list[SshHost]
) -> None:
    ssh_hosts[1].link_down()
    hosts = [word for host in ssh_hosts[:2] for word in ("--host", f"ml@{host.address}")]
    options = ("--kind", "ssh", *hosts, "--key", ssh_hosts[0].key, "--timeout", "3")
    attached = retarget("target", "attach", "pool", *options, "--json")
    assert list(json.loads(attached.stdout)["config"]["host_keys"]) == [ssh_hosts[0].address], (
        attached.stderr
    )
    ssh_hosts[1].link_up()
    assert retarget("target", "check", "pool").returncode == 0
    retarget("server", "stop")
    ssh_hosts[1].new_host_key()
    target = json.loads(retarget("target", "check", "pool", "--json").stdout)
    unavailable = [node["unavailable"] for node in target["inventory"]["nodes"]]
    assert unavailable[0] == ""
    assert "its host key has changed" in unavailable[1]


@pytest.mark.targets
def test_each_target_on_one_machine_has_its_own_user(
    attached: Cli, ssh_hosts: list[SshHost], tmp_path: Path
) -> None:
    options = (
        "--kind",
        "ssh",
        "--address",
        f"root@{ssh_hosts[0].address}",
        "--key",
        ssh_hosts[0].key,
    )
    assert attached("target", "attach", "as-root", *options).returncode == 0
    (folder := tmp_path / "code").mkdir()
    for target, user in (("far", "ml"), ("as-root", "root"), ("far", "ml")):
        completed = attached("run", "-t", target, "--code", folder, "--", "id", "-un")
        assert completed.stdout == f"{user}\n", completed.stderr
    attached("target", "detach", "as-root")


@pytest.mark.targets
def test_two_targets_on_one_machine_do_not_interfere(
    attached: Cli, ssh_hosts: list[SshHost], tmp_path: Path
) -> None:
    options = (
        "--kind",
        "ssh",
        "--address",
        f"ml@{ssh_hosts[0].address}",
        "--key",
        ssh_hosts[0].key,
    )
    assert attached("target", "attach", "same", *options).returncode == 0
    _start(attached, tmp_path, "printer", "sh", "-c", _PRINT_LINES, target="same")
    detached = attached("target", "detach", "far")
    assert detached.returncode == 0, detached.stderr
    _assert_all_lines_are_logged(attached)
    assert attached("target", "detach", "same").returncode == 0
