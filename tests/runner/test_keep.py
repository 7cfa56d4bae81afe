"""What is kept of the files that a script writes outside of outputs/ and logs/."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from retarget.runner.folder import Folder
from retarget.runner.keep import choose
from retarget.runner.script_start import mark_start
from retarget.runner.written_files import TOO_MANY, UNREADABLE, Missed, Written, find_written
from retarget.testing import Receiver, Reports
from tests.runner.harness import PATIENCE, RunnerHarness

LIMIT = 10_000


def _kept(reports: Reports) -> dict[str, Any]:
    events = [event for event in reports.events if event["kind"] == "kept"]
    assert len(events) == 1, reports.kinds
    return events[0]


def _run(harness: RunnerHarness, script: str, *keep: str, **more: Any) -> Reports:
    reports = harness.run("sh", "-c", script, keep=keep, keep_limit=LIMIT, **more)
    assert reports.finished["outcome"] == "succeeded", reports.finished["reason"]
    return reports


def _missed(reports: Reports) -> dict[str, str]:
    return {row["path"]: row["reason"] for row in _kept(reports)["missed"]}


def test_new_files_and_those_that_were_written_again_are_kept_and_others_are_not(
    harness: RunnerHarness, receiver: Receiver
) -> None:
    files: dict[str, bytes] = dict.fromkeys(
        ("read", "made-executable", "rewritten", "same-size", "longer"), b"first"
    )
    script = (
        "sleep 0.1; mkdir deep; echo x > deep/new; cat read; chmod +x made-executable;"
        "printf first > rewritten;"
        "printf FIRST > same-size; printf more >> longer; echo x > outputs/x; echo x > logs/x"
    )
    reports = _run(harness, script, snapshot=receiver.add_snapshot(files))
    kept = {path: content for path, content in reports.outputs.items() if "workdir" in path}
    assert kept == {
        "workdir/deep/new": b"x\n",
        "workdir/rewritten": b"first",
        "workdir/same-size": b"FIRST",
        "workdir/longer": b"firstmore",
    }
    assert _kept(reports)["paths"] == ["deep/new", "longer", "rewritten", "same-size"]
    assert (_kept(reports)["files"], _kept(reports)["size"]) == (4, 21)
    assert reports.kinds.index("kept") < reports.kinds.index("finished")


def test_a_job_that_writes_nothing_else_reports_nothing(
    harness: RunnerHarness, receiver: Receiver
) -> None:
    reports = _run(
        harness, "cat code; echo x > outputs/x", snapshot=receiver.add_snapshot({"code": b""})
    )
    assert "kept" not in reports.kinds
    assert reports.outputs == {"outputs/x": b"x\n"}


def test_the_files_of_a_failed_script_are_kept_too(harness: RunnerHarness) -> None:
    script = "echo x > checkpoint; exit 3"
    reports = harness.run("sh", "-c", script, keep=(), keep_limit=LIMIT)
    assert reports.finished["exit_code"] == 3
    assert reports.outputs == {"workdir/checkpoint": b"x\n"}


def test_the_smallest_files_are_kept_up_to_the_limit(harness: RunnerHarness) -> None:
    script = "for n in 6000 10 3000 2000; do head -c $n /dev/zero > f$n; done"
    reports = _run(harness, script)
    assert reports.outputs.keys() == {"workdir/f10", "workdir/f2000", "workdir/f3000"}
    rows = _kept(reports)["missed"]
    assert rows == [{"path": "f6000", "files": 1, "size": 6000, "reason": "over the limit"}]


def test_keep_all_has_no_limit_and_keep_none_keeps_nothing(harness: RunnerHarness) -> None:
    script = "head -c 3000000 /dev/zero > large; echo x > small"
    assert _run(harness, script, "all").outputs.keys() == {"workdir/large", "workdir/small"}
    reports = _run(harness, script, "none")
    assert (reports.outputs, "kept" in reports.kinds) == ({}, False)


def test_patterns_choose_without_a_limit_and_say_if_they_match_nothing(
    harness: RunnerHarness,
) -> None:
    script = "mkdir -p a/b; head -c 20000 /dev/zero > a/b/m.pt; echo x > n.pt; echo x > a/other"
    reports = _run(harness, script, "*.pt", "runs/**", "*.ckpt")
    assert reports.outputs.keys() == {"workdir/a/b/m.pt", "workdir/n.pt"}
    assert _kept(reports)["unmatched"] == ["runs/**", "*.ckpt"]
    assert _kept(reports)["missed"] == []


def test_caches_environments_and_default_exclusions_are_never_kept(
    harness: RunnerHarness,
) -> None:
    script = (
        "mkdir -p venv tagged __pycache__ .git .cache/hub wandb/run .aws;"
        "touch venv/pyvenv.cfg tagged/CACHEDIR.TAG __pycache__/x.pyc .git/x .cache/hub/x m.pyc;"
        "touch venv/x tagged/x; echo 12345 > wandb/run/log; echo x > .env; echo x > .aws/key;"
        "echo x > key.pem; echo x > .env.example"
    )
    for keep in ((), ("all",)):
        reports = _run(harness, script, *keep)
        assert reports.outputs == {"workdir/.env.example": b"x\n"}
        assert _missed(reports).keys() == {"wandb/", ".env", ".aws/", "key.pem"}
        assert set(_missed(reports).values()) == {"excluded by default"}
        assert {"path": "wandb/", "files": 1, "size": 6}.items() <= _kept(reports)["missed"][
            0
        ].items()


def test_links_pipes_and_sockets_are_named_and_not_followed(harness: RunnerHarness) -> None:
    code = (
        "import os, socket\n"
        "os.symlink('/etc/passwd', 'passwd'); os.symlink('/', 'root'); os.mkfifo('pipe')\n"
        "socket.socket(socket.AF_UNIX).bind('socket'); open('x', 'w').close()"
    )
    reports = harness.run("python", "-c", code, keep=(), keep_limit=LIMIT)
    assert reports.outputs == {"workdir/x": b""}
    links = dict.fromkeys(("passwd", "root"), "it is a link")
    assert _missed(reports) == links | dict.fromkeys(("pipe", "socket"), "it is not a regular file")


def test_files_beside_the_code_folder_are_named(harness: RunnerHarness) -> None:
    reports = _run(
        harness,
        "mkdir -p ../results/deep; printf 123 > ../results/a; printf 45 > ../results/deep/b;"
        "printf 6 > ../model.pkl; ln -s / ../root; mkdir ../empty; printf 7 > mine",
    )
    assert _missed(reports) == dict.fromkeys(
        ("../results/", "../model.pkl", "../root"), "outside the code folder"
    )
    rows = {row["path"]: (row["files"], row["size"]) for row in _kept(reports)["missed"]}
    assert (rows["../results/"], rows["../model.pkl"]) == ((2, 5), (1, 1))
    assert _kept(reports)["paths"] == ["mine"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_what_cannot_be_read_is_named(harness: RunnerHarness) -> None:
    script = "mkdir d; echo x > d/x; chmod 0 d; echo x > f; chmod 0 f; echo x > ok"
    launch = harness.launch("sh", "-c", script, keep=(), keep_limit=LIMIT)
    reports = launch.finish()
    (launch.folder / "work/d").chmod(0o700)
    assert reports.outputs == {"workdir/ok": b"x\n"}
    assert _missed(reports) == {"d/": "it cannot be read", "f": "it cannot be read"}


def test_patterns_do_not_hide_that_files_were_not_looked_at() -> None:
    missed = [
        Missed("*", 100_000, 5, TOO_MANY),
        Missed("d/", 0, 0, UNREADABLE),
        Missed("other/", 0, 0, UNREADABLE),
        Missed("f", 1, 0, UNREADABLE),
    ]
    choice = choose(Written([], missed), ["/d/*.pt"], LIMIT)
    assert [row.path for row in choice.missed] == ["*", "d/"]
    assert choice.unmatched == ["/d/*.pt"]


def test_odd_names_are_kept_and_overlong_paths_are_named(harness: RunnerHarness) -> None:
    code = (
        "import os\n"
        r"open(b'\xff\xfe', 'w').close(); open('ü\n*', 'w').close()"
        "\nfor n in range(6): os.mkdir('d' * 200); os.chdir('d' * 200)\n"
        "open('x', 'w').close()"
    )
    reports = harness.run("python", "-c", code, keep=(), keep_limit=LIMIT)
    assert reports.outputs.keys() == {r"workdir/\xff\xfe", "workdir/ü\n*"}
    assert list(_missed(reports).values()) == ["its path is too long"]


def test_a_secret_in_a_file_name_is_masked(harness: RunnerHarness) -> None:
    harness.receiver.secrets = {"API_KEY": "s3cr3t-value"}
    script = 'echo x > "run-$API_KEY.txt"; ln -s x "link-$API_KEY"'
    reports = _run(harness, script, secrets=("API_KEY",))
    assert reports.outputs.keys() == {"workdir/run-____________.txt"}
    assert "s3cr3t" not in f"{reports.outputs} {reports.events}"


def test_many_small_files_arrive_complete(harness: RunnerHarness) -> None:
    code = "for n in range(2500): open(f'f{n}', 'w').write(str(n))"
    reports = harness.run("python", "-c", code, keep=("all",))
    assert reports.outputs == {f"workdir/f{n}": str(n).encode() for n in range(2500)}
    assert (_kept(reports)["files"], len(_kept(reports)["paths"])) == (2500, 20)


def test_a_killed_runner_neither_loses_nor_repeats_what_it_kept(harness: RunnerHarness) -> None:
    harness.receiver.refused.add("outputs")
    script = "head -c 2000000 /dev/zero > large; echo x > small; echo x > outputs/x"
    launch = harness.launch("sh", "-c", script, keep=("all",)).start()
    harness.receiver.wait(launch.key, lambda reports: "exited" in reports.kinds, timeout=PATIENCE)
    launch.kill()
    harness.receiver.refused.clear()
    reports = launch.start().finish()
    assert reports.outputs.keys() == {"outputs/x", "workdir/large", "workdir/small"}
    assert _kept(reports)["files"] == 2


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.05, 0.1, 0.2, 0.4])
def test_a_runner_killed_at_any_moment_of_the_end_keeps_everything(
    harness: RunnerHarness, delay: float
) -> None:
    code = (
        "for n in range(300): open(f'f{n}', 'w').write(str(n))\n"
        "for n in range(4): open(f'large{n}', 'wb').write(b'x' * (2 << 20))"
    )
    launch = harness.launch("python", "-c", code, keep=("all",)).start()
    harness.receiver.wait(launch.key, lambda reports: "exited" in reports.kinds, timeout=PATIENCE)
    time.sleep(delay)
    launch.kill()
    if not (launch.folder / "done").exists():
        launch.start().finish()
    assert len(launch.reports.outputs) == 304
    assert launch.reports.outputs["workdir/large3"] == b"x" * (2 << 20)
    assert _kept(launch.reports)["files"] == 304


def test_a_file_that_vanishes_or_shrinks_does_not_fail_the_job(harness: RunnerHarness) -> None:
    """The list of a killed runner names files that have changed since."""
    harness.receiver.refused.add("outputs")
    script = "for f in gone shorter longer; do head -c 2000 /dev/zero > $f; done"
    launch = harness.launch("sh", "-c", script, keep=(), keep_limit=LIMIT).start()
    deadline = time.monotonic() + PATIENCE
    while not (launch.folder / "keep.json").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    launch.kill()
    work = launch.folder / "work"
    (work / "gone").unlink()
    (work / "shorter").write_bytes(b"x")
    (work / "longer").write_bytes(b"x" * 3 * LIMIT)
    harness.receiver.refused.clear()
    reports = launch.start().finish()
    assert reports.finished["outcome"] == "succeeded"
    assert reports.outputs == {"workdir/shorter": b"x"}
    assert _missed(reports) == {"gone": "it cannot be read", "longer": "over the limit"}


def test_files_that_were_there_before_the_script_are_not_its(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    (tmp_path / "launch.json").touch()
    (tmp_path / "work").mkdir()
    (tmp_path / "work/prepared").touch()
    time.sleep(0.05)
    mark_start(folder)
    time.sleep(0.05)
    (tmp_path / "work/written").touch()
    written = find_written(folder, {"snapshot": None}, {"cache": str(tmp_path)})
    assert [file.path for file in written.files] == ["written"]
