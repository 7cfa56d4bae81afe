"""Targets whose settings change, or that go away, while jobs are on them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.testbeds.hosts import Host
from tests.testbeds.namespaces import wait_until

_TALK = "i=0; while [ $i -lt 30 ]; do echo line $i; i=$((i+1)); sleep 0.1; done"


@pytest.fixture
def attached(retarget: Cli, lab: list[Host]) -> Iterator[Cli]:
    address = ("--address", f"ml@{lab[0].address}", "--key", lab[0].key)
    made = retarget("target", "attach", "far", "--kind", "ssh", *address)
    assert made.returncode == 0, made.stderr
    yield retarget
    retarget("target", "detach", "far", "--force")


def _start(retarget: Cli, tmp_path: Path, name: str, *command: str, target: str = "far") -> None:
    (folder := tmp_path / "code").mkdir()
    words = ("--detach", "--name", name, "-t", target, "--code", folder)
    assert retarget("run", *words, "--", *command).returncode == 0


def _see_it_talk_to_its_end(retarget: Cli) -> None:
    ended = retarget("job", "wait", "talk", timeout=60)
    assert ended.returncode == 0, ended.stderr
    log = retarget("job", "logs", "talk").stdout
    assert log.splitlines() == [f"line {n}" for n in range(30)]


def _sleepers(host: Host) -> list[list[str]]:
    return [words for _, words in host.processes() if words[1:] == ["1000"]]


@pytest.mark.targets
def test_settings_may_change_while_a_job_runs(attached: Cli, tmp_path: Path) -> None:
    _start(attached, tmp_path, "talk", "sh", "-c", _TALK)
    changed = attached("target", "update", "far", "--fence", "400", "--timeout", "20")
    assert changed.returncode == 0, changed.stderr
    _see_it_talk_to_its_end(attached)


@pytest.mark.targets
def test_a_target_with_a_job_goes_only_by_force_and_takes_it_along(
    attached: Cli, lab: list[Host], tmp_path: Path
) -> None:
    _start(attached, tmp_path, "sleeper", "sleep", "1000")
    wait_until(lambda: bool(_sleepers(lab[0])), "it sleeps")
    refused = attached("target", "detach", "far")
    assert refused.returncode != 0
    assert "sleeper" in refused.stderr
    gone = attached("target", "detach", "far", "--force")
    assert gone.returncode == 0, gone.stderr
    shown = attached("job", "list").stdout
    assert "failed" in shown
    assert not _sleepers(lab[0])


@pytest.mark.targets
def test_settings_that_leave_a_job_behind_are_refused(
    attached: Cli, lab: list[Host], tmp_path: Path
) -> None:
    _start(attached, tmp_path, "stays", "sleep", "1000")
    moved = attached("target", "update", "far", "--address", lab[1].address)
    assert moved.returncode != 0
    assert "job 'stays' would be out of reach with these settings" in moved.stderr
    attached("job", "cancel", "stays")
    attached("job", "wait", "stays", timeout=60)
    moved = attached("target", "update", "far", "--address", lab[1].address)
    assert moved.returncode == 0, moved.stderr


@pytest.mark.targets
def test_the_new_key_of_a_host_is_taken_when_one_says_so(
    attached: Cli, lab: list[Host], tmp_path: Path
) -> None:
    _start(attached, tmp_path, "talk", "sh", "-c", _TALK)
    attached("job", "logs", "talk")
    lab[0].new_host_key()
    refused = attached("target", "check", "far")
    assert refused.returncode != 0
    assert refused.stderr.strip().endswith("retarget target update NAME --unset pin")
    taken = attached("target", "update", "far", "--unset", "pin")
    assert taken.returncode == 0, taken.stderr
    _see_it_talk_to_its_end(attached)


@pytest.mark.targets
def test_the_key_of_a_host_that_was_met_late_is_kept(retarget: Cli, lab: list[Host]) -> None:
    lab[1].link_down()
    hosts = [word for host in lab[:2] for word in ("--host", f"ml@{host.address}")]
    way = ("--kind", "ssh", *hosts, "--key", lab[0].key, "--timeout", "3")
    made = retarget("target", "attach", "pool", *way, "--json")
    assert list(json.loads(made.stdout)["config"]["pins"]) == [lab[0].address], made.stderr
    lab[1].link_up()
    assert retarget("target", "check", "pool").returncode == 0
    retarget("server", "stop")
    lab[1].new_host_key()
    found = json.loads(retarget("target", "check", "pool", "--json").stdout)
    reasons = [node["reason"] for node in found["facts"]["nodes"]]
    assert reasons[0] == ""
    assert "its host key has changed" in reasons[1]


@pytest.mark.targets
def test_each_target_of_one_machine_has_its_own_user(
    attached: Cli, lab: list[Host], tmp_path: Path
) -> None:
    way = ("--kind", "ssh", "--address", f"root@{lab[0].address}", "--key", lab[0].key)
    assert attached("target", "attach", "as-root", *way).returncode == 0
    (folder := tmp_path / "code").mkdir()
    for target, user in (("far", "ml"), ("as-root", "root"), ("far", "ml")):
        done = attached("run", "-t", target, "--code", folder, "--", "id", "-un")
        assert done.stdout == f"{user}\n", done.stderr
    attached("target", "detach", "as-root")


@pytest.mark.targets
def test_two_targets_of_one_machine_do_not_disturb_each_other(
    attached: Cli, lab: list[Host], tmp_path: Path
) -> None:
    way = ("--kind", "ssh", "--address", f"ml@{lab[0].address}", "--key", lab[0].key)
    assert attached("target", "attach", "same", *way).returncode == 0
    _start(attached, tmp_path, "talk", "sh", "-c", _TALK, target="same")
    gone = attached("target", "detach", "far")
    assert gone.returncode == 0, gone.stderr
    _see_it_talk_to_its_end(attached)
    assert attached("target", "detach", "same").returncode == 0
