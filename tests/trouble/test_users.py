"""Two users on one machine, and what is private to each."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from retarget.core.errors import Invalid
from retarget.store.engine import migrate, open_engine
from tests.chaos.processes import processes
from tests.conftest import COMMAND, Cli
from tests.server.conftest import Api, serving
from tests.trouble.machine import STRANGER, as_stranger, need_root

_SCRIPT = """
import os, time
from retarget import track
track.log(loss=0.5)
os.makedirs("logs/deep")
for path in ("outputs/model.bin", "logs/deep/more.txt"):
    open(path, "w").write("mine")
print("now it runs", flush=True)
time.sleep(float(os.environ.get("NAP", "0")))
"""
_SECRET = "hunter2-of-the-database"


class User:
    """Somebody with a home folder and no variables of ours."""

    def __init__(self, folder: Path, uid: int) -> None:
        self.home = folder / f"home-{uid}"
        self.home.mkdir(mode=0o755)
        self.holding = folder / f"holding-{uid}"
        self.holding.mkdir(mode=0o755)
        os.chown(self.home, uid, uid)
        self.uid = uid

    def run(self, *words: str, **more: str) -> "subprocess.CompletedProcess[str]":
        command = [COMMAND, *words]
        if self.uid != os.getuid():
            command = as_stranger(*command, holding=self.holding)
        own = {"HOME": str(self.home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        return subprocess.run(
            command, env=own | more, cwd=self.home, capture_output=True, text=True, timeout=60
        )

    def status(self) -> dict[str, Any]:
        return json.loads(self.run("server", "status", "--json").stdout)


@pytest.fixture
def users() -> Iterator[tuple[User, User]]:
    """Root, and a stranger; both with a server of their own, as the first command starts it."""
    need_root()
    folder = Path(tempfile.mkdtemp(prefix="retarget-users-"))
    folder.chmod(0o755)
    both = (User(folder, os.getuid()), User(folder, STRANGER))
    yield both
    for user in both:
        assert user.run("server", "stop").returncode == 0
    shutil.rmtree(folder)


def test_two_users_do_not_see_or_disturb_each_other(users: tuple[User, User]) -> None:
    root, other = users
    for user in users:
        who = f"import os; print(os.getuid(), {user.uid})"
        done = user.run("run", "--name", "same", "--code", ".", "--", "python", "-c", who)
        assert (done.returncode, done.stdout) == (0, f"{user.uid} {user.uid}\n"), done.stderr
    seen = [user.status() for user in users]
    assert [each["jobs"]["succeeded"] for each in seen] == [1, 1]
    assert seen[0]["url"] != seen[1]["url"]
    assert [_owner(each["pid"]) for each in seen] == [root.uid, other.uid]
    _cannot_enter(root, other)
    assert other.run("server", "stop").returncode == 0
    assert root.status()["pid"] == seen[0]["pid"]


def _cannot_enter(root: User, other: User) -> None:
    theirs = str(root.home / ".retarget")
    through_door = other.run("job", "list", RETARGET_URL=root.status()["url"])
    assert (through_door.returncode, "token is needed" in through_door.stderr) == (1, True)
    through_files = other.run("job", "list", RETARGET_HOME=theirs)
    assert through_files.returncode == 1
    assert "cannot be used (Permission denied)" in through_files.stderr
    assert through_files.stderr.count("\n") == 1
    look = f"import os; print([p for p, d, f in os.walk({theirs!r})])"
    command = as_stranger(sys.executable, "-c", look, holding=other.holding)
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


def _owner(pid: int) -> int:
    return os.stat(f"/proc/{pid}").st_uid


def test_all_under_the_home_is_private_whatever_the_umask(
    retarget: Cli, home: Path, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "job.py").write_text(_SCRIPT)
    before = os.umask(0)
    try:
        asked = ("--name", "n", "--pip", "--no-index", "--set-env", "NAP=600")
        assert retarget("run", "-d", *asked, "job.py", cwd=code).returncode == 0
        _until(lambda: "now it runs" in retarget("job", "logs", "n").stdout)
        assert _open_to_others(home) == []
        retarget("job", "cancel", "n")
        retarget("job", "wait", "n")
        assert _open_to_others(home) == []
    finally:
        os.umask(before)


def _open_to_others(home: Path) -> list[str]:
    """Name what others could use if they could get there; a script's own files are its matter."""
    found: list[str] = []
    for where, folders, files in os.walk(home):
        below = Path(where)
        modes = [(name, (below / name).lstat().st_mode) for name in [*folders, *files]]
        found += [str(below / name) for name, mode in modes if mode & 0o077 and not _link(mode)]
        # within these, which are private, files are as scripts and uv make them
        folders[:] = [name for name in folders if name not in ("work", "env", "retarget")]
    return found


