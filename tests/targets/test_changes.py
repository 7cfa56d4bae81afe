"""Targets whose settings change, or that go away, while jobs are on them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.testbeds.hosts import Host

_TALK = "i=0; while [ $i -lt 30 ]; do echo line $i; i=$((i+1)); sleep 0.1; done"


@pytest.fixture
def attached(retarget: Cli, lab: list[Host]) -> Iterator[Cli]:
    address = ("--address", f"ml@{lab[0].address}", "--key", lab[0].key)
    made = retarget("target", "attach", "far", "--kind", "ssh", *address)
    assert made.returncode == 0, made.stderr
    yield retarget
    retarget("target", "detach", "far", "--force")


@pytest.mark.targets
def test_settings_may_change_while_a_job_runs(attached: Cli, tmp_path: Path) -> None:
    (folder := tmp_path / "code").mkdir()
    words = ("--detach", "--name", "talk", "-t", "far", "--code", folder)
    assert attached("run", *words, "--", "sh", "-c", _TALK).returncode == 0
    changed = attached("target", "update", "far", "--fence", "400", "--timeout", "20")
    assert changed.returncode == 0, changed.stderr
    ended = attached("job", "wait", "talk", timeout=60)
    assert ended.returncode == 0, ended.stderr
    log = attached("job", "logs", "talk").stdout
    assert log.splitlines() == [f"line {n}" for n in range(30)]


@pytest.mark.targets
def test_a_target_with_a_job_goes_only_by_force_and_takes_it_along(
    attached: Cli, lab: list[Host], tmp_path: Path
) -> None:
    (folder := tmp_path / "code").mkdir()
    words = ("--detach", "--name", "sleeper", "-t", "far", "--code", folder)
    assert attached("run", *words, "--", "sleep", "1000").returncode == 0
    attached("job", "logs", "sleeper")
    refused = attached("target", "detach", "far")
    assert refused.returncode != 0
    assert "sleeper" in refused.stderr
    gone = attached("target", "detach", "far", "--force")
    assert gone.returncode == 0, gone.stderr
    shown = attached("job", "list").stdout
    assert "failed" in shown
    assert not [words for _, words in lab[0].processes() if words[1:] == ["1000"]]


@pytest.mark.targets
def test_settings_that_leave_a_job_behind_are_refused(
    attached: Cli, lab: list[Host], tmp_path: Path
) -> None:
    (folder := tmp_path / "code").mkdir()
    words = ("--detach", "--name", "stays", "-t", "far", "--code", folder)
    assert attached("run", *words, "--", "sleep", "1000").returncode == 0
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
    (folder := tmp_path / "code").mkdir()
    words = ("--detach", "--name", "talk", "-t", "far", "--code", folder)
    assert attached("run", *words, "--", "sh", "-c", _TALK).returncode == 0
    attached("job", "logs", "talk")
    lab[0].new_host_key()
    refused = attached("target", "check", "far")
    assert refused.returncode != 0
    assert refused.stderr.strip().endswith("retarget target update NAME --unset pin")
    taken = attached("target", "update", "far", "--unset", "pin")
    assert taken.returncode == 0, taken.stderr
    ended = attached("job", "wait", "talk", timeout=60)
    assert ended.returncode == 0, ended.stderr
    log = attached("job", "logs", "talk").stdout
    assert log.splitlines() == [f"line {n}" for n in range(30)]


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
    (folder := tmp_path / "code").mkdir()
    words = ("--detach", "--name", "talk", "-t", "same", "--code", folder)
    assert attached("run", *words, "--", "sh", "-c", _TALK).returncode == 0
    gone = attached("target", "detach", "far")
    assert gone.returncode == 0, gone.stderr
    ended = attached("job", "wait", "talk", timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert len(attached("job", "logs", "talk").stdout.splitlines()) == 30
    assert attached("target", "detach", "same").returncode == 0
