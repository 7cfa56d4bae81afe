"""`retarget job …` on real jobs."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.runner.harness import wheel

Cli = Callable[..., subprocess.CompletedProcess[str]]
COMMAND = str(Path(sys.executable).parent / "retarget")


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "hello.py").write_text("print('hello')")
    (folder / "sleep.py").write_text("import time; print('begun', flush=True); time.sleep(60)")
    (folder / "model.py").write_text(
        "import os; os.mkdir('outputs/deep'); open('outputs/deep/er.bin', 'wb').write(b'\\0\\1')\n"
        "open('outputs/model.txt', 'w').write('weights'); open('logs/own.log', 'w').write('own')"
    )
    return folder


def test_jobs_are_listed_newest_first_and_filtered(retarget: Cli, code: Path) -> None:
    for name, experiment in (("one", "a"), ("two", "b"), ("three", "b")):
        retarget("run", "--name", name, "--experiment", experiment, "hello.py", cwd=code)
    rows = json.loads(retarget("job", "list", "--json").stdout)
    assert [row["name"] for row in rows] == ["three", "two", "one"]
    assert {"name", "state", "reason", "target"} <= rows[0].keys()
    assert rows[0]["state"] == "succeeded"
    filtered = retarget("job", "list", "--json", "--experiment", "b", "--limit", "1")
    assert [row["name"] for row in json.loads(filtered.stdout)] == ["three"]
    assert json.loads(retarget("job", "list", "--json", "--state", "failed").stdout) == []
    table = retarget("job", "list").stdout.splitlines()
    assert table[0].split() == ["NAME", "STATE", "COMMAND", "EXPERIMENT", "AGE", "TOOK"]
    assert table[1].startswith("three")
    wrong = retarget("job", "list", "--state", "happy")
    assert (wrong.returncode, "queued" in wrong.stderr) == (2, True)


LONG = "a-name-of-62-characters-which-is-about-as-long-as-one-may-be-x"


def test_tables_fit_80_columns(retarget: Cli, code: Path) -> None:
    (code / "fail.py").write_text("import sys; sys.exit(3)")
    retarget("run", "--name", LONG, "--experiment", "trial", "fail.py", cwd=code)
    retarget("run", "--name", "short", "--retries", "1", "fail.py", cwd=code)
    header, short, long = on_screen("job", "list")
    assert header.split()[:2] == ["NAME", "STATE"]
    assert "EXPERIMENT" not in header
    assert long.split()[:2] == [LONG, "failed"]
    assert short.split()[:2] == ["short", "failed"]
    assert long.endswith("…")
    header, _, long = on_screen("job", "list", columns=73)
    assert (header[-1], long[-1]) == ("…", "…")
    assert long.split()[:2] == [LONG, "failed"]
    retarget("job", "delete", LONG)
    [header, short] = on_screen("job", "list")
    assert header.split() == ["NAME", "STATE", "COMMAND", "AGE", "TOOK", "REASON"]
    shown = on_screen("job", "show", "short")
    assert any(line.split(maxsplit=1) == ["attempts", "2 (2 failed)"] for line in shown)
    start = shown.index("attempts")
    assert shown[start + 1].split() == ["#", "TARGET", "STARTED", "TOOK", "EXIT", "REASON"]
    assert re.match(r"1  local   \S+ \S+  \S+ m?s +3     the script ended", shown[start + 2])
    assert on_screen("target", "list")[0].split()[0] == "NAME"
    assert not [line for line in on_screen("target", "show", "local") if re.search(r'["{[]', line)]


def test_a_reason_wraps_beside_the_other_columns(retarget: Cli, code: Path) -> None:
    command = ("sh", "-c", "kill -9 $$")
    retarget("run", "--name", "k", "--timeout", "1", "--", "sleep", "30", cwd=code)
    retarget("run", "--name", LONG, "--", *command, cwd=code)
    for name in ("k", LONG):
        shown = on_screen("job", "show", name, columns=70)
        row = shown[shown.index("attempts") + 2]
        assert re.match(r"1  .*20\d\d-\d\d-\d\d \d\d:\d\d:\d\d  ", row)
        assert "…" not in "".join(shown)


def test_a_pipe_gets_whole_lines_without_blanks_at_their_end(retarget: Cli, code: Path) -> None:
    (code / "requirements.txt").write_text("# nothing\n")
    for name, experiment in ((LONG, "Default"), ("two", "Default")):
        retarget("run", "--name", name, "--experiment", experiment, "hello.py", cwd=code)
    plain = retarget("job", "list").stdout.splitlines()
    assert plain[0].split() == ["NAME", "STATE", "COMMAND", "AGE", "TOOK"]
    retarget("run", "--name", "x", "--experiment", "e" * 60, "--", "sh", "-c", "exit 9", cwd=code)
    for args in (("job", "list"), ("job", "show", "x"), ("target", "list"), ("target", "kinds")):
        text = retarget(*args).stdout
        assert [line for line in text.splitlines() if line != line.rstrip()] == []
        assert "…" not in text
    assert "e" * 60 in retarget("job", "list").stdout


def test_a_mistyped_job_gets_a_suggestion(retarget: Cli, code: Path) -> None:
    retarget("run", "--name", "night-1", "hello.py", cwd=code)
    for args in (("show", "nigth-1"), ("delete", "nigth-1")):
        done = retarget("job", *args)
        assert done.returncode == 1
        assert done.stderr == "error: no job named 'nigth-1'; did you mean 'night-1'?\n"


def on_screen(*args: str, columns: int = 80) -> list[str]:
    """Return the lines that a command shows on a terminal; none may be wider than it."""
    master, terminal = pty.openpty()
    size = struct.pack("HHHH", 24, columns, 0, 0)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    child = subprocess.Popen(
        [COMMAND, *args], stdin=terminal, stdout=terminal, env=env | {"TERM": "xterm"}
    )
    os.close(terminal)
    shown = b""
    with suppress(OSError):  # Linux raises it when the other side is closed
        while piece := os.read(master, 65536):
            shown += piece
    os.close(master)
    assert child.wait(timeout=200) == 0
    lines = re.sub(r"\x1b\[[\d;]*m", "", shown.decode()).replace("\r", "").splitlines()
    assert [line for line in lines if len(line.rstrip()) > columns] == []
    return [line.rstrip() for line in lines]


def test_show_prints_everything_about_a_job(retarget: Cli, code: Path) -> None:
    retarget("run", "--name", "m", "--env", "A=[bold]", "model.py", cwd=code)
    shown = retarget("job", "show", "m").stdout
    for text in (
        "succeeded",
        "python model.py",
        "1 CPU",
        "outputs/model.txt",
        "queued",
        "A=[bold]",
    ):
        assert text in shown
    view = json.loads(retarget("job", "show", "m", "--json").stdout)
    assert (view["state"], view["exit_code"], len(view["attempts"])) == ("succeeded", 0, 1)


def test_logs_and_their_streams(retarget: Cli, code: Path) -> None:
    retarget("run", "--name", "h", "hello.py", cwd=code)
    assert retarget("job", "logs", "h").stdout == "hello\n"
    assert retarget("job", "logs", "h", "-f").stdout == "hello\n"
    assert retarget("job", "logs", "h", "--stream", "output", "-f").stdout == "hello\n"
    assert retarget("job", "logs", "h", "--attempt", "1").stdout == "hello\n"
    assert retarget("job", "logs", "h", "--attempt", "9").returncode == 1
    retarget("run", "--name", "m", "model.py", cwd=code)
    assert retarget("job", "logs", "m", "--file", "own.log").stdout == "own"
    assert retarget("job", "logs", "m", "--file", "logs/own.log").stdout == "own"
    refused = retarget("job", "logs", "m", "--file", "own.log", "--rank", "1")
    assert refused.returncode == 2


def test_logs_of_one_rank(retarget: Cli, code: Path) -> None:
    (code / "rank.py").write_text("import os; print('I am', os.environ['RANK'])")
    retarget("run", "--name", "r", "--processes-per-node", "2", "rank.py", cwd=code)
    assert retarget("job", "logs", "r", "--rank", "1").stdout == "I am 1\n"
    assert sorted(retarget("job", "logs", "r").stdout.splitlines()) == [
        "[rank 0] I am 0",
        "[rank 1] I am 1",
    ]
    assert retarget("job", "logs", "r", "--rank", "0", "-f").stdout == "I am 0\n"


def test_outputs_are_listed_and_downloaded(retarget: Cli, code: Path, tmp_path: Path) -> None:
    retarget("run", "--name", "m", "model.py", cwd=code)
    listed = json.loads(retarget("job", "outputs", "m", "outputs", "--json").stdout)
    assert [row["path"] for row in listed] == ["outputs/deep/er.bin", "outputs/model.txt"]
    everything = json.loads(retarget("job", "outputs", "m", "--json").stdout)
    assert [row for row in everything if row["path"].startswith("outputs/")] == listed
    assert "outputs/model.txt" in retarget("job", "outputs", "m").stdout
    done = retarget("job", "outputs", "m", "--download", tmp_path / "got")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "got/outputs/model.txt").read_text() == "weights"
    assert (tmp_path / "got/outputs/deep/er.bin").read_bytes() == b"\0\1"
    retarget("job", "outputs", "m", "outputs/model.txt", "--download", tmp_path / "one")
    files = {path for path in (tmp_path / "one").rglob("*") if path.is_file()}
    assert files == {tmp_path / "one/.retarget-download", tmp_path / "one/outputs/model.txt"}
    missing = retarget("job", "outputs", "m", "outputs/none")
    assert missing.returncode == 1
    assert "outputs/model.txt" in missing.stderr


def test_a_download_replaces_no_file_of_the_user(retarget: Cli, code: Path, tmp_path: Path) -> None:
    retarget("run", "--name", "m", "model.py", cwd=code)
    file = tmp_path / "mine/outputs/model.txt"
    file.parent.mkdir(parents=True)
    file.write_text("my work")
    download = ("job", "outputs", "m", "--download", tmp_path / "mine")
    refused = retarget(*download)
    assert refused.returncode == 1
    assert f"{file} already exists with different content" in refused.stderr
    assert "--force" in refused.stderr
    assert [path for path in (tmp_path / "mine").rglob("*") if path.is_file()] == [file]
    assert file.read_text() == "my work"
    forced = retarget(*download, "--force")
    assert f"replaced {file}, which had different content" in forced.stderr
    assert file.read_text() == "weights"
    assert "replaced" not in retarget(*download).stderr


def test_a_download_replaces_only_what_a_download_wrote(retarget: Cli, code: Path) -> None:
    script = "import sys; [open(f'outputs/{n}', 'w').write(sys.argv[1]) for n in 'abc']"
    (code / "three.py").write_text(script)
    ran = retarget("run", "--name", "m1", "three.py", "--", "one", cwd=code)
    assert ran.returncode == 0, ran.stderr
    retarget("run", "--name", "m2", "three.py", "--", "second", cwd=code)
    first = retarget("job", "outputs", "m1", "--download", ".", cwd=code)
    assert first.returncode == 0, first.stderr
    again = retarget("job", "outputs", "m2", "--download", ".", cwd=code)
    names = "outputs/a, outputs/b, outputs/c"
    assert f"replaced {names}, which had different content" in again.stderr
    assert (code / "outputs/b").read_text() == "second"

    (code / "outputs/a").write_text("edited")
    (code / "outputs/b").unlink()
    edited = retarget("job", "outputs", "m1", "--download", ".", cwd=code)
    assert (edited.returncode, "replaced" in edited.stderr) == (1, False)
    assert "outputs/a already exists with different content" in edited.stderr
    assert (code / "outputs/a").read_text() == "edited"
    assert not (code / "outputs/b").exists()


def test_a_file_of_the_user_among_downloads_is_not_replaced(retarget: Cli, code: Path) -> None:
    retarget("run", "--name", "m", "model.py", cwd=code)
    download = ("job", "outputs", "m", "--download", ".")
    retarget(*download[:3], "outputs/model.txt", *download[3:], cwd=code)
    own = code / "outputs/deep/er.bin"
    own.parent.mkdir()
    own.write_text("mine")
    refused = retarget(*download, cwd=code)
    assert (refused.returncode, own.read_text()) == (1, "mine")
    assert "outputs/deep/er.bin already exists" in refused.stderr
    mark = code / "outputs/.retarget-download"
    mark.write_text("Written by `retarget job outputs --download`.\n")  # as older versions did
    own.unlink()
    (code / "outputs/model.txt").write_text("older download, or mine")
    assert retarget(*download, cwd=code).returncode == 1
    assert retarget(*download, "--force", cwd=code).returncode == 0
    assert (code / "outputs/model.txt").read_text() == "weights"


def test_cancel_and_wait(retarget: Cli, code: Path) -> None:
    retarget("run", "-d", "--name", "s", "sleep.py", cwd=code)
    assert retarget("job", "cancel", "s").returncode == 0
    done = retarget("job", "wait", "s")
    assert done.returncode == 130
    assert "canceled" in done.stderr
    repeated = retarget("job", "cancel", "s")
    assert repeated.returncode == 1
    assert "s" in repeated.stderr


def test_several_jobs_are_canceled_and_each_failure_is_reported(retarget: Cli, code: Path) -> None:
    retarget("run", "-d", "--name", "s", "sleep.py", cwd=code)
    done = retarget("job", "cancel", "nobody", "s")
    assert done.returncode == 1
    assert "nobody" in done.stderr
    assert retarget("job", "wait", "s").returncode == 130


def test_rerun_runs_the_same_code_again(retarget: Cli, code: Path) -> None:
    retarget("run", "--name", "h", "hello.py", cwd=code)
    (code / "hello.py").write_text("print('changed since')")
    done = retarget("job", "rerun", "h", "--name", "again")
    assert (done.returncode, done.stdout) == (0, "hello\n")
    detached = retarget("job", "rerun", "h", "-d", "--name", "third")
    assert detached.stdout == "third\n"
    assert retarget("job", "wait", "third").returncode == 0


def test_why_names_the_jobs_ahead_in_the_queue(retarget: Cli, code: Path) -> None:
    cpus = str(os.cpu_count())
    retarget("run", "-d", "--name", "first", "--cpus", cpus, "sleep.py", cwd=code)
    retarget("run", "-d", "--name", "second", "--cpus", cpus, "sleep.py", cwd=code)
    retarget("run", "-d", "--name", "third", "--cpus", cpus, "sleep.py", cwd=code)
    while not (why := json.loads(retarget("job", "why", "third", "--json").stdout))["behind"]:
        time.sleep(0.05)
    assert why["state"] == "queued"
    assert why["behind"]
    assert "queued" in retarget("job", "why", "third").stdout
    timing = retarget("job", "show", "third", "--timing")
    assert "queued: waiting" in timing.stdout + timing.stderr
    assert "no matching jobs" in retarget("job", "list", "--state", "failed").stderr
    retarget("job", "cancel", "third", "second", "first")
    assert retarget("job", "wait", "first").returncode == 130


def test_delete_removes_only_jobs_that_have_ended(retarget: Cli, code: Path) -> None:
    retarget("run", "--name", "h", "hello.py", cwd=code)
    retarget("run", "-d", "--name", "s", "sleep.py", cwd=code)
    refused = retarget("job", "delete", "s")
    assert refused.returncode == 1
    assert retarget("job", "delete", "h").returncode == 0
    assert retarget("job", "show", "h").returncode == 1
    retarget("job", "cancel", "s")
    retarget("job", "wait", "s")


def test_delete_asks_on_a_terminal(retarget: Cli, code: Path) -> None:
    retarget("run", "--name", "h", "hello.py", cwd=code)
    master, terminal = pty.openpty()
    with subprocess.Popen(
        [COMMAND, "job", "delete", "h"], stdin=terminal, stderr=terminal
    ) as child:
        os.write(master, b"n\n")
        assert child.wait(timeout=200) == 1
    assert retarget("job", "show", "h").returncode == 0
    with subprocess.Popen(
        [COMMAND, "job", "delete", "h"], stdin=terminal, stderr=terminal
    ) as child:
        os.write(master, b"y\n")
        assert child.wait(timeout=200) == 0
    os.close(master)
    os.close(terminal)


def test_an_unknown_job_is_one_sentence(retarget: Cli) -> None:
    done = retarget("job", "show", "nobody")
    assert (done.returncode, done.stdout) == (1, "")
    assert "nobody" in done.stderr
    assert done.stderr.count("\n") == 1


def test_targets_are_listed_shown_and_checked(retarget: Cli) -> None:
    [row] = json.loads(retarget("target", "list", "--json").stdout)
    assert (row["name"], row["kind"]) == ("local", "local")
    assert json.loads(retarget("target", "show", "local", "--json").stdout)["name"] == "local"
    assert json.loads(retarget("target", "check", "local", "--json").stdout)["reason"] == ""
    assert "local" in [
        row["kind"] for row in json.loads(retarget("target", "kinds", "--json").stdout)
    ]
    for args in (("list",), ("show", "local"), ("check", "local"), ("kinds",)):
        done = retarget("target", *args)
        assert (done.returncode, "local" in done.stdout) == (0, True), done.stderr
    assert retarget("target", "show", "mars").returncode == 1


def test_environments_are_built_listed_and_deleted(retarget: Cli, code: Path) -> None:
    # an empty environment needs no package index
    (code / "requirements.txt").write_text("# nothing\n")
    assert json.loads(retarget("environment", "list", "--json").stdout) == []
    built = retarget(
        "environment", "build", code / "requirements.txt", "--name", "bare", timeout=200
    )
    assert built.returncode == 0, built.stderr
    [row] = json.loads(retarget("env", "list", "--json").stdout)
    assert row["name"] == "bare"
    assert json.loads(retarget("job", "list", "--json").stdout) == []
    assert built.stderr.splitlines()[-1] == "built on local"
    assert "job show" not in built.stderr  # the job is deleted
    assert "jobs" not in retarget("server", "status").stdout
    assert [build["target"] for build in row["built"]] == ["local"]
    assert "bare" in retarget("env", "list").stdout
    header, row = on_screen("env", "list")
    assert header.split() == ["NAME", "DIGEST", "PYTHON", "BUILT", "ON", "SIZE", "PACKAGES"]
    assert row.split()[0] == "bare:1"
    assert "bare" in retarget("env", "show", "bare").stdout
    (code / "where.py").write_text("import sys; print(sys.prefix != sys.base_prefix)")
    assert retarget("run", "-e", "bare", "where.py", cwd=code).stdout == "True\n"
    pinned = retarget("run", "-e", "bare:1", "--name", "pinned", "where.py", cwd=code)
    assert pinned.stdout == "True\n"
    assert "bare:1: no packages" in retarget("job", "show", "pinned").stdout
    unknown = retarget("run", "-e", "bare:7", "where.py", cwd=code)
    assert "environment 'bare' has no version 7; it has 1" in unknown.stderr
    retarget("env", "build", code / "requirements.txt", "--name", "again", timeout=200)
    assert "from" not in retarget("env", "delete", "again").stderr
    assert [row["name"] for row in json.loads(retarget("env", "list", "--json").stdout)] == ["bare"]
    deleted = retarget("env", "delete", "bare")
    assert (deleted.returncode, deleted.stderr) == (0, "deleted bare from local\n")
    assert json.loads(retarget("env", "list", "--json").stdout) == []
    assert retarget("env", "build").returncode == 2


def test_a_package_that_was_dropped_is_not_listed_as_installed(
    retarget: Cli, code: Path, tmp_path: Path
) -> None:
    wheel(tmp_path / "wheels")
    pip = f"pip: [--no-index, --find-links {tmp_path}/wheels]"
    (code / "conda.yml").write_text(f"dependencies: [tinypkg, gcc_linux-64, {pip}]\n")
    built = retarget("environment", "build", "conda.yml", "--conda-from-pypi", cwd=code)
    assert built.returncode == 0, built.stderr
    assert built.stderr.splitlines()[0].endswith("without gcc_linux-64 (--conda-from-pypi)")
    [row] = retarget("environment", "list").stdout.splitlines()[1:]
    assert row.endswith("; without gcc_linux-64")
    assert "gcc" not in row.partition(";")[0]
    digest = json.loads(retarget("environment", "list", "--json").stdout)[0]["digest"]
    shown = retarget("environment", "show", digest).stdout
    assert "from PyPI, as requested; without gcc_linux-64\n" in shown


@pytest.mark.parametrize(
    ("options", "ending"),
    [
        (
            (),
            " (the conda channels cannot be used: channel http://127.0.0.1:9/channel cannot be "
            "reached: ",
        ),
        (("--conda-from-pypi",), "; without gcc_linux-64, x264 (--conda-from-pypi)\n"),
    ],
    ids=["unreachable", "as-requested"],
)
def test_the_notice_about_conda_names_each_package(
    retarget: Cli, code: Path, tmp_path: Path, options: Sequence[str], ending: str
) -> None:
    pytest.importorskip("rattler")
    for name in ("tinypkg", "otherpkg"):
        wheel(tmp_path / "wheels", name=name)
    only_conda = "gcc_linux-64, x264, " if options else ""
    (code / "conda.yml").write_text(
        "channels: ['http://127.0.0.1:9/channel']\n"  # nothing listens there
        f"dependencies: [otherpkg>=1, tinypkg, {only_conda}"
        f"{{pip: [--no-index, --find-links {tmp_path}/wheels]}}]\n"
    )
    (code / "hello.py").write_text("import otherpkg, tinypkg; print(tinypkg.VERSION)")
    command = ("run", "-e", "conda.yml", *options, "--name", "a", "hello.py")
    done = retarget(*command, cwd=code, timeout=200)
    assert (done.returncode, done.stdout) == (0, "1.0\n"), done.stderr
    notice = f"built from PyPI instead of conda channels: otherpkg>=1, tinypkg{ending}"
    assert notice in done.stderr
    shown = retarget("job", "show", "a").stdout
    assert re.search(rf"^notice +{re.escape(notice)}", shown, re.M), shown


def test_an_environment_is_updated_as_a_new_version(retarget: Cli, code: Path) -> None:
    (code / "requirements.txt").write_text("# nothing\n")
    built = retarget(
        "environment", "build", code / "requirements.txt", "--name", "again", timeout=200
    )
    assert "registered as again:1\n" in built.stderr
    updated = retarget("environment", "update", "again", timeout=200)
    assert updated.returncode == 0, updated.stderr
    assert updated.stderr.startswith("again:2: resolving the versions again\n")
    rows = json.loads(retarget("environment", "versions", "again", "--json").stdout)
    assert [(row["version"], row["resolution"]) for row in rows] == [(2, 1), (1, 0)]
    assert all(row["built"] for row in rows)
    header, second, first = on_screen("env", "versions", "again")
    assert header.split()[:2] == ["VERSION", "CREATED"]
    assert (second.split()[0], first.split()[0]) == ("again:2", "again:1")
    assert "resolved again" in retarget("env", "show", "again@latest").stdout
    assert retarget("env", "delete", "again:2").stderr == "deleted again:2 from local\n"
    assert retarget("env", "update", "nothing").returncode == 1


def test_a_failed_build_keeps_its_job_and_is_listed_with_its_reason(
    retarget: Cli, code: Path
) -> None:
    (code / "requirements.txt").write_text("--no-index\nnot-a-package\n")
    args = ("environment", "build", code / "requirements.txt", "--name", "broken")
    assert retarget(*args, timeout=200).returncode == 1
    [job] = json.loads(retarget("job", "list", "--json").stdout)
    assert job["state"] == "failed"
    listed = retarget("environment", "list")
    assert "local (failed)" in listed.stdout
    assert "broken:1 on local: failed " in listed.stderr
    assert "not-a-package" in listed.stderr
    assert "; the next job builds it again" in listed.stderr


def test_timing_shows_when_each_stage_was_reached(retarget: Cli, code: Path) -> None:
    retarget("run", "--name", "timed", "--", "sh", "-c", "echo hello; sleep 3", cwd=code)
    shown = retarget("job", "show", "timed", "--timing").stdout.splitlines()
    stages = [line.split()[0] for line in shown[1:]]
    assert stages[:2] == ["submitted", "placed"]
    assert stages[-2:] == ["exited", "ended"]
    assert {"preparing", "starting", "started", "output"} < set(stages)
    timing = json.loads(retarget("job", "show", "timed", "--timing", "--json").stdout)
    assert [stage["name"] for stage in timing] == stages
    elapsed = [stage["elapsed_seconds"] for stage in timing]
    assert elapsed[0] == 0
    assert elapsed == sorted(elapsed)
