"""Folders and scripts that do not exist, cannot be sent, or change while they are read."""

import os
import shutil
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from retarget import Invalid, Workspace
from retarget.sdk.snapshot import SMALL_FILE_BYTES
from tests.bad_input.conftest import Cli, unchanged
from tests.server.conftest import Api

LONG = "x" * 5000


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["nope.py"], "script 'nope.py' not found in /"),
        (["none/hello.py"], ", which does not exist"),
        ([""], "script: '' is not the path of a script"),
        ([" "], "script: ' ' is not the path of a script"),
        (["a\nb"], r"script 'a\nb' not found"),
        (["\x1b[31m"], r"script '\x1b[31m' not found"),
        ([LONG], f"script {LONG!r} not found"),
        ([LONG, "y"], "retarget run xxx"),
        (["../elsewhere/x.py", "--code", "."], "is not in the code folder /"),
        (["hello.py", "--code", "empty"], "is not in the code folder /"),
        (["hello.py", "--code", ""], "code: '' is not a folder"),
        (["hello.py", "--code", "hello.py"], "code: 'hello.py' is not a folder"),
        (["hello.py", "--code", LONG], "is not a folder"),
        (["hello.py", "-e", LONG], "the name of an environment: 'xxx"),
        (["hello.py", "-e", f"{LONG}.yml"], f"environment file '{LONG}.yml' not found"),
        (["hello.py", "--python", ""], "--python is empty"),
    ],
)
def test_a_missing_file_is_named(
    api: Api, retarget: Cli, code: Path, args: list[str], sentence: str
) -> None:
    (code / "empty").mkdir()
    (code.parent / "elsewhere").mkdir()
    (code.parent / "elsewhere/x.py").write_text("")
    with unchanged(api):
        assert sentence in retarget("run", *args).error_line()


def test_a_deleted_current_folder_is_reported(retarget: Cli, code: Path) -> None:
    code.joinpath("hello.py").unlink()
    code.rmdir()
    for args in (("hello.py",), ("--", "true")):
        assert "the current folder was deleted" in retarget("run", *args).error_line()


def test_an_empty_folder_can_be_sent(workspace: Workspace, code: Path) -> None:
    (code / "empty").mkdir()
    job = workspace.submit(["ls", "-A"], code="empty")
    assert job.wait().value == "succeeded"
    assert job.logs() == "logs\noutputs\n"


@pytest.mark.parametrize("name", [b"bad\xff.txt", b"d\xff/x", b"a\x1b\xff"])
def test_a_file_name_that_is_not_utf8_is_refused_and_escaped(
    api: Api, retarget: Cli, code: Path, name: bytes
) -> None:
    path = os.path.join(os.fsencode(code), name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    Path(os.fsdecode(path)).touch()
    with unchanged(api):
        message = retarget("run", "hello.py").error_line()
    assert r"\xff" in message
    assert "has a name that is not UTF-8; rename it or add it to .gitignore" in message


def test_a_folder_that_is_deleted_while_it_is_read_is_reported(
    api: Api, workspace: Workspace, code: Path
) -> None:
    def delete(*_: object) -> None:
        shutil.rmtree(code, ignore_errors=True)

    for script in ("hello.py", ["true"]):
        code.mkdir(exist_ok=True)
        (code / "hello.py").write_text("")
        with unchanged(api), pytest.raises(Invalid, match="was deleted while it was read"):
            workspace.prepare(script, code=code, reading=delete)


def test_a_script_that_is_deleted_while_its_folder_is_read_is_reported(
    api: Api, workspace: Workspace, code: Path
) -> None:
    def delete(*_: object) -> None:
        (code / "hello.py").unlink(missing_ok=True)

    with unchanged(api), pytest.raises(Invalid, match=r"the script 'hello\.py' was deleted"):
        workspace.prepare("hello.py", code=code, reading=delete)


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def grow(file: Path) -> None:
    with file.open("ab") as end:
        end.write(b"more")


def become_a_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def become_a_link(file: Path) -> None:
    file.unlink()
    file.symlink_to("/etc/hostname")


def become_a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


CHANGES = [truncate, grow, Path.unlink, become_a_pipe, become_a_link, become_a_folder]


@pytest.mark.parametrize("size", [5, SMALL_FILE_BYTES])
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_between_reading_and_sending_is_named(
    api: Api, workspace: Workspace, code: Path, size: int, change: Callable[[Path], object]
) -> None:
    (code / "data").write_bytes(os.urandom(size))
    change_once = iter([lambda: change(code / "data")])

    def read(_: Path, files: int, size: int) -> None:
        if files == 2:
            next(change_once, lambda: None)()

    with unchanged(api), pytest.raises(Invalid, match="'data' changed while it was sent"):
        workspace.prepare("hello.py", code=code, reading=read)


def test_a_file_that_is_truncated_while_it_is_sent_is_named(
    api: Api, workspace: Workspace, code: Path
) -> None:
    (code / "data").write_bytes(os.urandom(8 * SMALL_FILE_BYTES))

    def sent(*_: object) -> None:
        os.truncate(code / "data", SMALL_FILE_BYTES)

    with unchanged(api), pytest.raises(Invalid, match="'data' changed while it was sent"):
        workspace.prepare("hello.py", code=code, progress=sent)


@pytest.mark.parametrize("size", [5, SMALL_FILE_BYTES])
def test_a_file_that_becomes_unreadable_is_named(api: Api, workspace: Workspace, size: int) -> None:
    with tempfile.TemporaryDirectory() as name, as_nobody(Path(name)) as folder:
        (folder / "hello.py").write_text("")
        (folder / "data").write_bytes(os.urandom(size))

        def remove_permissions(_: Path, files: int, size: int) -> None:
            if files == 2:
                (folder / "data").chmod(0)

        with pytest.raises(Invalid, match="'data' changed while it was sent"):
            workspace.prepare("hello.py", code=folder, reading=remove_permissions)
        with pytest.raises(Invalid, match="'data' cannot be read"):
            workspace.prepare("hello.py", code=folder)


@contextmanager
def as_nobody(folder: Path) -> Generator[Path]:
    """Drop root's rights in a folder that belongs to nobody: root could read any file."""
    if os.geteuid() != 0:
        yield folder
        return
    os.chown(folder, 65534, 65534)
    os.seteuid(65534)
    try:
        yield folder
    finally:
        os.seteuid(0)
