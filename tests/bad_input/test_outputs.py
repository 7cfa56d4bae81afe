"""Files and output of a script with control characters, or with names that clash."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from retarget import Conflict, Invalid, Job, RetargetError, Workspace
from retarget.sdk.downloads import download
from retarget.sdk.records import Output
from tests.bad_input.conftest import Cli
from tests.server.conftest import Api

COMMAND = str(Path(sys.executable).parent / "retarget")
NAMES = [
    *(b"bad\xff", b"esc\x1b[31m", b"line\nbreak", b"tab\t", "ü".encode(), b"back\\slash"),
    *(b"..x", b" ", b"x" * 255, b"bidi\xe2\x80\xae", b"c1\xc2\x9b31m", b"%2e%2e"),
]
OUTPUT = b"\xff\xfe raw \x1b[31m\0 bytes\r\n no newline at the end"
SCRIPT = f"""
import os, sys
for name in {NAMES!r}:
    open(b"outputs/" + name, "wb").write(name)
open(b"logs/l\\x1b\\xff", "wb").write({OUTPUT!r})
sys.stdout.buffer.write({OUTPUT!r})
"""


@pytest.fixture(scope="module", name="job")
def job_with_odd_files(api: Api, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """A job that wrote all of these files and has ended."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "odd.py").write_text(SCRIPT)
    job = Workspace(api.url, api.token).submit("odd.py", code=folder, name="odd-outputs")
    assert job.wait().value == "succeeded"
    yield job
    job.delete()


def test_the_log_keeps_every_byte(job: Job, retarget: Cli) -> None:
    assert b"".join(job.read_log()) == OUTPUT
    assert job.logs() == OUTPUT.decode(errors="replace")
    shown = retarget("job", "logs", job.name)
    assert (shown.code, shown.out) == (0, OUTPUT)


def test_file_names_are_listed_one_per_row_without_control_characters(
    job: Job, retarget: Cli
) -> None:
    result = retarget("job", "outputs", job.name)
    assert result.code == 0
    rows = result.out.decode().splitlines()
    assert len(rows) == len(NAMES) + 1
    assert all(row.isprintable() for row in rows)
    assert any(row.startswith(r"outputs/line\nbreak") for row in rows)
    shown = retarget("job", "show", job.name).out.decode()
    assert all(line.isprintable() for line in shown.splitlines())


def test_json_lists_every_file_with_its_exact_name(job: Job, retarget: Cli) -> None:
    listed = json.loads(retarget("job", "outputs", job.name, "--json").out)
    assert {row["path"] for row in listed} == {output.path for output in job.outputs()}
    assert "outputs/esc\x1b[31m" in {row["path"] for row in listed}
    assert r"outputs/bad\xff" in {row["path"] for row in listed}


def test_downloaded_files_are_printed_without_control_characters(
    api: Api, job: Job, tmp_path: Path
) -> None:
    master, terminal = pty.openpty()
    environ = os.environ | {"RETARGET_URL": api.url, "RETARGET_TOKEN": api.token}
    command = [COMMAND, "job", "outputs", job.name, "--download", str(tmp_path / "got")]
    with subprocess.Popen(command, env=environ, stdout=terminal, stderr=terminal) as child:
        os.close(terminal)
        shown = b"".join(iter(lambda: _read(master), b""))
    os.close(master)
    assert child.returncode == 0
    assert b"\x1b" not in shown
    assert rb"esc\x1b[31m" in shown


def test_every_file_is_downloaded_under_its_name(job: Job, tmp_path: Path) -> None:
    paths = job.download("outputs", to=tmp_path)
    assert len(paths) == len(NAMES)
    for name in NAMES:
        path = tmp_path / "outputs" / name.decode(errors="backslashreplace")
        assert path.read_bytes() == name


def test_a_link_out_of_the_folder_is_not_followed(job: Job, retarget: Cli, tmp_path: Path) -> None:
    outside, to = tmp_path / "outside", tmp_path / "to"
    outside.mkdir()
    to.mkdir()
    (to / "outputs").symlink_to(outside)
    message = retarget("job", "outputs", job.name, "outputs", "--download", to).error_line()
    assert f"{to / 'outputs'} is a link that leads out of {to}" in message
    assert list(outside.iterdir()) == []


def test_a_link_with_the_name_of_a_file_is_replaced_and_not_followed(
    job: Job, tmp_path: Path
) -> None:
    (tmp_path / "victim").write_text("untouched")
    (tmp_path / "to/outputs").mkdir(parents=True)
    (tmp_path / "to/outputs/ü").symlink_to(tmp_path / "victim")
    with pytest.raises(Conflict, match="already exists with different content"):
        job.download("outputs/ü", to=tmp_path / "to")
    job.download("outputs/ü", to=tmp_path / "to", overwrite=True)
    assert (tmp_path / "victim").read_text() == "untouched"
    assert not (tmp_path / "to/outputs/ü").is_symlink()


def test_one_name_that_cannot_be_written_does_not_stop_the_others(
    api: Api, retarget: Cli, tmp_path: Path
) -> None:
    (tmp_path / "long.py").write_text(
        "for name in (b'a', b'\\xff' * 100, b'z'): open(b'outputs/' + name, 'w').close()"
    )
    job = Workspace(api.url, api.token).submit("long.py", code=tmp_path, name="long-names")
    assert job.wait().value == "succeeded"
    result = retarget("job", "outputs", job.name, "outputs", "--download", tmp_path / "to")
    assert "2 of 3 files were downloaded; cannot write" in result.error_line()
    assert result.error_line().endswith("File name too long\n")
    names = {path.name for path in (tmp_path / "to/outputs").iterdir()}
    assert {"a", "z"} <= names
    job.delete()


@pytest.mark.parametrize("clash", ["to", "to/outputs", "to/outputs/ü/x"])
def test_a_clash_with_a_local_file_is_reported(
    job: Job, retarget: Cli, tmp_path: Path, clash: str
) -> None:
    (tmp_path / clash).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / clash).write_text("untouched")
    result = retarget("job", "outputs", job.name, "outputs/ü", "--download", tmp_path / "to")
    assert "cannot write " in result.error_line()
    assert (tmp_path / clash).read_text() == "untouched"
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize(
    "path", ["../x", "/etc/x", "a/../../x", "a//x", "./x", "", "a\0b", "outputs/.."]
)
def test_a_file_outside_the_folder_is_not_written(
    workspace: Workspace, tmp_path: Path, path: str
) -> None:
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises((Invalid, RetargetError), match="would leave the folder"):
        download(workspace._connection, "/api/x", Output(path, 1, "a" * 64), tmp_path)  # pyright: ignore[reportPrivateUsage]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("path", ["none", "../x", "/etc/passwd", "\x1b[31m", "x" * 5000])
def test_a_path_that_the_job_does_not_have_is_reported(job: Job, retarget: Cli, path: str) -> None:
    assert "has no output" in retarget("job", "outputs", job.name, path).error_line()


def _read(master: int) -> bytes:
    try:
        return os.read(master, 65536)
    except OSError:  # the other side is closed
        return b""
