"""`retarget snapshot`, and what `retarget run` says about the files that it does not send."""

import fcntl
import json
import os
import pty
import struct
import subprocess
import termios
from pathlib import Path
from typing import Any

import pytest

from retarget.core.exclusions import LARGE_SNAPSHOT_BYTES
from retarget.sdk.workspace import Workspace
from tests.conftest import COMMAND, Cli


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A typical project: `.gitignore` lists its data, but not its secrets and packages."""
    folder = tmp_path / "code"
    fill(folder, "data/train.csv", 21 * 1024)
    fill(folder, ".env", 7)
    fill(folder, "node_modules/a.js", 3)
    fill(folder, "__pycache__/a.pyc", 3)
    (folder / ".gitignore").write_text("data/\n")
    (folder / "train.py").write_text("print(open('data/train.csv').read(1))")
    return folder


def fill(folder: Path, name: str, size: int) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)


_LINES = [
    "excluded by .gitignore: data/ (1 file, 21.0 KiB)",
    "excluded by default: .env (7 B), node_modules/ (1 file, 3 B)",
]


def test_a_run_says_what_is_excluded_and_so_does_the_job(retarget: Cli, code: Path) -> None:
    done = retarget("run", "--name", "a", "train.py", cwd=code)
    assert done.stderr.splitlines()[:2] == _LINES
    shown = retarget("job", "show", "a").stdout
    assert all(line.removeprefix("excluded ") in shown for line in _LINES)
    rows = json.loads(retarget("job", "show", "a", "--json").stdout)["excluded"]
    row = {"path": "data/", "rule": ".gitignore", "files": 1, "size": 21504, "at_least": False}
    assert rows[0] == row
    assert [row["path"] for row in rows] == ["data/", ".env", "node_modules/", "__pycache__/"]
    rerun = json.loads(retarget("job", "show", _rerun(retarget, "a"), "--json").stdout)
    assert rerun["excluded"] == rows


def _rerun(retarget: Cli, name: str) -> str:
    retarget("job", "rerun", name, "--name", "again")
    return "again"


def test_a_dry_run_says_what_would_be_excluded(retarget: Cli, code: Path) -> None:
    shown = retarget("run", "--dry-run", "train.py", cwd=code).stdout
    assert all(line.removeprefix("excluded ") in shown for line in _LINES)
    plan = json.loads(retarget("run", "--dry-run", "--json", "train.py", cwd=code).stdout)
    assert [row["rule"] for row in plan["code"]["excluded"]] == [
        ".gitignore",
        "default",
        "default",
        "always",
    ]


def test_include_sends_an_excluded_path(retarget: Cli, code: Path) -> None:
    done = retarget("run", "--include", "data/", "--include", ".env", "train.py", cwd=code)
    assert (done.returncode, done.stdout) == (0, "x\n"), done.stderr
    assert done.stderr.startswith("excluded by default: node_modules/ (1 file, 3 B)\n")
    refused = retarget("run", "--include", "dta/", "train.py", cwd=code)
    assert (refused.returncode, refused.stderr) == (
        2,
        f"error: include: 'dta/' does not exist in {code}\n",
    )


def test_include_takes_patterns(retarget: Cli, code: Path) -> None:
    fill(code, "data/model.bin", 4)
    done = retarget("run", "--include", "data/*.csv", "train.py", cwd=code)
    assert (done.returncode, done.stdout) == (0, "x\n"), done.stderr
    assert done.stderr.startswith("excluded by .gitignore: data/model.bin (4 B)\n")
    for command in (("run", "train.py"), ("snapshot",)):
        refused = retarget(*command, "--include", "*.parquet", cwd=code)
        assert (refused.returncode, refused.stderr) == (
            2,
            f"error: include: '*.parquet' matches nothing in {code}\n",
        )
    listed = json.loads(retarget("snapshot", "--include", "*.csv", "--json", cwd=code).stdout)
    assert "data/train.csv" in {row["path"] for row in listed["sent"]}


def test_the_sdk_takes_the_same_and_says_the_same(
    retarget: Cli, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(code)
    job = Workspace().submit("train.py", include=["data/*"])
    assert job.wait() == "succeeded"
    assert [row.path for row in job.excluded] == [".env", "node_modules/", "__pycache__/"]
    html = job._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert html is not None
    assert "excluded by default: .env (7 B)" in html


def test_a_run_that_excludes_only_caches_is_quiet(retarget: Cli, code: Path) -> None:
    for path in (code / "data/train.csv", code / ".env", code / "node_modules/a.js"):
        path.unlink()
    (code / "data").rmdir()
    (code / "node_modules").rmdir()
    (code / "train.py").write_text("print(1)")
    assert "excluded" not in retarget("run", "train.py", cwd=code).stderr


def test_snapshot_lists_what_is_sent_and_what_is_not(retarget: Cli, code: Path) -> None:
    fill(code, "pkg/a.py", 2000)
    fill(code, "pkg/b.py", 1)
    done = retarget("snapshot", cwd=code)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[:5] == [
        ["sent:", "4", "files,", "2.0", "KiB"],
        ["PATH", "FILES", "SIZE"],
        ["pkg/", "2", "2.0", "KiB"],
        ["train.py", "1", "37", "B"],
        [".gitignore", "1", "6", "B"],
    ]
    assert lines[6:] == [
        ["excluded:", "4", "files,", "21.0", "KiB"],
        ["PATH", "FILES", "SIZE", "RULE"],
        ["data/", "1", "21.0", "KiB", ".gitignore"],
        [".env", "1", "7", "B", "default"],
        ["node_modules/", "1", "3", "B", "default"],
        ["__pycache__/", "1", "3", "B", "always"],
    ]
    everything = retarget("snapshot", code, "--all", "--include", "data").stdout
    assert "pkg/a.py" in everything
    assert "data/train.csv" in everything.partition("excluded:")[0]


def test_snapshot_prints_json_and_needs_no_server(retarget: Cli, home: Path, code: Path) -> None:
    document = json.loads(retarget("snapshot", "--json", cwd=code).stdout)
    assert document["sent"] == [
        {"path": "train.py", "size": 37},
        {"path": ".gitignore", "size": 6},
    ]
    assert document["excluded"][0]["path"] == "data/"
    assert not (home / "servers/main/server.json").exists()
    plan = json.loads(retarget("run", "--dry-run", "--json", "train.py", cwd=code).stdout)
    assert plan["code"]["snapshot"] == document["snapshot"]


def test_snapshot_names_every_file_that_a_run_would_refuse(retarget: Cli, code: Path) -> None:
    for number in range(7):
        (code / f"link{number}").symlink_to("/etc/hosts")
    os.mkfifo(code / "pipe")
    done = retarget("snapshot", cwd=code)
    assert (done.returncode, done.stdout.startswith("sent: 2 files, ")) == (2, True), done.stderr
    assert "\ndata/  " in done.stdout
    _, _, refused = done.stdout.partition("\nrefused: 8 files; a run sends nothing\n")
    assert "pipe is a named pipe; remove it or add it to .gitignore\n" in refused
    assert all(f"link{number} is a link that leaves" in refused for number in range(7))
    rows = json.loads(retarget("snapshot", "--json", cwd=code).stdout)["refused"]
    assert [row["path"] for row in rows] == sorted(row["path"] for row in rows)
    assert len(rows) == 8
    run = retarget("run", "train.py", cwd=code)
    assert run.returncode == 2
    assert "; and 3 more, which `retarget snapshot` lists" in run.stderr


def test_snapshot_refuses_what_is_no_folder(retarget: Cli, code: Path) -> None:
    done = retarget("snapshot", "nowhere", cwd=code)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "nowhere" in done.stderr


def test_snapshot_fits_a_narrow_terminal(home: Path, code: Path) -> None:
    fill(code, f"{'long-' * 30}name.bin", 5)
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    terminal = os.environ | {"TERM": "xterm", "COLUMNS": "60"}
    done = subprocess.run(
        [COMMAND, "snapshot"], cwd=code, env=terminal, stdin=slave, stdout=slave, timeout=60
    )
    os.close(slave)
    text = os.read(master, 100_000).decode()
    os.close(master)
    assert done.returncode == 0
    assert max(map(len, text.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines())) <= 60
    assert "data/" in text


def test_a_large_snapshot_says_what_is_large(retarget: Cli, code: Path) -> None:
    (code / "big").mkdir()
    with (code / "big/model.bin").open("wb") as file:
        file.truncate(LARGE_SNAPSHOT_BYTES + 1)
    (code / "train.py").write_text("print(1)")
    for options in (["--dry-run"], []):
        done = retarget("run", *options, "train.py", cwd=code, timeout=200)
        [line] = [line for line in done.stderr.splitlines() if line.startswith("the snapshot has")]
        size = "190.7 MiB; the largest path is big/ (190.7 MiB)"
        assert line == f"the snapshot has {size}; add what the job does not need to .gitignore"
        assert (done.stdout + done.stderr).count("node_modules/ (1 file, 3 B)") == 1


def test_downloaded_outputs_are_not_sent_with_the_next_job(retarget: Cli, code: Path) -> None:
    (code / "train.py").write_text("open('outputs/model', 'w').write('m')")
    retarget("run", "--name", "a", "train.py", cwd=code)
    done = retarget("job", "outputs", "a", "--download", "results", cwd=code)
    assert done.stdout == "results/outputs/model\n"
    assert (code / "results/.retarget-download").exists()
    assert "results/ (2 files" in retarget("run", "train.py", cwd=code).stderr
    fill(code, "mine/notes.txt", 1)
    retarget("job", "outputs", "a", "--download", "mine", cwd=code)
    retarget("job", "outputs", "a", "--download", ".", cwd=code)
    marked = {str(path.parent.relative_to(code)) for path in code.rglob(".retarget-download")}
    assert marked == {"results", "mine/outputs", "outputs"}
    assert "mine/notes.txt" in retarget("snapshot", "--all", cwd=code).stdout


def test_a_submodule_without_files_is_named(retarget: Cli, code: Path) -> None:
    lines = '[submodule "a"]\n\tpath = libs/a\n\turl = ../a\n[submodule "b"]\n\tpath = libs/b\n'
    (code / ".gitmodules").write_text(lines)
    (code / "libs/a").mkdir(parents=True)
    fill(code, "libs/b/code.py", 1)
    (code / "train.py").write_text("")
    line = "the git submodule libs/a is empty, and the job will lack it"
    for command in (("run", "train.py"), ("run", "--dry-run", "train.py"), ("snapshot",)):
        done = retarget(*command, cwd=code)
        assert (done.returncode, line in done.stderr) == (0, True), done.stderr
        assert "libs/b is empty" not in done.stderr


def test_the_settings_of_a_project_exclude_and_include_paths(retarget: Cli, code: Path) -> None:
    fill(code, "raw/big.bin", 5)
    fill(code, "deep/raw/small.bin", 4)
    fill(code, "deep/keep.bin", 2)
    settings = 'ignore = ["/raw", "*.bin", "!keep.bin"]\ninclude = ["data/"]\n'
    (code / "retarget.toml").write_text(settings)
    listed = json.loads(retarget("snapshot", "--json", cwd=code).stdout)
    rules = {row["path"]: row["rule"] for row in listed["excluded"]}
    assert rules["raw/"] == rules["deep/raw/small.bin"] == "retarget.toml"
    sent = {row["path"] for row in listed["sent"]}
    assert {"data/train.csv", "deep/keep.bin"} <= sent
    done = retarget("run", "train.py", cwd=code)
    assert (done.returncode, done.stdout) == (0, "x\n"), done.stderr
    assert "excluded by retarget.toml: raw/ (1 file, 5 B), deep/raw/small.bin (4 B)" in done.stderr


def test_the_settings_of_a_project_include_patterns(retarget: Cli, code: Path) -> None:
    (code / ".git").mkdir()
    fill(code, "data/raw/a.csv", 1)
    fill(code, "sub/x.py", 1)
    settings = code / "retarget.toml"
    settings.write_text('include = ["data/*.csv"]')
    sent = {row["path"] for row in _sent(retarget, code)}
    assert ("data/train.csv" in sent, "data/raw/a.csv" in sent) == (True, False)
    settings.write_text('include = ["*.csv"]')
    sent = {row["path"] for row in _sent(retarget, code)}
    assert {"data/train.csv", "data/raw/a.csv"} <= sent
    # a part of the project need not have what the pattern matches
    assert [row["path"] for row in _sent(retarget, code, "sub")] == ["x.py"]
    settings.write_text('include = ["*.parquet"]')
    refused = retarget("snapshot", cwd=code)
    message = f"error: {settings}: include: '*.parquet' matches nothing in {code}\n"
    assert (refused.returncode, refused.stderr) == (2, message)


def _sent(retarget: Cli, code: Path, *folder: str) -> list[dict[str, Any]]:
    return json.loads(retarget("snapshot", "--json", *folder, cwd=code).stdout)["sent"]


def test_a_pattern_of_a_project_is_relative_to_its_file(retarget: Cli, code: Path) -> None:
    fill(code, "sub/data.bin", 1)
    fill(code, "sub/x.py", 1)
    (code / ".git").mkdir()
    (code / "retarget.toml").write_text('ignore = ["/sub/data.bin"]')
    listed = json.loads(retarget("snapshot", "--json", "sub", cwd=code).stdout)
    assert [row["path"] for row in listed["excluded"]] == ["data.bin"]
