"""What is kept of outputs/ and logs/, and what is not."""

import os
import time

from retarget.testing import Receiver
from tests.runner.workshop import PATIENCE, Workshop


def test_links_to_files_inside_are_kept_as_files(workshop: Workshop) -> None:
    heard = workshop.run("sh", "-c", "echo x > model; ln -s ../model outputs/latest")
    assert heard.outputs == {"outputs/latest": b"x\n"}


def test_links_to_files_elsewhere_are_not_kept_and_that_is_said(workshop: Workshop) -> None:
    script = "ln -s /etc/passwd outputs/passwd; ln -s /nowhere outputs/nothing"
    heard = workshop.run("sh", "-c", script)
    assert heard.outputs == {}
    said = heard.stream("prepare").decode()
    assert said == "retarget: outputs/passwd is not kept: it is a link to a file elsewhere\n"


def test_linked_folders_are_not_followed(workshop: Workshop) -> None:
    script = "mkdir deep; echo x > deep/x; ln -s ../deep outputs/deep; ln -s .. outputs/loop"
    assert workshop.run("sh", "-c", script).outputs == {}


def test_pipes_and_sockets_hold_up_nothing(workshop: Workshop) -> None:
    heard = workshop.run("sh", "-c", "mkfifo outputs/pipe logs/pipe; echo x > outputs/x")
    assert heard.finished["outcome"] == "succeeded"
    assert heard.outputs == {"outputs/x": b"x\n"}
    assert b"outputs/pipe is not kept: it is not a plain file" in heard.stream("prepare")


def test_names_that_are_not_text_are_written_with_escapes(workshop: Workshop) -> None:
    code = (
        "import os\n"
        r"for name in (b'outputs/\xff\xfe', 'outputs/ü ?#%'.encode(), b'logs/\xe9.log'):"
        "\n    open(name, 'wb').write(b'x')"
    )
    heard = workshop.run("python", "-c", code)
    assert heard.finished["outcome"] == "succeeded"
    expected = {r"outputs/\xff\xfe", "outputs/ü ?#%", r"logs/\xe9.log"}
    assert heard.outputs.keys() == expected
    assert heard.stream(r"logs/\xe9.log") == b"x"


def test_what_was_collected_and_then_removed_is_told(workshop: Workshop) -> None:
    code = (
        "import os, time\n"
        r"names = [b'outputs/plain', b'outputs/\xff']"
        "\nfor name in names: open(name, 'w').close(); os.utime(name, (1, 1))\n"
        "end = time.time() + 60\n"
        "while not os.path.exists('logs/go') and time.time() < end: time.sleep(0.02)\n"
        "for name in names: os.remove(name)"
    )
    work = workshop.launch("python", "-c", code).start()
    workshop.receiver.wait(
        work.launch.key, lambda heard: len(heard.outputs) == 2, patience=PATIENCE
    )
    (work.folder / "work/logs/go").touch()
    assert work.finish().finished["gone"] == ["outputs/plain", r"outputs/\xff"]


def test_files_that_came_with_the_code_are_no_outputs_unless_changed(
    workshop: Workshop, receiver: Receiver
) -> None:
    files = {"outputs/given": b"given", "outputs/changed": b"given", "logs/given.log": b"given"}
    snapshot = receiver.snapshot(files)
    script = "sleep 0.02; printf CHANG > outputs/changed; printf new > outputs/new"
    heard = workshop.run("sh", "-c", script, snapshot=snapshot)
    assert heard.outputs == {"outputs/changed": b"CHANG", "outputs/new": b"new"}


def test_code_with_a_file_where_outputs_must_be_is_refused(
    workshop: Workshop, receiver: Receiver
) -> None:
    heard = workshop.run("true", snapshot=receiver.snapshot({"outputs": b"a file"}))
    assert heard.finished["outcome"] == "failed"
    assert "the folder 'outputs' must be" in heard.finished["reason"]


def test_large_and_many_files_come_whole(workshop: Workshop) -> None:
    code = (
        "import os\n"
        "open('outputs/large', 'wb').write(b'0123456789abcdef' * (5 << 16))\n"
        "for n in range(1200): open(f'outputs/{n}', 'w').write(str(n))"
    )
    heard = workshop.run("python", "-c", code)
    assert heard.outputs.pop("outputs/large") == b"0123456789abcdef" * (5 << 16)
    assert heard.outputs == {f"outputs/{n}": str(n).encode() for n in range(1200)}


def test_a_file_that_still_changes_is_not_taken_yet(workshop: Workshop) -> None:
    code = (
        "import time\n"
        "with open('outputs/growing', 'w') as file:\n"
        "    for n in range(14): file.write('x'); file.flush(); time.sleep(0.1)"
    )
    work = workshop.launch("python", "-c", code).start()
    work.finish()
    sent = [request for request in workshop.receiver.requests if "outputs" in request]
    assert work.heard.outputs == {"outputs/growing": b"x" * 14}
    assert len(sent) == 1


def test_a_snapshot_that_would_leave_its_folder_is_refused(
    workshop: Workshop, receiver: Receiver
) -> None:
    for path in ("../escaped", "/tmp/escaped", "a/../../escaped"):
        snapshot = receiver.snapshot({path: b"x"})
        heard = workshop.run("true", snapshot=snapshot)
        assert heard.finished["outcome"] == "failed"
        assert "outside of its folder" in heard.finished["reason"]
    assert not os.path.exists(workshop.root / "launches" / "escaped")


def test_outputs_are_sent_again_by_a_runner_that_takes_over(workshop: Workshop) -> None:
    workshop.receiver.refuses.add("outputs")
    work = workshop.launch("sh", "-c", "echo x > outputs/x; exit 2").start()
    workshop.receiver.wait(
        work.launch.key, lambda heard: "exited" in heard.kinds, patience=PATIENCE
    )
    time.sleep(0.1)
    work.kill()
    workshop.receiver.refuses.clear()
    assert work.start().finish().outputs == {"outputs/x": b"x\n"}
