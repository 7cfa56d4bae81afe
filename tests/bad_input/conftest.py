"""One server for all bad input, the command in this very process, and a look at what is kept."""

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

Cli = Callable[..., "Done"]

# Python remembers an encoding that it could not load once, as in a folder that has vanished, for
# all the tests that come after; here it is loaded before.
"retarget".encode("idna")


@dataclass(frozen=True)
class Done:
    code: int
    out: bytes
    err: str

    def sentence(self) -> str:
        """Return what was said about a refusal: one line, and no result."""
        assert self.code in (1, 2), self
        assert self.out == b""
        assert "Traceback" not in self.err
        assert "a fault of retarget" not in self.err
        assert self.err.count("\n") == 1, self.err
        assert all(each.isprintable() or each == "\n" for each in self.err), repr(self.err)
        return self.err


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """One server for all: what it refuses leaves nothing behind. It never makes a mistake."""
    with serving_tests(tmp_path_factory.mktemp("home")) as api:
        yield api


@pytest.fixture
def workspace(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("RETARGET_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RETARGET_URL", api.url)
    monkeypatch.setenv("RETARGET_TOKEN", api.token)
    return Workspace()


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script, and the current one."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "hello.py").write_text("print('hello')")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def retarget(workspace: Workspace) -> Cli:
    """The command, without a new process for it: `retarget("job", "list")`."""

    def run(*args: str | Path) -> Done:
        out, err = io.BytesIO(), io.StringIO()
        with redirect_stdout(io.TextIOWrapper(out)), redirect_stderr(err):
            with pytest.raises(SystemExit) as ended:
                main([str(arg) for arg in args])
            sys.stdout.flush()
            return Done(int(ended.value.code or 0), out.getvalue(), err.getvalue())

    return run


@contextmanager
def unchanged(api: Api, *, code: bool = True) -> Generator[None]:
    """See that the block leaves everything that the server keeps as it was.

    A little `code` may be sent before a job is refused: it is there when the job is mended.
    """
    before = kept(api)
    yield
    after = kept(api)
    assert after == before | ({} if code else {"blobs": after["blobs"]})


def kept(api: Api) -> dict[str, Any]:
    """Return how many rows each table has, and every file that was sent."""
    with closing(sqlite3.connect(f"file:{api.home}/retarget.db?mode=ro", uri=True)) as store:
        tables = store.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        rows = {
            name: store.execute(f'SELECT count(*) FROM "{name}"').fetchone() for (name,) in tables
        }
    # a part that broke off is removed as soon as the server notices
    blobs = {path.name for path in (api.home / "blobs").rglob("*") if is_digest(path.name)}
    return rows | {"blobs": blobs, "uploads": {*(api.home / "uploads").rglob("*")}}


def ask_raw(api: Api, method: str, path: str, body: bytes | None, **headers: str) -> Answer:
    """Send exactly these bytes as JSON, or as what `headers` say."""
    given = {"Authorization": f"Bearer {api.token}", "Content-Type": "application/json"}
    request = Request(api.url + path, data=body, headers=given | headers, method=method)
    try:
        with urlopen(request, timeout=30) as response:
            return Answer(response.status, response.read(), dict(response.headers))
    except HTTPError as error:
        with error:
            return Answer(error.code, error.read(), dict(error.headers))


def refusal(answer: Answer, *statuses: int) -> str:
    """Return the sentence of a refusal, which is short and of one line."""
    assert answer.status in (statuses or (422,)), answer.content[:500]
    told = answer.json
    assert told["error"] in ("Invalid", "NotFound", "Forbidden", "Unauthorized", "Conflict")
    message = str(told["message"])
    assert message
    assert "\n" not in message
    assert len(answer.content) < 20_000
    return message
