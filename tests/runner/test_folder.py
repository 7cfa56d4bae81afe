"""The folder of a launch: what a runner remembers is what is complete on disk."""

import json
import shutil
from pathlib import Path

import pytest

from retarget.runner import processes
from retarget.runner.folder import Folder, Journal
from retarget.runner.host import Host
from tests.runner.harness import PATIENCE, RunnerHarness


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(str(tmp_path))


def test_a_journal_is_read_again(folder: Folder) -> None:
    Journal(folder).add("preparing", pid=1)
    journal = Journal(folder)
    assert [(event["seq"], event["kind"]) for event in journal.events] == [(1, "preparing")]
    assert journal.add("starting")["seq"] == 2


@pytest.mark.parametrize("torn", [b"{", b'{"seq": 2, "at": 1, "kind": "starting"}', b"\xff"])
def test_an_incomplete_last_line_does_not_count(
    folder: Folder, tmp_path: Path, torn: bytes
) -> None:
    Journal(folder).add("preparing")
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(torn)
    journal = Journal(folder)
    assert [event["kind"] for event in journal.events] == ["preparing"]
    journal.add("exited")
    lines = (tmp_path / "events.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [1, 2]


def test_the_latest_event_of_a_kind_counts(folder: Folder) -> None:
    journal = Journal(folder)
    for pid in (1, 2):
        journal.add("preparing", pid=pid)
    event = journal.find("preparing")
    assert event is not None
    assert event["pid"] == 2
    assert journal.find("exited") is None


def test_there_is_one_runner_at_a_time(folder: Folder, tmp_path: Path) -> None:
    assert folder.acquire()
    other = Folder(str(tmp_path))
    assert not other.acquire()
    folder.release()
    assert other.acquire()
    other.release()


def test_a_start_with_an_incomplete_event_is_made(harness: RunnerHarness) -> None:
    """The script cannot have started before its event was complete."""
    launch = harness.launch("sh", "-c", "echo started")
    events = '{"seq": 1, "at": 1, "kind": "preparing"}\n{"seq": 2, "at": 1, "kind": "star'
    (launch.folder / "events.jsonl").write_text(events)
    reports = launch.finish()
    assert reports.stream() == b"started\n"
    assert reports.kinds[:3] == ["preparing", "preparing", "starting"]


def test_a_start_with_a_complete_event_is_not_repeated(harness: RunnerHarness) -> None:
    launch = harness.launch("sh", "-c", "echo started")
    events = '{"seq": 1, "at": 1, "kind": "preparing"}\n{"seq": 2, "at": 1, "kind": "starting"}\n'
    (launch.folder / "events.jsonl").write_text(events)
    reports = launch.finish()
    assert reports.finished["outcome"] == "lost"
    assert reports.stream() == b""


def test_a_runner_that_gets_sigterm_ends_the_script_and_reports_why(harness: RunnerHarness) -> None:
    launch = harness.launch("sh", "-c", "echo READY; sleep 60").start()
    launch.wait_for_output("output", b"READY")
    assert launch.runner is not None
    launch.runner.terminate()
    reports = launch.finish()
    assert reports.finished["outcome"] == "failed"
    assert "SIGTERM" in reports.finished["reason"]


def test_a_runner_does_not_wait_for_ever_for_a_lost_server(harness: RunnerHarness) -> None:
    """It exits without writing `done`, so that a later launch sends the rest."""
    harness.node["linger"] = 0.3
    launch = harness.launch("sh", "-c", "exit 4")
    harness.receiver.stop()
    runner = launch.start().runner
    assert runner is not None
    assert runner.wait(200) == 0
    assert not (launch.folder / "done").exists()
    harness.receiver.start()
    assert launch.start().finish().finished["exit_code"] == 4


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_the_script_starts_only_once_its_event_would_outlive_a_power_cut(
    harness: RunnerHarness, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    launch = harness.launch("/bin/true")
    calls = "trace=fsync,fdatasync,execve,write"
    launch.start("strace", "-f", "-y", "-s", "999", "-e", calls, "-o", str(trace))
    launch.finish()
    lines = trace.read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if 'execve("/bin/true"' in line)
    written = next(number for number, line in enumerate(lines) if '\\"starting\\"' in line)
    synced = [line for line in lines[written:start] if "sync(" in line]
    for path in (launch.folder / "events.jsonl", launch.folder, launch.folder.parent):
        assert any(f"<{path}>" in line for line in synced), (path, synced)


DAMAGES = {
    "garbage": b"garbage\n",
    "zeros": b"\0" * 40 + b"\n",
    "not UTF-8": b'{"seq": 3, "at": 1, "kind": "st\xff\xfe"}\n',
    "no event": b"[1, 2]\n",
    "no kind": b'{"seq": 3, "at": 1}\n',
    "twice": b'{"seq": 1, "at": 1, "kind": "preparing"}\n',
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_journal_ends_the_attempt_with_a_sentence(
    harness: RunnerHarness, damage: bytes
) -> None:
    launch = harness.launch("sh", "-c", "echo READY; exec sleep 600").start()
    launch.wait_for_output("output", b"READY")
    launch.kill()
    journal = launch.folder / "events.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:1], damage, *lines[1:]]))
    reports = launch.start().finish()
    assert reports.finished["outcome"] == "lost"
    assert reports.finished["reason"] == (
        "the journal of this attempt on its host is damaged; "
        "the script was not started again; submit the job again to run it"
    )
    assert processes.leftovers(launch.key, []) == []
    assert reports.stream() == b"READY\n"


def test_a_journal_that_knows_less_than_the_server_starts_nothing(harness: RunnerHarness) -> None:
    """After a power cut, for example."""
    launch = harness.launch("sh", "-c", "echo started; exec sleep 600").start()
    before = launch.wait_for_output("output", b"started")
    launch.kill()
    (launch.folder / "events.jsonl").write_bytes(b"")
    content = json.loads((launch.folder / "launch.json").read_text())
    content["launch"]["events_acked"] = len(before.events)
    (launch.folder / "launch.json").write_text(json.dumps(content))
    reports = launch.start().finish()
    assert reports.finished["outcome"] == "lost"
    assert "lost part of the journal" in reports.finished["reason"]
    assert reports.stream() == b"started\n"
    assert "forgotten" in reports.kinds
    assert processes.leftovers(launch.key, []) == []


def test_a_host_that_has_rebooted_says_so(harness: RunnerHarness) -> None:
    launch = harness.launch("sh", "-c", "echo READY; exec sleep 600").start()
    launch.wait_for_output("output", b"READY")
    launch.kill()
    journal = launch.folder / "events.jsonl"
    journal.write_text(journal.read_text().replace(processes.boot(), "an-earlier-boot"))
    reports = launch.start().finish()
    assert reports.finished["reason"] == "the host has rebooted while the script ran"


def test_a_launch_that_the_server_has_forgotten_is_reported_again(harness: RunnerHarness) -> None:
    """The server's host lost power: its database is that of a moment ago."""
    launch = harness.launch("sh", "-c", "echo once")
    first = launch.finish()
    content = json.loads((launch.folder / "launch.json").read_text())
    content["launch"]["events_acked"] = 1
    host = Host(str(harness.root), str(harness.zipapp))
    harness.receiver.forget(launch.key)
    host.launch(launch.key, content)
    again = harness.receiver.wait(
        launch.key, lambda reports: "finished" in reports.kinds, timeout=PATIENCE
    )
    assert (again.stream(), again.kinds) == (b"once\n", first.kinds)
