"""`retarget server …`, and how commands find or start it."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

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
    assert retarget("server", "stop").returncode == 0
    assert not _is_alive(status["pid"])
    assert retarget("server", "status").returncode == 3
    again = retarget("server", "stop")
    assert (again.returncode, "no server" in again.stderr) == (0, True)


def test_jobs_go_on_without_the_server(retarget: Cli, tmp_path: Path) -> None:
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
        for _ in range(200):
            if (home / "server.json").exists():
                break
            time.sleep(0.1)
        assert json.loads(retarget("server", "status", "--json").stdout)["pid"] == child.pid
        child.send_signal(signal.SIGINT)
        child.wait(timeout=30)
    assert retarget("server", "status").returncode == 3


def test_logs_are_shown(retarget: Cli) -> None:
    assert "no server has written" in retarget("server", "logs").stderr
    retarget("server", "start")
    assert "serving" in retarget("server", "logs").stdout
    assert len(retarget("server", "logs", "-n", "1").stdout.splitlines()) == 1


def test_unreferenced_blobs_are_collected(retarget: Cli, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "hello.py").write_text("print('hello')")
    retarget("run", "--name", "h", "hello.py", cwd=code)
    assert retarget("job", "delete", "h").returncode == 0
    done = json.loads(retarget("server", "collect", "--keep", "0", "--json").stdout)
    assert done["blobs"] >= 2
    assert "removed 0 files" in retarget("server", "collect").stdout


def test_these_commands_are_about_this_machine_only(retarget: Cli) -> None:
    done = retarget("server", "status", env={"RETARGET_URL": "http://127.0.0.1:1"})
    assert done.returncode == 2
    assert "unset" in done.stderr


def test_a_server_elsewhere_that_is_not_there_is_one_sentence(retarget: Cli) -> None:
    done = retarget("job", "list", env={"RETARGET_URL": "http://127.0.0.1:1"})
    assert (done.returncode, done.stdout) == (1, "")
    assert "no server answers at http://127.0.0.1:1" in done.stderr


def test_a_server_elsewhere_is_used_with_its_token(
    retarget: Cli, home: Path, tmp_path: Path
) -> None:
    url = json.loads(retarget("server", "start", "--json").stdout)["url"]
    token = (home / "token").read_text()
    other = {"RETARGET_URL": url, "RETARGET_HOME": str(tmp_path / "unused")}
    refused = retarget("job", "list", env=other | {"RETARGET_TOKEN": "wrong"})
    assert refused.returncode == 1
    assert "token" in refused.stderr
    assert retarget("job", "list", "--json", env=other | {"RETARGET_TOKEN": token}).stdout == "[]\n"
    assert not (tmp_path / "unused").exists()


def test_a_home_that_cannot_be_written_is_one_sentence(retarget: Cli) -> None:
    done = retarget("job", "list", env={"RETARGET_HOME": "/proc/nowhere"})
    assert done.returncode == 1
    assert "RETARGET_HOME" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_server_of_another_version_is_told(retarget: Cli, home: Path) -> None:
    retarget("server", "start")
    file = home / "server.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"version": "0.0.1"}))
    done = retarget("job", "list")
    assert done.returncode == 1
    assert "0.0.1" in done.stderr
    assert "retarget server stop" in done.stderr
    assert retarget("server", "stop").returncode == 0
    assert retarget("job", "list").returncode == 0


def test_completion_knows_names_and_is_silent_without_a_server(
    retarget: Cli, tmp_path: Path
) -> None:
    def complete(words: str) -> str:
        asked = {
            "_RETARGET_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        }
        done = retarget(env=asked)
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
