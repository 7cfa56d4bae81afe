"""`retarget config …`, and what the server does with config.toml."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from retarget.core.home import Home
from retarget.sdk.config_file import change_config, edit, read_config
from tests.conftest import Cli


def setting(retarget: Cli, name: str, **options: dict[str, str]) -> dict[str, object]:
    return json.loads(retarget("config", "get", name, "--json", **options).stdout)


def test_settings_are_listed_with_their_origin(retarget: Cli, home: Path) -> None:
    assert retarget("config", "list").stdout.splitlines()[0].split() == [
        *("NAME", "VALUE", "FROM", "MEANING")
    ]
    assert not home.exists()
    assert retarget("config", "set", "host", "127.0.0.2").returncode == 0
    values = {row["name"]: row for row in json.loads(retarget("config", "list", "--json").stdout)}
    assert (values["host"]["value"], values["host"]["origin"]) == (
        "127.0.0.2",
        str(home / "config.toml"),
    )
    assert values["port"] == {
        "name": "port",
        "value": None,
        "origin": "default",
        "default": None,
        "variable": "RETARGET_PORT",
    }
    assert setting(retarget, "host", env={"RETARGET_HOST": "::1"})["origin"] == "RETARGET_HOST"


def test_a_setting_is_stored_checked_and_removed(retarget: Cli, home: Path) -> None:
    assert "did you mean 'port'?" in retarget("config", "set", "prot", "1").stderr
    refused = retarget("config", "set", "port", "x")
    assert (refused.returncode, "'x' is not a port number" in refused.stderr) == (2, True)
    assert not (home / "config.toml").exists()
    retarget("config", "set", "port", "8123")
    assert retarget("config", "get", "port").stdout == "8123\n"
    shadowed = retarget("config", "set", "port", "8124", env={"RETARGET_PORT": "9000"})
    assert "RETARGET_PORT is set and overrides" in shadowed.stderr
    retarget("config", "unset", "port")
    assert retarget("config", "get", "port").returncode == 1
    assert "is not set" in retarget("config", "unset", "port").stderr


def test_a_password_is_readable_by_its_owner_only_and_never_shown(
    retarget: Cli, home: Path
) -> None:
    url = "postgresql+psycopg://me:geheim@127.0.0.1:1/jobs"
    texts = [retarget("config", "set", "database", input=f"{url}\n")]
    assert url in (home / "config.toml").read_text()
    assert stat.S_IMODE((home / "config.toml").stat().st_mode) == 0o600
    texts += [
        retarget("config", *command)
        for command in (("list",), ("list", "--json"), ("get", "database"), ("set", "port", "0"))
    ]
    texts += [retarget("server", "start"), retarget("server", "logs"), retarget("job", "list")]
    assert "postgresql+psycopg://me:***@127.0.0.1:1/jobs" in texts[1].stdout
    assert not any("geheim" in done.stdout + done.stderr for done in texts)
    assert "cannot open the database" in texts[-1].stderr


def test_comments_and_order_stay(home: Path) -> None:
    home.mkdir()
    text = '# mine\nhost = "a#b"  # where\n\n"port"=1# old\n# end'
    (home / "config.toml").write_text(text)
    change_config(Home(home), "host", "c#d")
    change_config(Home(home), "port", 2)
    change_config(Home(home), "target", "gpu")
    assert (home / "config.toml").read_text() == (
        '# mine\nhost = "c#d"  # where\n\nport = 2# old\n# end\ntarget = "gpu"\n'
    )
    change_config(Home(home), "host", None)
    assert "where" not in (home / "config.toml").read_text()
    assert edit("", "port", 1) == "port = 1\n"


def test_a_layout_that_is_not_understood_is_left_alone(retarget: Cli, home: Path) -> None:
    home.mkdir()
    file = home / "config.toml"
    file.write_text('database = """postgresql://host/n?application_name=\\\nport = 1"""\n')
    before = file.read_bytes()
    done = retarget("config", "set", "port", "2")
    assert (done.returncode, "cannot be changed safely" in done.stderr) == (2, True)
    assert file.read_bytes() == before


