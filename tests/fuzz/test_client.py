"""Random input for the client: ignore files, environments, files and answers of a server."""

import http.server
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retarget.core.errors import RetargetError
from retarget.core.home import Home
from retarget.sdk import snapshot
from retarget.sdk.environment_files import read_conda, read_pyproject
from retarget.sdk.environment_registry import own_packages_of
from retarget.sdk.environments import Environment
from retarget.sdk.follow import label_ranks
from retarget.sdk.http import Address, Connection, RemoteServer
from retarget.sdk.ignore import walk
from retarget.sdk.local_server import read_server, read_token
from retarget.sdk.requirements import read_requirements
from retarget.sdk.wildmatch import IgnoreFile
from tests.fuzz.mutated import mutated, noise, noisy_text, read_or_refused


def in_a_file(name: str, content: bytes, read: Callable[[Path], object]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        read_or_refused(lambda: read(path))


@given(
    noise(b"*.log\n!keep.log\n/build/\nsrc/**/a[!b-d[:digit:]]\\ \n# no\n\\#yes\n", b"**/a/**\n")
)
def test_ignore_files(content: bytes) -> None:
    rules = IgnoreFile(content)
    for name in (b"a", b"keep.log", b"build", "é".encode(), b"x" * 300):
        read_or_refused(lambda name=name: rules.match(b"src/" + name, name, is_folder=False))


@given(noise(b"gitdir: ../.git/worktrees/a\n", b"gitdir: /nowhere\n"))
def test_git_files_of_worktrees(content: bytes) -> None:
    in_a_file(".git", content, lambda path: list(walk(os.fsencode(path.parent), _refuse)))


@given(
    noise(b"numpy>=2 ; python_version > '3.9'\n-r other.txt\n--index-url https://a/b\n-e .\n# c\n")
)
def test_requirements_files(content: bytes) -> None:
    in_a_file("requirements.txt", content, read_requirements)


@given(
    noise(
        b"name: x\nchannels: [conda-forge]\ndependencies:\n- python=3.12\n- pip:\n  - numpy\n",
        b"a: &a [*a]\nb: !!python/object:os.system {}\nc: 2001-13-45\nd: 0b2\n? [x]\n: y\n",
    )
)
def test_conda_files(content: bytes) -> None:
    in_a_file("environment.yml", content, read_conda)


@given(
    noise(
        b'[project]\nname = "x"\nrequires-python = ">=3.9"\ndependencies = ["numpy>=2"]\n',
        b"[project]\ndependencies = " + b"9" * 5000,
        b'[project]\nname="x"\n[tool.uv]\nsources.y.path="y"\n[tool.poetry]\npackages=[{}]\n',
    )
)
def test_pyproject_files(content: bytes) -> None:
    in_a_file("pyproject.toml", content, read_pyproject)
    in_a_file("pyproject.toml", content, lambda path: own_packages_of(_project(path), path.parent))


def _project(path: Path) -> Environment:
    return Environment(pyproject=path)


@given(noise(b'{"pid":1,"url":"http://127.0.0.1:5","version":"0.1.0","started_at":1.5}', b"token"))
def test_files_of_the_server(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder))
        home.server("main").root.mkdir(parents=True)
        home.server("main").info.write_bytes(content)
        home.token.write_bytes(content)
        server = read_server(home)
        assert server is None or isinstance(server.pid, int)
        read_or_refused(lambda: Address("http://127.0.0.1:5", read_token(home)))


@pytest.fixture(scope="module")
def scanned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path, bytes]]:
    """A code folder, the cache file of its digests, and the content of that file."""
    code, cache = tmp_path_factory.mktemp("code"), tmp_path_factory.mktemp("cache")
    (code / "a").write_text("one")
    (code / "b").write_text("two")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot, "_RACY_NANOSECONDS", 0)  # caches files that were just written too
        snapshot.scan(code, cache=cache)
        [file] = cache.iterdir()
        yield code, file, file.read_bytes()


@given(st.data())
def test_cached_digests(scanned: tuple[Path, Path, bytes], data: st.DataObject) -> None:
    """A damaged cache never changes the manifest, and is repaired."""
    code, file, content = scanned
    damaged = st.one_of(mutated(content), noise(content.partition(b"\n")[2]))
    file.write_bytes(data.draw(damaged))
    manifest = snapshot.scan(code, cache=file.parent).manifest
    assert (manifest, file.read_bytes()) == (snapshot.scan(code).manifest, content)


@given(noisy_text("http://127.0.0.1:5000", "https://user@host:1/path?x#y", "http://[::1]:80"))
def test_addresses(text: str) -> None:
    read_or_refused(lambda: Address(text, "token"))


@given(noise(b"\x1b[31ma line\r50%\r\nhalf", b"[rank 0] x\n\xff\n"))
def test_logs_of_ranks(content: bytes) -> None:
    pieces = [("output", content[:7]), ("rank-1", content), ("output", content[7:])]
    list(label_ranks(iter(pieces)))  # type: ignore[arg-type]


class Raw(http.server.BaseHTTPRequestHandler):
    """Sends these bytes unchanged, as head and body."""

    content = b""

    def do_GET(self) -> None:
        self.wfile.write(self.content)
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def connection() -> Iterator[Connection]:
    serving = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Raw)
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    address = Address(f"http://127.0.0.1:{serving.server_port}", "token")
    connection = Connection(RemoteServer(address), timeout=5)
    yield connection
    connection.close()
    serving.shutdown()
    serving.server_close()
    thread.join()


_BODY = json.dumps({"error": "NotFound", "message": "no such job", "field": None}).encode()
_HEAD = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(_BODY)


@given(
    noise(
        b"HTTP/1.1 200 OK\r\n" + _HEAD + _BODY,
        b"HTTP/1.1 404 Not Found\r\n" + _HEAD + _BODY,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n[1]\r\n0\r\n\r\n",
        b"HTTP/1.1 500 Oh\r\nContent-Length: 3000\r\n\r\n" + b"[" * 3000,
    )
)
def test_answers_of_any_program(connection: Connection, content: bytes) -> None:
    Raw.content = content
    read_or_refused(lambda: connection.get("/x"))
    read_or_refused(lambda: read_stream(connection))


def read_stream(connection: Connection) -> None:
    with connection.stream("/x") as answer:
        list(answer)


def _refuse(path: bytes, error: OSError) -> None:
    raise RetargetError(f"{path!r}: {error}")
