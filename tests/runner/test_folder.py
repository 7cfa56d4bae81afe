"""What a runner remembers is what is whole on its disk."""

import json
from pathlib import Path

import pytest

from retarget.runner.folder import Folder, Journal
from tests.runner.workshop import Workshop


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(str(tmp_path))


def test_a_journal_is_found_again(folder: Folder) -> None:
    Journal(folder).add("preparing", pid=1)
    found = Journal(folder)
    assert [(event["seq"], event["kind"]) for event in found.events] == [(1, "preparing")]
    assert found.add("starting")["seq"] == 2


@pytest.mark.parametrize("torn", [b"{", b'{"seq": 2, "at": 1, "kind": "starting"}', b"\xff"])
def test_a_torn_last_line_never_happened(folder: Folder, tmp_path: Path, torn: bytes) -> None:
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
    found = journal.find("preparing")
    assert found is not None
    assert found["pid"] == 2
    assert journal.find("exited") is None


def test_there_is_one_runner_at_a_time(folder: Folder, tmp_path: Path) -> None:
    assert folder.acquire()
    other = Folder(str(tmp_path))
    assert not other.acquire()
    folder.release()
    assert other.acquire()
    other.release()


def test_a_start_that_was_only_half_written_down_is_made(workshop: Workshop) -> None:
    """What was not wholly journaled before the script cannot have been followed by it."""
    work = workshop.launch("sh", "-c", "echo started")
    events = '{"seq": 1, "at": 1, "kind": "preparing"}\n{"seq": 2, "at": 1, "kind": "star'
    (work.folder / "events.jsonl").write_text(events)
    heard = work.finish()
    assert heard.stream() == b"started\n"
    assert heard.kinds[:3] == ["preparing", "preparing", "starting"]


def test_a_start_that_was_written_down_is_not_made_again(workshop: Workshop) -> None:
    work = workshop.launch("sh", "-c", "echo started")
    events = '{"seq": 1, "at": 1, "kind": "preparing"}\n{"seq": 2, "at": 1, "kind": "starting"}\n'
    (work.folder / "events.jsonl").write_text(events)
    heard = work.finish()
    assert heard.finished["outcome"] == "lost"
    assert heard.stream() == b""


def test_a_runner_told_to_end_ends_the_script_and_says_why(workshop: Workshop) -> None:
    work = workshop.launch("sh", "-c", "echo READY; sleep 60").start()
    work.hear("output", b"READY")
    assert work.runner is not None
    work.runner.terminate()
    heard = work.finish()
    assert heard.finished["outcome"] == "failed"
    assert "SIGTERM" in heard.finished["reason"]


def test_a_runner_does_not_wait_for_ever_for_a_lost_server(workshop: Workshop) -> None:
    """It leaves without a word in `done`, so that a later launch brings the rest."""
    workshop.node["linger"] = 0.3
    work = workshop.launch("sh", "-c", "exit 4")
    workshop.receiver.stop()
    runner = work.start().runner
    assert runner is not None
    assert runner.wait(20) == 0
    assert not (work.folder / "done").exists()
    workshop.receiver.start()
    assert work.start().finish().finished["exit_code"] == 4