def test_concurrent_changes_all_arrive(home: Path) -> None:
    names = {"host": "::1", "port": 1, "target": "gpu", "poll_seconds": 2.0}
    program = (
        "import sys; from pathlib import Path; from retarget.core.home import Home; "
        "from retarget.sdk.config_file import change_config\n"
        "for value in range(30): change_config(Home(Path(sys.argv[1])), sys.argv[2], "
        "eval(sys.argv[3]))"
    )

    def change(name: str) -> None:
        command = [sys.executable, "-c", program, str(home), name, repr(names[name])]
        subprocess.run(command, check=True, timeout=200)

    with ThreadPoolExecutor() as pool:
        list(pool.map(change, names))
    assert read_config(Home(home)) == names


def link_to_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def write_binary(path: Path) -> None:
    path.write_bytes(b"\xff\xfe")


def write_sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 30)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (os.mkfifo, "is not a regular file"),
        (os.mkdir, "is not a regular file"),
        (link_to_device, "is not a regular file"),
        (write_binary, "is not text in UTF-8"),
        (write_sparse, "has more than 1,000,000 bytes"),
    ],
    ids=["fifo", "folder", "device", "binary", "large"],
)
def test_what_is_no_file_of_settings_is_refused(
    retarget: Cli, home: Path, make: Callable[[Path], object], sentence: str
) -> None:
    home.mkdir()
    make(home / "config.toml")
    for command in (("config", "list"), ("config", "set", "port", "1"), ("server", "start")):
        done = retarget(*command)
        assert done.returncode != 0
        assert f"config.toml {sentence}" in done.stderr


def test_the_server_uses_the_settings_and_says_when_it_does_not_yet(
    retarget: Cli, home: Path
) -> None:
    retarget("config", "set", "host", "127.0.0.2")
    url = json.loads(retarget("server", "start", "--json").stdout)["url"]
    assert url.startswith("http://127.0.0.2:")
    assert (
        "the running server keeps its old settings" in retarget("config", "set", "port", "0").stderr
    )
    retarget("server", "stop")
    (home / "config.toml").write_text("prot = 1")
    failed = retarget("job", "list")
    assert failed.returncode == 1
    assert f"{home}/config.toml: unknown key 'prot'; did you mean 'port'?" in failed.stderr


def test_an_option_wins_over_the_file(retarget: Cli) -> None:
    retarget("config", "set", "host", "127.0.0.2")
    started = retarget("server", "start", "--host", "127.0.0.3", "--json")
    assert json.loads(started.stdout)["url"].startswith("http://127.0.0.3:")


def test_a_home_does_not_start_on_an_empty_database_by_mistake(
    retarget: Cli, home: Path, tmp_path: Path
) -> None:
    elsewhere = f"sqlite:///{tmp_path}/elsewhere.db"
    retarget("server", "start", env={"RETARGET_DATABASE": elsewhere})
    retarget("server", "stop")
    refused = retarget("job", "list")
    assert refused.returncode == 1
    assert f"was last served from the database {elsewhere}" in refused.stderr
    assert "`retarget config set database URL`" in refused.stderr
    assert f"delete {home}/served-database" in refused.stderr
    assert not (home / "retarget.db").exists()
    retarget("config", "set", "database", elsewhere)
    assert retarget("job", "list").returncode == 0
    retarget("server", "stop")
    retarget("config", "unset", "database")
    (home / "served-database").unlink()
    assert retarget("job", "list").returncode == 0
    assert (home / "retarget.db").exists()


@pytest.mark.parametrize("has_jobs", [False, True])
def test_a_home_may_leave_its_own_database(retarget: Cli, tmp_path: Path, has_jobs: bool) -> None:
    if has_jobs:
        assert retarget("run", "--", "true").returncode == 0
    retarget("server", "start")
    retarget("server", "stop")
    other = {"RETARGET_DATABASE": f"sqlite:///{tmp_path}/other.db"}
    assert retarget("server", "start", env=other).returncode == 0
    assert "retarget.db stay there; this server uses" in retarget("server", "logs").stdout
    retarget("server", "stop")
    assert (retarget("job", "list").returncode == 0) == has_jobs