def _link(mode: int) -> bool:
    return stat.S_ISLNK(mode)


def _until(true: Callable[[], bool], patience: float = 30.0) -> None:
    deadline = time.monotonic() + patience
    while not true():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.05)


def test_no_secret_is_where_others_could_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in the process list, a log, the database, an answer, nor in what commands print."""
    home = tmp_path / "home"
    monkeypatch.setenv("RETARGET_HOME", str(home))
    with serving(home, RETARGET_DEBUG="1") as api:
        name = api.submit("python", "-c", _SCRIPT, name="n", env={"NAP": "600"})["name"]
        api.wait(name, "running")
        (told,) = home.glob("targets/local/launches/*/launch.json")
        secrets = [json.loads(told.read_text())["contact"]["token"], api.token]
        secrets.append((home / "secret").read_text())
        api.ask("GET", "/api/jobs", token="wrong")
        assert api.job(name)["state"] == "running"
        shown = _command_lines() + _all_answers(api, name) + _all_commands(name)
        for secret in secrets:
            assert not [text for text in shown if secret in text]
            holders = {path.name for path in _files(home) if secret.encode() in path.read_bytes()}
            assert holders <= {"token", "secret", "launch.json"}
        api.ask("POST", f"/api/jobs/{name}/cancel")
        api.wait(name)
        api.cleared()


def _command_lines() -> list[str]:
    return [" ".join(process.command) for process in processes()]


def _all_answers(api: Api, name: str) -> list[str]:
    """Return what the owner is told at every address that can be asked."""
    routes = api.ask("GET", "/openapi.json").json["paths"]
    values = {"job": name, "target": "local", "name": "local", "experiment": "Default"}
    told: list[str] = []
    for route in (route for route, how in routes.items() if "get" in how):
        path = route
        for word, value in values.items():
            path = path.replace(f"{{{word}}}", value)
        answer = api.ask("GET", path.replace("{", "").replace("}", ""))
        told += [answer.content.decode(errors="replace"), str(answer.headers)]
    assert len(told) > 20
    return told


def _all_commands(name: str) -> list[str]:
    about = [["job", "show", name], ["job", "list"], ["job", "why", name], ["server", "status"]]
    about += [["target", "show", "local"], ["env", "list"], ["experiment", "list"]]
    told: list[str] = []
    for words in about:
        done = subprocess.run([COMMAND, *words, "--json"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        told += [done.stdout, done.stderr]
    wrong = os.environ | {"RETARGET_URL": "http://127.0.0.1:1", "RETARGET_TOKEN": "t0ken-of-mine"}
    done = subprocess.run([COMMAND, "job", "list"], env=wrong, capture_output=True, text=True)
    assert "t0ken-of-mine" not in done.stderr
    return told


def _files(home: Path) -> list[Path]:
    return [path for path in home.rglob("*") if path.is_file() and not path.is_symlink()]


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://user:{_SECRET}@127.0.0.1:1/name",
        f"postgresql+psycopg://127.0.0.1:1/name?user=u&password={_SECRET}",
        f"mysql://user:{_SECRET}@127.0.0.1/name",
        f"mysql://127.0.0.1/name?password={_SECRET}",
        f"//user:{_SECRET}@",
    ],
)
def test_the_password_of_a_database_is_never_shown(address: str) -> None:
    with pytest.raises(Invalid) as refused:
        migrate(open_engine(address))
    assert "database" in str(refused.value)
    assert _SECRET not in str(refused.value)


@pytest.mark.parametrize("variable", ["RETARGET_URL", "RETARGET_PUBLIC_URL"])
def test_an_address_with_a_password_is_refused_without_showing_it(
    retarget: Cli, variable: str
) -> None:
    done = retarget("job", "list", env={variable: f"http://me:{_SECRET}@127.0.0.1:1"})
    assert done.returncode in (1, 2)
    assert "leave the user and the password out of the address" in done.stderr
    assert _SECRET not in done.stderr


@pytest.mark.parametrize("given", ["soon", "nan"])
def test_a_server_whose_seconds_are_none_says_so(home: Path, given: str) -> None:
    command = [sys.executable, "-m", "retarget.server"]
    environ = os.environ | {"RETARGET_POLL_SECONDS": given}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30)
    said = f"retarget server: RETARGET_POLL_SECONDS: {given!r} is not a number of seconds above 0\n"
    assert (done.returncode, done.stderr) == (1, said)
