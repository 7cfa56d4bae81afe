"""A home that is damaged, in use, read-only, or names a server that no longer runs."""

import json
import os
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from retarget import __version__
from retarget.core.errors import Conflict, Invalid
from retarget.core.home import Home
from retarget.sdk.local_server import read_server
from retarget.store.engine import migrate, open_engine
from tests.conftest import Cli
from tests.server.conftest import serving
from tests.trouble.root import small_disk

_SERVER = [sys.executable, "-m", "retarget.server"]


def _refusal(home: Path, **variables: str) -> str:
    """Start a server that must not start, and return its one-line message."""
    environ = os.environ | {"RETARGET_HOME": str(home)} | variables
    done = subprocess.run(_SERVER, env=environ, capture_output=True, text=True, timeout=200)
    lines = [line for line in done.stderr.splitlines() if " INFO " not in line]
    assert (done.returncode, len(lines)) == (1, 1), done.stderr
    assert lines[0].startswith("retarget server: ")
    return lines[0]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database as a server leaves it."""
    engine = open_engine(f"sqlite:///{tmp_path}/retarget.db")
    migrate(engine)
    engine.dispose()
    return tmp_path / "retarget.db"


def _refused(database: Path) -> str:
    """Return why a server cannot use this database."""
    engine = open_engine(f"sqlite:///{database}")
    try:
        with pytest.raises((Invalid, Conflict)) as refused:
            migrate(engine)
    finally:
        engine.dispose()
    return str(refused.value)


def test_a_read_only_home_is_one_sentence(retarget: Cli, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        assert "Read-only file system" in _refusal(disk)
        for name, folder in (("RETARGET_HOME", disk), ("HOME", disk)):
            own = {"RETARGET_HOME": "", name: str(folder)}
            done = retarget("job", "list", env=own)
            assert (done.returncode, done.stderr.count("\n")) == (1, 1)
            assert "cannot be used (Read-only file system); set RETARGET_HOME" in done.stderr


@pytest.mark.parametrize(
    "name",
    [b"que?mode=ro", b"per%41cent", b"ha#sh", b"sp ace", b"new\nline", b"$HOME 'x' \"y\"", b"\xff"],
)
def test_a_home_may_have_any_name(retarget: Cli, tmp_path: Path, name: bytes) -> None:
    folder, code = tmp_path / "folder", tmp_path / "code"
    home = folder / os.fsdecode(name)
    for path in (folder, code):
        path.mkdir()
    (code / "job.py").write_text("open('outputs/x', 'w').write('y')\nprint('done')")
    own = {"RETARGET_HOME": str(home)}
    try:
        for command in (
            ("run", "--name", "odd", "job.py"),
            ("server", "status"),
            ("target", "list"),
        ):
            done = retarget(*command, cwd=code, env=own)
            assert done.returncode == 0, done.stderr
        done = retarget("job", "outputs", "odd", "--download", str(tmp_path / "copy"), env=own)
        assert done.returncode == 0, done.stderr
        assert [path.read_text() for path in (tmp_path / "copy").rglob("x")] == ["y"]
    finally:
        assert retarget("server", "stop", env=own).returncode == 0
    assert (home / "retarget.db").exists()
    assert list(folder.iterdir()) == [home]


def test_a_server_elsewhere_needs_no_home_that_can_be_written(
    retarget: Cli, tmp_path: Path
) -> None:
    (tmp_path / "job.py").write_text("print('done')")
    with small_disk(tmp_path / "disk", "1m") as disk, serving(tmp_path / "theirs") as api:
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        own = {"RETARGET_URL": api.url, "RETARGET_TOKEN": api.token}
        own |= {"RETARGET_HOME": "", "HOME": str(disk)}
        (tmp_path / "code").mkdir()
        (tmp_path / "job.py").rename(tmp_path / "code/job.py")
        done = retarget("run", "job.py", cwd=tmp_path / "code", env=own)
        assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_a_port_that_is_taken_is_one_sentence(retarget: Cli, home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        done = retarget("server", "run", "--port", port)
        message = f"cannot listen on 127.0.0.1:{port}: [Errno 98] Address already in use; choose"
        assert done.returncode == 1
        assert message in done.stderr
        background = retarget("job", "list", env={"RETARGET_PORT": port})
        assert (background.returncode, message in background.stderr) == (1, True)
        assert "Traceback" not in background.stderr + done.stderr


def test_one_of_many_servers_that_start_at_once_serves(home: Path) -> None:
    many = [subprocess.Popen(_SERVER, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    errors: list[str] = []
    ended = threading.Semaphore(0)

    def wait(process: "subprocess.Popen[str]") -> None:
        errors.append(process.communicate(timeout=200)[1])
        ended.release()

    for process in many:
        threading.Thread(target=wait, args=(process,)).start()
    for _ in many[1:]:
        assert ended.acquire(timeout=200)
    (server,) = [process for process in many if process.poll() is None]
    assert [text for text in errors if "is already running for" not in text] == []
    server.terminate()
    assert ended.acquire(timeout=200)


@pytest.mark.parametrize("damage", ["garbage", "truncated", "flipped"])
def test_a_damaged_database_is_one_sentence_and_is_not_changed(database: Path, damage: str) -> None:
    content = database.read_bytes()
    match damage:
        case "garbage":
            content = b"not a database " * 1000
        case "truncated":
            content = content[: len(content) // 3]
        case _:
            content = content[:200] + bytes(8000) + content[8200:]
    database.write_bytes(content)
    message = "is damaged or is not a database"
    assert message in (_refusal(database.parent) if damage == "garbage" else _refused(database))
    assert database.read_bytes() == content


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        (
            "UPDATE alembic_version SET version_num = '9999'",
            "created by another version",
        ),
        (
            "UPDATE alembic_version SET version_num = '0005'",
            "created by another version",
        ),
        ("DROP TABLE runs", "lacks the table 'runs'"),
        ("DELETE FROM alembic_version", "that is not Retarget's"),
    ],
)
def test_a_half_migrated_database_is_one_sentence(
    database: Path, statement: str, sentence: str
) -> None:
    with closing(sqlite3.connect(database)) as db:
        db.execute(statement)
        db.commit()
    refusal = _refused(database)
    assert str(database) in refusal
    assert sentence in refusal


@pytest.mark.parametrize(
    ("revision", "sentence"),
    [("0001", "lacks the table 'artifacts'"), ("0005", "created by another version")],
)
def test_a_database_that_lacks_tables_is_not_changed(
    database: Path, revision: str, sentence: str
) -> None:
    first = {"jobs", "attempts", "history", "outputs", "targets", "environments"}
    with closing(sqlite3.connect(database)) as db:
        names = [
            row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        for name in set(names) - first - {"alembic_version", "sqlite_sequence"}:
            db.execute(f'DROP TABLE "{name}"')
        db.execute("DROP TABLE jobs")
        db.execute(f"UPDATE alembic_version SET version_num = '{revision}'")
        db.commit()
        before = _schema(db)
    assert sentence in _refused(database)
    with closing(sqlite3.connect(database)) as db:
        assert _schema(db) == before


def _schema(db: sqlite3.Connection) -> list[Any]:
    return db.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()


@contextmanager
def _other_program() -> Generator[tuple[str, list[str]]]:
    """Run another program at the port of a dead server, which records its requests."""
    requests: list[str] = []

    class Listener(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(str(self.headers))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Listener) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", requests
        server.shutdown()


def test_another_program_with_the_port_and_pid_of_a_dead_server_gets_no_token(
    retarget: Cli, home: Path
) -> None:
    retarget("server", "start")
    retarget("server", "stop")
    with _other_program() as (url, requests):
        info = {"pid": os.getpid(), "url": url, "version": __version__, "started_at": 1.0}
        (home / "servers/main/server.json").write_text(json.dumps(info))
        done = retarget("job", "list", "--json")
        assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
        assert requests == []


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '{"pid": "x", "url": 5, "version": [], "started": {}}',
        '{"pid": 1e400}',
    ],
)
def test_a_damaged_server_file_is_ignored(tmp_path: Path, content: str) -> None:
    (tmp_path / "servers/main").mkdir(parents=True)
    (tmp_path / "servers/main/server.json").write_text(content)
    assert read_server(Home(tmp_path)) is None


def test_a_live_server_whose_file_is_damaged_is_found_again(retarget: Cli, home: Path) -> None:
    pid = json.loads(retarget("server", "start", "--json").stdout)["pid"]
    (home / "servers/main/server.json").write_text("{")
    assert retarget("job", "list").returncode == 0
    assert json.loads(retarget("server", "status", "--json").stdout)["pid"] == pid


def test_an_error_of_a_server_of_another_version_says_so(retarget: Cli, tmp_path: Path) -> None:
    old = "import retarget; retarget.__version__ = '0.0.7'\n"
    old += "import runpy; runpy.run_module('retarget.server', run_name='__main__')"
    with serving(tmp_path / "old", program=("-c", old)) as api:
        own = {"RETARGET_URL": api.url, "RETARGET_TOKEN": api.token}
        assert retarget("job", "list", env=own).returncode == 0
        done = retarget("job", "show", "nope", env=own)
        assert done.returncode == 1
        hint = f"(the server is retarget 0.0.7, this is {__version__})\n"
        assert done.stderr.endswith(hint)
