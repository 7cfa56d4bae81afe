"""One server for all tests, the command in this process, and a comparison of stored data."""

import io
import sqlite3
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from retarget.cli import main
from retarget.core.snapshots import is_digest
from retarget.sdk.workspace import Workspace
from tests.server.conftest import Answer, Api, serving_tests

Cli = Callable[..., "Result"]

# Load this encoding now: a test deletes the current folder, and Python remembers for the whole
# process that it could not load an encoding there.
"retarget".encode("idna")


@dataclass(frozen=True)
class Result:
    code: int
    out: bytes
    err: str

    def error_line(self) -> str:
        """Return the one line of a command that failed; stdout must be empty."""
        assert self.code in (1, 2), self
        assert self.out == b""
        assert "Traceback" not in self.err
        assert "a bug in retarget" not in self.err
        assert self.err.count("\n") == 1, self.err
        assert all(char.isprintable() or char == "\n" for char in self.err), repr(self.err)
        return self.err


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """One server for all tests: a refused request must change nothing and cause no error."""
    with serving_tests(tmp_path_factory.mktemp("home")) as api:
        api.ask("POST", "/api/targets/local/check")  # stores its node, which the loop does soon
        yield api


@pytest.fixture
def workspace(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("RETARGET_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RETARGET_URL", api.url)
    monkeypatch.setenv("RETARGET_TOKEN", api.token)
    return Workspace()


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script, which is the current folder."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "hello.py").write_text("print('hello')")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def retarget(workspace: Workspace) -> Cli:
    """Run the command without a new process: `retarget("job", "list")`."""

    def run(*args: str | Path) -> Result:
        out, err = io.BytesIO(), io.StringIO()
        with redirect_stdout(io.TextIOWrapper(out)), redirect_stderr(err):
            with pytest.raises(SystemExit) as exited:
                main([str(arg) for arg in args])
            sys.stdout.flush()
            return Result(int(exited.value.code or 0), out.getvalue(), err.getvalue())

    return run


@contextmanager
def unchanged(api: Api, *, code: bool = True) -> Generator[None]:
    """Check that the block changes nothing that the server stores.

    With `code=False` a little code may be sent before a job is refused: the corrected job uses it.
    """
    before = stored(api)
    yield
    after = stored(api)
    assert after == before | ({} if code else {"blobs": after["blobs"]})


def stored(api: Api) -> dict[str, Any]:
    """Return the number of rows of each table, and all files that were sent."""
    with closing(sqlite3.connect(f"file:{api.home}/retarget.db?mode=ro", uri=True)) as store:
        tables = store.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        rows = {
            name: store.execute(f'SELECT count(*) FROM "{name}"').fetchone() for (name,) in tables
        }
    # partial uploads do not count: the server removes them a little later
    blobs = {path.name for path in (api.home / "blobs").rglob("*") if is_digest(path.name)}
    return rows | {"blobs": blobs, "uploads": {*(api.home / "uploads").rglob("*")}}


def ask_raw(api: Api, method: str, path: str, body: bytes | None, **headers: str) -> Answer:
    """Send exactly these bytes, as JSON or with the type in `headers`."""
    default_headers = {"Authorization": f"Bearer {api.token}", "Content-Type": "application/json"}
    request = Request(api.url + path, data=body, headers=default_headers | headers, method=method)
    try:
        with urlopen(request, timeout=200) as response:
            return Answer(response.status, response.read(), dict(response.headers))
    except HTTPError as error:
        with error:
            return Answer(error.code, error.read(), dict(error.headers))


def refusal(answer: Answer, *statuses: int) -> str:
    """Return the message of a refusal, which must be short and on one line."""
    assert answer.status in (statuses or (422,)), answer.content[:500]
    error = answer.json
    assert error["error"] in ("Invalid", "NotFound", "Forbidden", "Unauthorized", "Conflict")
    message = str(error["message"])
    assert message
    assert "\n" not in message
    assert len(answer.content) < 20_000
    return message
