"""What a script leaves and says with bytes that no terminal should get, and no disk twice."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from retarget import Invalid, Job, RetargetError, Workspace
from retarget.sdk.downloads import download
from retarget.sdk.records import Output
from tests.bad_input.conftest import Cli
from tests.server.conftest import Api

COMMAND = str(Path(sys.executable).parent / "retarget")
NAMES = [
    *(b"bad\xff", b"esc\x1b[31m", b"line\nbreak", b"tab\t", "ü".encode(), b"back\\slash"),
    *(b"..x", b" ", b"x" * 255, b"bidi\xe2\x80\xae", b"c1\xc2\x9b31m", b"%2e%2e"),
]
SAID = b"\xff\xfe raw \x1b[31m\0 bytes\r\n no newline at the end"
SCRIPT = f"""
import os, sys
for name in {NAMES!r}:
    open(b"outputs/" + name, "wb").write(name)
open(b"logs/l\\x1b\\xff", "wb").write({SAID!r})
sys.stdout.buffer.write({SAID!r})
"""


@pytest.fixture(scope="module")
def left(api: Api, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """A job that left all of these, and has ended."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "odd.py").write_text(SCRIPT)
    job = Workspace(api.url, api.token).submit("odd.py", code=folder, name="odd-outputs")
    assert job.wait().value == "succeeded"
    yield job
    job.delete()


def test_the_log_keeps_every_byte(left: Job, retarget: Cli) -> None:
    assert b"".join(left.read_log()) == SAID
    assert left.logs() == SAID.decode(errors="replace")
    shown = retarget("job", "logs", left.name)
    assert (shown.code, shown.out) == (0, SAID)


def test_names_are_listed_one_a_row_and_steer_no_terminal(left: Job, retarget: Cli) -> None:
    done = retarget("job", "outputs", left.name)
    assert done.code == 0
    rows = done.out.decode().splitlines()
    assert len(rows) == len(NAMES) + 1
    assert all(row.isprintable() for row in rows)
    assert any(row.startswith(r"outputs/line\nbreak") for row in rows)
    shown = retarget("job", "show", left.name).out.decode()
    assert all(line.isprintable() for line in shown.splitlines())


def test_json_names_every_file_as_it_is(left: Job, retarget: Cli) -> None:
    listed = json.loads(retarget("job", "outputs", left.name, "--json").out)
    assert {row["path"] for row in listed} == {each.path for each in left.outputs()}
    assert "outputs/esc\x1b[31m" in {row["path"] for row in listed}
    assert r"outputs/bad\xff" in {row["path"] for row in listed}


def test_what_is_fetched_is_named_to_a_terminal_without_escapes(
    api: Api, left: Job, tmp_path: Path
) -> None:
    master, terminal = pty.openpty()
    environ = os.environ | {"RETARGET_URL": api.url, "RETARGET_TOKEN": api.token}
    command = [COMMAND, "job", "outputs", left.name, "--download", str(tmp_path / "got")]
    with subprocess.Popen(command, env=environ, stdout=terminal, stderr=terminal) as child:
        os.close(terminal)
        said = b"".join(iter(lambda: _read(master), b""))
    os.close(master)
    assert child.returncode == 0
    assert b"\x1b" not in said
    assert rb"esc\x1b[31m" in said


def test_every_file_is_fetched_under_its_name(left: Job, tmp_path: Path) -> None:
    paths = left.download("outputs", to=tmp_path)
    assert len(paths) == len(NAMES)
    for name in NAMES:
        kept = tmp_path / "outputs" / name.decode(errors="backslashreplace")
        assert kept.read_bytes() == name


def test_a_link_in_the_way_is_not_followed_out_of_the_folder(
    left: Job, retarget: Cli, tmp_path: Path
) -> None:
    outside, to = tmp_path / "outside", tmp_path / "to"
    outside.mkdir()
    to.mkdir()
    (to / "outputs").symlink_to(outside)
    said = retarget("job", "outputs", left.name, "outputs", "--download", to).sentence()
    assert f"{to / 'outputs'} is a link that leads out of {to}" in said
    assert list(outside.iterdir()) == []


def test_a_link_with_the_name_of_a_file_is_replaced_and_not_followed(
    left: Job, tmp_path: Path
) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "to/outputs").mkdir(parents=True)
    (tmp_path / "to/outputs/ü").symlink_to(tmp_path / "victim")
    left.download("outputs/ü", to=tmp_path / "to")
    assert (tmp_path / "victim").read_text() == "mine"
    assert not (tmp_path / "to/outputs/ü").is_symlink()


@pytest.mark.parametrize("clash", ["to", "to/outputs", "to/outputs/ü/x"])
def test_a_clash_on_ones_disk_is_told(left: Job, retarget: Cli, tmp_path: Path, clash: str) -> None:
    (tmp_path / clash).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / clash).write_text("mine")
    said = retarget("job", "outputs", left.name, "outputs/ü", "--download", tmp_path / "to")
    assert "cannot be written: " in said.sentence()
    assert (tmp_path / clash).read_text() == "mine"
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize(
    "path", ["../x", "/etc/x", "a/../../x", "a//x", "./x", "", "a\0b", "outputs/.."]
)
def test_a_name_that_would_leave_the_folder_is_not_written(
    workspace: Workspace, tmp_path: Path, path: str
) -> None:
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises((Invalid, RetargetError), match="would leave the folder"):
        download(workspace._connection, "/api/x", Output(path, 1, "a" * 64), tmp_path)  # pyright: ignore[reportPrivateUsage]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("path", ["none", "../x", "/etc/passwd", "\x1b[31m", "x" * 5000])
def test_a_path_that_the_job_did_not_leave_is_told(left: Job, retarget: Cli, path: str) -> None:
    assert "has no output" in retarget("job", "outputs", left.name, path).sentence()


def _read(master: int) -> bytes:
    try:
        return os.read(master, 65536)
    except OSError:  # the other side is closed
        return b""
