"""`retarget server …`, and how commands find or start it."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., subprocess.CompletedProcess[str]]
COMMAND = str(Path(sys.executable).parent / "retarget")


def test_start_status_stop(retarget: Cli, home: Path) -> None:
    down = retarget("server", "status", "--json")
    assert (down.returncode, json.loads(down.stdout)["running"]) == (3, False)
    assert not home.exists()
    started = json.loads(retarget("server", "start", "--json").stdout)
    status = json.loads(retarget("server", "status", "--json").stdout)
    assert status["running"] is True
    assert {"pid", "url", "version"} <= status.keys()
    assert json.loads(retarget("server", "start", "--json").stdout)["pid"] == started["pid"]
    assert _is_alive(status["pid"])
    stopped = retarget("server", "stop")
    assert (stopped.returncode, stopped.stderr) == (0, "Server stopped. Running jobs continue.\n")
    assert not _is_alive(status["pid"])
    assert retarget("server", "status").returncode == 3
    repeated = retarget("server", "stop")
    assert (repeated.returncode, "no server" in repeated.stderr) == (0, True)


def test_jobs_continue_without_the_server(retarget: Cli, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "slow.py").write_text("import time; time.sleep(2); print('through')")
    retarget("run", "-d", "--name", "s", "slow.py", cwd=code)
    time.sleep(0.5)
    retarget("server", "stop")
    time.sleep(2)
    assert retarget("job", "wait", "s").returncode == 0
    assert retarget("job", "logs", "s").stdout == "through\n"


def test_the_server_runs_in_the_foreground(retarget: Cli, home: Path) -> None:
    with subprocess.Popen([COMMAND, "server", "run"], stderr=subprocess.DEVNULL) as child:
        while not (home / "servers/main/server.json").exists():
            time.sleep(0.1)
        assert json.loads(retarget("server", "status", "--json").stdout)["pid"] == child.pid
        child.send_signal(signal.SIGINT)
        child.wait(timeout=200)
    assert retarget("server", "status").returncode == 3


def test_logs_are_shown(retarget: Cli) -> None:
    assert "no server has run here yet" in retarget("server", "logs").stderr
    retarget("server", "start")
    assert "serving" in retarget("server", "logs").stdout
    assert len(retarget("server", "logs", "-n", "1").stdout.splitlines()) == 1


def test_a_large_log_of_the_server_is_begun_anew_and_still_shown(retarget: Cli, home: Path) -> None:
    retarget("server", "start")
    log, previous = home / "servers/main/server.log", home / "servers/main/server.log.1"
    command = [COMMAND, "server", "logs", "--follow", "-n", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        first = follower.stdout.readline()
        with log.open("a") as file:
            file.write("".join(f"line {number:0100}\n" for number in range(110_000)))
        deadline = time.monotonic() + 200
        while log.stat().st_size or not previous.exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert previous.stat().st_size > 10 << 20
        with log.open("a") as file:
            file.write("after it\n")
        shown = [first]
        while "after it" not in shown[-1]:
            shown.append(follower.stdout.readline())
            assert shown[-1], "the command has ended"
        follower.terminate()
    written = [line for line in shown if line.startswith("line ")]
    assert written == [f"line {number:0100}\n" for number in range(110_000)]
    assert shown[-1] == "after it\n"
    lines = retarget("server", "logs", "-n", "2").stdout.splitlines()
    assert lines == [f"line {109_999:0100}", "after it"]


def test_unreferenced_blobs_are_pruned(retarget: Cli, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "hello.py").write_text("print('hello')")
    retarget("run", "--name", "h", "hello.py", cwd=code)
    assert retarget("job", "delete", "h").returncode == 0
    pruned = json.loads(retarget("server", "prune", "--keep", "0", "--json").stdout)
    assert pruned["blobs"] >= 2
    assert "deleted 0 files" in retarget("server", "prune").stdout


@pytest.mark.parametrize("command", ["start", "stop", "run", "logs"])
def test_some_commands_are_only_for_this_machines_server(retarget: Cli, command: str) -> None:
    done = retarget("server", command, env={"RETARGET_URL": "http://127.0.0.1:1"})
    assert done.returncode == 2
    assert f"`retarget server {command}` manages the server of this machine" in done.stderr
    assert "RETARGET_URL names the server at http://127.0.0.1:1" in done.stderr


def test_status_reports_on_the_server_at_retarget_url(
    retarget: Cli, home: Path, tmp_path: Path
) -> None:
    local = json.loads(retarget("server", "start", "--json").stdout)
    remote = {
        "RETARGET_URL": local["url"] + "/",
        "RETARGET_TOKEN": (home / "token").read_text(),
        "RETARGET_HOME": str(tmp_path / "unused"),
    }
    shown = json.loads(retarget("server", "status", "--json", env=remote).stdout)
    for name in ("running", "pid", "url", "version", "home", "jobs"):
        assert shown[name] == local[name]
    assert (
        f"at {local['url']}, pid {local['pid']}" in retarget("server", "status", env=remote).stdout
    )
    refused = retarget("server", "status", env=remote | {"RETARGET_TOKEN": "wrong"})
    assert (refused.returncode, "token" in refused.stderr) == (1, True)
    retarget("server", "stop")
    gone = retarget("server", "status", "--json", env=remote)
    assert (gone.returncode, json.loads(gone.stdout)["running"]) == (3, False)
    assert f"no server answers at {local['url']}" in gone.stderr
    assert not (tmp_path / "unused").exists()


def test_start_takes_an_address_and_a_port(retarget: Cli) -> None:
    first = json.loads(retarget("server", "start", "--host", "127.0.0.2", "--json").stdout)
    host, _, port = first["url"].removeprefix("http://").partition(":")
    assert host == "127.0.0.2"
    assert retarget("server", "start", "--host", "127.0.0.2", "--port", port).returncode == 0
    other = retarget("server", "start", "--port", str(int(port) ^ 1))
    assert other.returncode == 1
    assert (
        f"is already running and listens on 127.0.0.2:{port}; to change that, stop it"
        in other.stderr
    )
    assert retarget("server", "stop").returncode == 0
    moved = retarget("server", "start", "--port", port, "--json")
    assert json.loads(moved.stdout)["url"] == f"http://127.0.0.1:{port}"


def test_a_server_on_all_interfaces_warns_once_in_each_place(retarget: Cli) -> None:
    sentence = "without encryption"
    for command in ("start", "status"):
        done = retarget("server", command, env={"RETARGET_HOST": "0.0.0.0"})
        assert (done.returncode, done.stderr.count(sentence)) == (0, 1), done.stderr
        assert done.stderr.startswith("warning: the server listens on 0.0.0.0:")
    assert retarget("server", "logs").stdout.count(sentence) == 1
    assert sentence not in retarget("job", "list").stderr
    retarget("server", "stop")
    assert sentence not in retarget("server", "start").stderr


def test_a_server_listens_on_ipv6(retarget: Cli) -> None:
    started = retarget("server", "start", "--host", "::1", "--json")
    if "Cannot assign requested address" in started.stderr:
        pytest.skip("this machine has no IPv6")
    assert json.loads(started.stdout)["url"].startswith("http://[::1]:")
    assert started.stderr == ""


@pytest.mark.parametrize(
    ("argument", "code", "text"),
    [("--help", 0, "usage: python -m retarget.server"), ("-x", 2, "unexpected argument '-x'")],
)
def test_the_server_module_explains_itself_and_starts_nothing(
    home: Path, argument: str, code: int, text: str
) -> None:
    command = [sys.executable, "-m", "retarget.server", argument]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == code
    assert text in done.stdout + done.stderr
    assert not home.exists()


def test_an_unreachable_server_is_one_sentence(retarget: Cli) -> None:
    done = retarget("job", "list", env={"RETARGET_URL": "http://127.0.0.1:1"})
    assert (done.returncode, done.stdout) == (1, "")
    assert "no server answers at http://127.0.0.1:1" in done.stderr


def test_a_remote_server_is_used_with_its_token(retarget: Cli, home: Path, tmp_path: Path) -> None:
    url = json.loads(retarget("server", "start", "--json").stdout)["url"]
    token = (home / "token").read_text()
    remote = {"RETARGET_URL": url, "RETARGET_HOME": str(tmp_path / "unused")}
    refused = retarget("job", "list", env=remote | {"RETARGET_TOKEN": "wrong"})
    assert refused.returncode == 1
    assert "token" in refused.stderr
    assert (
        retarget("job", "list", "--json", env=remote | {"RETARGET_TOKEN": token}).stdout == "[]\n"
    )
    assert not (tmp_path / "unused").exists()


def test_a_home_that_cannot_be_written_is_one_sentence(retarget: Cli) -> None:
    done = retarget("job", "list", env={"RETARGET_HOME": "/proc/nowhere"})
    assert done.returncode == 1
    assert "RETARGET_HOME" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_server_of_another_version_is_reported(retarget: Cli, home: Path) -> None:
    retarget("server", "start")
    file = home / "servers/main/server.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"version": "0.0.1"}))
    done = retarget("job", "list")
    assert done.returncode == 1
    assert "0.0.1" in done.stderr
    assert "retarget server stop" in done.stderr
    assert retarget("server", "stop").returncode == 0
    assert retarget("job", "list").returncode == 0


def test_completion_offers_names_and_is_silent_without_a_server(
    retarget: Cli, tmp_path: Path
) -> None:
    def complete(line: str) -> str:
        variables = {
            "_RETARGET_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split(" ")) - 1),
        }
        done = retarget(env=variables)
        assert done.stderr == ""
        return done.stdout

    assert complete("retarget job show ").strip() == ""
    (tmp_path / "code").mkdir()
    (tmp_path / "code/hello.py").write_text("print('hello')")
    retarget("run", "--name", "night", "hello.py", cwd=tmp_path / "code")
    assert complete("retarget job show ni").split() == ["night"]
    assert complete("retarget run -t ").split() == ["local"]
    assert "list" in complete("retarget job ").split()


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
