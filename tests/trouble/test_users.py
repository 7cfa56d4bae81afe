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
from tests.runner.harness import wheel
from tests.server.conftest import Api, serving
from tests.trouble.root import OTHER_UID, as_other_user, need_root

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
    """A user with a home folder and without our variables."""

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
            command = as_other_user(*command, holding=self.holding)
        own = {"HOME": str(self.home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        own["TMPDIR"] = str(self.home)  # where Podman puts its folder
        return subprocess.run(
            command, env=own | more, cwd=self.home, capture_output=True, text=True, timeout=200
        )

    def status(self) -> dict[str, Any]:
        return json.loads(self.run("server", "status", "--json").stdout)


@pytest.fixture
def users() -> Iterator[tuple[User, User]]:
    """Root and another user, each with the server that their first command starts."""
    need_root()
    folder = Path(tempfile.mkdtemp(prefix="retarget-users-"))
    folder.chmod(0o755)
    both = (User(folder, os.getuid()), User(folder, OTHER_UID))
    yield both
    for user in both:
        assert user.run("server", "stop").returncode == 0
    shutil.rmtree(folder)


def test_two_users_do_not_see_or_disturb_each_other(users: tuple[User, User]) -> None:
    root, other = users
    for user in users:
        code = f"import os; print(os.getuid(), {user.uid})"
        done = user.run("run", "--name", "same", "--code", ".", "--", "python", "-c", code)
        assert (done.returncode, done.stdout) == (0, f"{user.uid} {user.uid}\n"), done.stderr
    statuses = [user.status() for user in users]
    assert [status["jobs"]["succeeded"] for status in statuses] == [1, 1]
    assert statuses[0]["url"] != statuses[1]["url"]
    assert [_owner(status["pid"]) for status in statuses] == [root.uid, other.uid]
    _cannot_enter(root, other)
    assert other.run("server", "stop").returncode == 0
    assert root.status()["pid"] == statuses[0]["pid"]


def test_what_an_ordinary_user_cannot_read_is_named_and_not_kept(users: tuple[User, User]) -> None:
    _, other = users
    closed = (
        "import os; os.mkdir('closed'); open('closed/x', 'w').close(); os.chmod('closed', 0)\n"
        "open('secret', 'w').close(); os.chmod('secret', 0); open('plain', 'w').close()"
    )
    done = other.run("run", "--code", ".", "--", "python", "-c", closed)
    assert done.returncode == 0, done.stderr
    assert "also kept 1 file written outside outputs/: plain" in done.stderr
    assert "not kept: closed/, secret (0 B): it cannot be read" in done.stderr


def test_a_folder_that_cannot_be_entered_is_named_and_the_rest_is_kept(
    users: tuple[User, User],
) -> None:
    _, other = users
    listable = (
        "import os\nfor folder in ('w', 'outputs/o', 'logs/l'):\n"
        "    os.makedirs(f'{folder}/deep'); open(f'{folder}/x', 'w').close()\n"
        "    os.chmod(folder, 0o600)\n"
        "open('plain', 'w').close(); open('outputs/plain', 'w').close()"
    )
    done = other.run("run", "--code", ".", "--", "python", "-c", listable)
    assert done.returncode == 0, done.stderr
    assert "1 output" in done.stderr
    assert "also kept 1 file written outside outputs/: plain\n" in done.stderr
    assert "not kept: w/: it cannot be read\n" in done.stderr
    for folder in ("outputs/o", "logs/l"):
        expected = f"retarget: {folder} is not kept: it cannot be read: Permission denied\n"
        assert expected in done.stderr


def test_a_launch_that_its_script_closed_ends_and_does_not_hold_up_others(
    users: tuple[User, User],
) -> None:
    _, other = users
    for path in ("..", "../streams", "../runner.log"):
        close = f"import os; print('seen', flush=True); os.chmod({path!r}, 0)"
        done = other.run("run", "--code", ".", "--", "python", "-c", close)
        assert (done.returncode, done.stdout) == (0, "seen\n"), done.stderr


def _cannot_enter(root: User, other: User) -> None:
    home = str(root.home / ".retarget")
    with_token = other.run("job", "list", RETARGET_URL=root.status()["url"])
    assert (with_token.returncode, "missing token" in with_token.stderr) == (1, True)
    through_files = other.run("job", "list", RETARGET_HOME=home)
    assert through_files.returncode == 1
    assert "cannot be used (Permission denied)" in through_files.stderr
    assert through_files.stderr.count("\n") == 1
    code = f"import os; print([p for p, d, f in os.walk({home!r})])"
    command = as_other_user(sys.executable, "-c", code, holding=other.holding)
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


def _owner(pid: int) -> int:
    return os.stat(f"/proc/{pid}").st_uid


def test_everything_in_the_home_is_private_whatever_the_umask(
    retarget: Cli, home: Path, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "job.py").write_text(_SCRIPT)
    before = os.umask(0)
    try:
        options = ("--name", "n", "--pip", "--no-index", "--env", "NAP=600")
        assert retarget("run", "-d", *options, "job.py", cwd=code).returncode == 0
        _until(lambda: "now it runs" in retarget("job", "logs", "n").stdout)
        assert _open_to_others(home) == []
        retarget("job", "cancel", "n")
        retarget("job", "wait", "n")
        assert _open_to_others(home) == []
    finally:
        os.umask(before)


def _open_to_others(home: Path) -> list[str]:
    """Name the files that others could read if they could enter the home, except scripts' own."""
    paths: list[str] = []
    for folder, folders, files in os.walk(home):
        below = Path(folder)
        modes = [(name, (below / name).lstat().st_mode) for name in [*folders, *files]]
        paths += [str(below / name) for name, mode in modes if mode & 0o077 and not _link(mode)]
        # these folders are private; scripts and uv choose the modes of the files in them
        folders[:] = [name for name in folders if name not in ("work", "env", "retarget")]
    return paths


def _link(mode: int) -> bool:
    return stat.S_ISLNK(mode)


def _until(condition: Callable[[], bool], timeout: float = 200) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "the condition never became true"
        time.sleep(0.05)


def test_no_secret_is_readable_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the process list, a log, the database or a response, nor in printed output."""
    home = tmp_path / "home"
    monkeypatch.setenv("RETARGET_HOME", str(home))
    with serving(home, RETARGET_DEBUG="1") as api:
        name = api.submit("python", "-c", _SCRIPT, name="n", variables={"NAP": "600"})["name"]
        api.wait(name, "running")
        (launch_file,) = home.glob("targets/local/launches/*/launch.json")
        contact = json.loads(launch_file.read_text())["contact"]
        secrets = [contact["runner_key"], contact["script_token"], api.token]
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
    """Return the responses to the user for every route with GET that ends."""
    routes = api.ask("GET", "/openapi.json").json["paths"]
    del routes["/api/events"]  # has no end; an event names only what has changed
    values = {"job": name, "target": "local", "name": "local", "experiment": "Default"}
    answers: list[str] = []
    for route in (route for route, how in routes.items() if "get" in how):
        path = route
        for word, value in values.items():
            path = path.replace(f"{{{word}}}", value)
        answer = api.ask("GET", path.replace("{", "").replace("}", ""))
        answers += [answer.content.decode(errors="replace"), str(answer.headers)]
    assert len(answers) > 20
    return answers


def _all_commands(name: str) -> list[str]:
    commands = [["job", "show", name], ["job", "list"], ["job", "why", name], ["server", "status"]]
    commands += [["target", "show", "local"], ["env", "list"], ["experiment", "list"]]
    texts: list[str] = []
    for words in commands:
        done = subprocess.run([COMMAND, *words, "--json"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        texts += [done.stdout, done.stderr]
    wrong = os.environ | {"RETARGET_URL": "http://127.0.0.1:1", "RETARGET_TOKEN": "t0ken-of-mine"}
    done = subprocess.run([COMMAND, "job", "list"], env=wrong, capture_output=True, text=True)
    assert "t0ken-of-mine" not in done.stderr
    return texts


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
    assert "the address must not contain a user or password" in done.stderr
    assert _SECRET not in done.stderr


@pytest.mark.parametrize("seconds", ["soon", "nan"])
def test_a_server_with_an_invalid_number_of_seconds_says_so(home: Path, seconds: str) -> None:
    command = [sys.executable, "-m", "retarget.server"]
    environ = os.environ | {"RETARGET_POLL_SECONDS": seconds}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=200)
    message = (
        f"retarget server: RETARGET_POLL_SECONDS: {seconds!r} is not a number of seconds above 0\n"
    )
    assert (done.returncode, done.stderr) == (1, message)


_PIP = (
    "pip install -q --no-index ./tinypkg-1.0-py3-none-any.whl && "
    "python -c 'import tinypkg; print(tinypkg.__file__)'"
)


def test_pip_in_a_job_changes_only_the_job_whoever_runs_it(
    users: tuple[User, User],
) -> None:
    before = _packages(Path(sys.prefix)), _packages(Path(sys.base_prefix))
    for user in users:
        wheel(user.home / "code")
        os.chown(user.home / "code", user.uid, user.uid)
        for path in (sys.executable, os.path.realpath(sys.executable)):
            command = ("--code", "code", "--python", path, "--", "sh", "-c", _PIP)
            done = user.run("run", *command)
            assert done.returncode == 0, done.stdout + done.stderr
            assert "/layer/lib/python" in done.stdout
        assert not (user.home / ".local").exists()
    assert (_packages(Path(sys.prefix)), _packages(Path(sys.base_prefix))) == before


def _packages(prefix: Path) -> dict[str, int]:
    return {
        str(path): path.stat().st_mtime_ns for path in prefix.glob("lib/python*/site-packages/*")
    }
