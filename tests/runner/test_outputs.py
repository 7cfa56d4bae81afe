"""Which files of outputs/ and logs/ are kept."""

import os
import sys
import time

from hypothesis import given
from hypothesis import strategies as st

from retarget.runner.outputs import printable_path
from retarget.testing import Receiver
from tests.runner.harness import PATIENCE, RunnerHarness


def test_links_to_files_inside_are_kept_as_files(harness: RunnerHarness) -> None:
    reports = harness.run("sh", "-c", "echo x > model; ln -s ../model outputs/latest")
    assert reports.outputs == {"outputs/latest": b"x\n"}


def test_links_to_files_elsewhere_are_not_kept_and_logged(harness: RunnerHarness) -> None:
    script = "ln -s /etc/passwd outputs/passwd; ln -s /nowhere outputs/nothing"
    reports = harness.run("sh", "-c", script)
    assert reports.outputs == {}
    log = reports.stream("prepare").decode()
    assert log == "retarget: outputs/passwd is not kept: it is a link to a file elsewhere\n"


def test_linked_folders_are_not_followed(harness: RunnerHarness) -> None:
    script = "mkdir deep; echo x > deep/x; ln -s ../deep outputs/deep; ln -s .. outputs/loop"
    assert harness.run("sh", "-c", script).outputs == {}


def test_pipes_and_sockets_do_not_block(harness: RunnerHarness) -> None:
    reports = harness.run("sh", "-c", "mkfifo outputs/pipe logs/pipe; echo x > outputs/x")
    assert reports.finished["outcome"] == "succeeded"
    assert reports.outputs == {"outputs/x": b"x\n"}
    assert b"outputs/pipe is not kept: it is not a regular file" in reports.stream("prepare")


def test_names_that_are_not_utf8_are_escaped(harness: RunnerHarness) -> None:
    code = (
        "import os\n"
        r"for name in (b'outputs/\xff\xfe', 'outputs/ü ?#%'.encode(), b'logs/\xe9.log'):"
        "\n    open(name, 'wb').write(b'x')"
    )
    reports = harness.run("python", "-c", code)
    assert reports.finished["outcome"] == "succeeded"
    expected = {r"outputs/\xff\xfe", "outputs/ü ?#%", r"logs/\xe9.log"}
    assert reports.outputs.keys() == expected
    assert reports.stream(r"logs/\xe9.log") == b"x"


def test_no_two_names_become_one(harness: RunnerHarness) -> None:
    names = [b"\xff", b"\\xff", b"\\\\xff", b"\\\xff", b"\\\\", b"\\", b"a\\b", b"\xff" * 60]
    script = f"for name in {names!r}: open(b'outputs/' + name, 'wb').write(name)"
    reports = harness.run(sys.executable, "-c", script)
    assert sorted(reports.outputs.values()) == sorted(names)
    assert reports.outputs["outputs/a\\b"] == b"a\\b", "escaped only where it could be mistaken"


@given(st.lists(st.binary(min_size=1).filter(lambda name: b"\0" not in name), min_size=2))
def test_different_paths_are_shown_differently(names: list[bytes]) -> None:
    paths = {os.fsdecode(name) for name in names}
    assert len({printable_path(path) for path in paths}) == len(paths)


@given(st.lists(st.text(alphabet="\\xf\udcff", min_size=1, max_size=8), min_size=2))
def test_similar_paths_are_shown_differently(paths: list[str]) -> None:
    assert len({printable_path(path) for path in paths}) == len(set(paths))


def test_outputs_that_were_collected_and_then_removed_are_reported(harness: RunnerHarness) -> None:
    code = (
        "import os, time\n"
        r"names = [b'outputs/plain', b'outputs/\xff']"
        "\nfor name in names: open(name, 'w').close(); os.utime(name, (1, 1))\n"
        "end = time.time() + 60\n"
        "while not os.path.exists('logs/go') and time.time() < end: time.sleep(0.02)\n"
        "for name in names: os.remove(name)"
    )
    launch = harness.launch("python", "-c", code).start()
    harness.receiver.wait(launch.key, lambda reports: len(reports.outputs) == 2, timeout=PATIENCE)
    (launch.folder / "work/logs/go").touch()
    assert launch.finish().finished["removed_outputs"] == ["outputs/plain", r"outputs/\xff"]


def test_files_that_came_with_the_code_are_outputs_only_if_changed(
    harness: RunnerHarness, receiver: Receiver
) -> None:
    files = {"outputs/initial": b"first", "outputs/changed": b"first", "logs/old.log": b"first"}
    snapshot = receiver.add_snapshot(files)
    script = "sleep 0.02; printf CHANG > outputs/changed; printf new > outputs/new"
    reports = harness.run("sh", "-c", script, snapshot=snapshot)
    assert reports.outputs == {"outputs/changed": b"CHANG", "outputs/new": b"new"}


def test_code_with_a_file_where_outputs_must_be_is_refused(
    harness: RunnerHarness, receiver: Receiver
) -> None:
    reports = harness.run("true", snapshot=receiver.add_snapshot({"outputs": b"a file"}))
    assert reports.finished["outcome"] == "failed"
    assert "the folder 'outputs' must be" in reports.finished["reason"]


def test_large_files_and_many_files_arrive_complete(harness: RunnerHarness) -> None:
    code = (
        "import os\n"
        "open('outputs/large', 'wb').write(b'0123456789abcdef' * (5 << 16))\n"
        "for n in range(1200): open(f'outputs/{n}', 'w').write(str(n))"
    )
    reports = harness.run("python", "-c", code)
    assert reports.outputs.pop("outputs/large") == b"0123456789abcdef" * (5 << 16)
    assert reports.outputs == {f"outputs/{n}": str(n).encode() for n in range(1200)}


def test_a_file_that_still_changes_is_not_collected_yet(harness: RunnerHarness) -> None:
    code = (
        "import time\n"
        "with open('outputs/growing', 'w') as file:\n"
        "    for n in range(14): file.write('x'); file.flush(); time.sleep(0.1)"
    )
    launch = harness.launch("python", "-c", code).start()
    launch.finish()
    sent = [request for request in harness.receiver.requests if "outputs" in request]
    assert launch.reports.outputs == {"outputs/growing": b"x" * 14}
    assert len(sent) == 1


def test_a_snapshot_that_would_leave_its_folder_is_refused(
    harness: RunnerHarness, receiver: Receiver
) -> None:
    for path in ("../escaped", "/tmp/escaped", "a/../../escaped"):
        snapshot = receiver.add_snapshot({path: b"x"})
        reports = harness.run("true", snapshot=snapshot)
        assert reports.finished["outcome"] == "failed"
        assert "outside of its folder" in reports.finished["reason"]
    assert not os.path.exists(harness.root / "launches" / "escaped")


def test_outputs_are_sent_again_by_a_runner_that_takes_over(harness: RunnerHarness) -> None:
    harness.receiver.refused.add("outputs")
    launch = harness.launch("sh", "-c", "echo x > outputs/x; exit 2").start()
    harness.receiver.wait(launch.key, lambda reports: "exited" in reports.kinds, timeout=PATIENCE)
    time.sleep(0.1)
    launch.kill()
    harness.receiver.refused.clear()
    assert launch.start().finish().outputs == {"outputs/x": b"x\n"}
