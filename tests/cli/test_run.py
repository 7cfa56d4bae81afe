"""`retarget run` as a shell sees it: streams, exit codes, sentences."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from retarget.core.home import Home
from retarget.sdk.background import is_server, running

Cli = Callable[..., subprocess.CompletedProcess[str]]
SLOW = "import time\nfor n in range(40): print('line', n, flush=True); time.sleep(0.1)"
COMMAND = str(Path(sys.executable).parent / "retarget")


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    return folder


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_script_runs_and_its_output_is_all_that_stdout_gets(retarget: Cli, code: Path) -> None:
    write(code, "hello.py", "print('hello')")
    done = retarget("run", "hello.py", cwd=code)
    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert "succeeded" in done.stderr
    assert "retarget job show" in done.stderr


def test_the_exit_code_is_the_scripts(retarget: Cli, code: Path) -> None:
    write(code, "fail.py", "import sys; print('out'); sys.exit(7)")
    done = retarget("run", "fail.py", cwd=code)
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert "exit code 7" in done.stderr


def test_output_comes_byte_for_byte(home: Path, code: Path) -> None:
    content = bytes(range(256)) * 4000 + b"50%\r100%\rno newline at the end"
    (code / "data.bin").write_bytes(content)
    write(code, "cat.py", "import sys; sys.stdout.buffer.write(open('data.bin', 'rb').read())")
    done = subprocess.run([COMMAND, "run", "cat.py"], cwd=code, capture_output=True, timeout=60)
    assert done.stdout == content


def test_arguments_after_two_dashes_go_to_the_script(retarget: Cli, code: Path) -> None:
    write(code, "args.py", "import sys; print(sys.argv[1:])")
    done = retarget("run", "args.py", "--", "--lr", "0.1", "--", "-t", "a b", cwd=code)
    assert done.stdout == "['--lr', '0.1', '--', '-t', 'a b']\n"


def test_a_command_runs_as_it_is(retarget: Cli, code: Path) -> None:
    write(code, "here.txt", "found")
    done = retarget("run", "--", "sh", "-c", "cat here.txt; exit 3", cwd=code)
    assert (done.returncode, done.stdout) == (3, "found")


def test_a_shell_script_and_an_executable_run(retarget: Cli, code: Path) -> None:
    write(code, "a.sh", "echo from sh")
    write(code, "tool", "#!/bin/sh\necho from tool").chmod(0o755)
    assert retarget("run", "a.sh", cwd=code).stdout == "from sh\n"
    assert retarget("run", "tool", cwd=code).stdout == "from tool\n"


def test_a_script_elsewhere_is_sent_with_its_own_folder(retarget: Cli, code: Path) -> None:
    elsewhere = code.parent / "elsewhere"
    elsewhere.mkdir()
    (code / "pkg").mkdir()
    write(code / "pkg", "part.py", "word = 'imported'")
    write(code / "pkg", "main.py", "import os, part; print(part.word, os.path.isdir('pkg'))")
    outside = retarget("run", code / "pkg" / "main.py", cwd=elsewhere)
    assert outside.stdout == "imported False\n"
    inside = retarget("run", "pkg/main.py", cwd=code)
    assert inside.stdout == "imported True\n"


def test_code_names_the_folder_to_send(retarget: Cli, code: Path, tmp_path: Path) -> None:
    write(code, "main.py", "print('of code')")
    assert retarget("run", "--code", code, "main.py", cwd=tmp_path).stdout == "of code\n"
    assert retarget("run", "--code", "code", "code/main.py", cwd=tmp_path).stdout == "of code\n"


def test_variables_and_resources_arrive(retarget: Cli, code: Path) -> None:
    write(code, "env.py", "import os; print(os.environ['A'], os.environ['B'])")
    flags = ("--set-env", "A=1", "--set-env", "B=x=y", "--cpus", "0.5", "--memory", "64m")
    more = ("--timeout", "1m30s", "--retries", "1", "--priority", "3", "--experiment", "trial")
    done = retarget("run", *flags, *more, "--name", "full", "env.py", cwd=code)
    assert done.stdout == "1 x=y\n", done.stderr
    view = json.loads(retarget("job", "show", "full", "--json").stdout)
    told = [view[name] for name in ("cpus", "memory", "timeout", "retries", "priority")]
    assert told == [0.5, 64 * 2**20, 90, 1, 3]
    assert view["experiment"] == "trial"


def test_several_processes_are_told_apart(retarget: Cli, code: Path) -> None:
    write(code, "rank.py", "import os; print('I am', os.environ['RANK'], end='')")
    done = retarget("run", "--processes-per-node", "2", "rank.py", cwd=code)
    assert sorted(done.stdout.splitlines()) == ["[rank 0] I am 0", "[rank 1] I am 1"]


def test_detach_prints_the_name_alone(retarget: Cli, code: Path) -> None:
    write(code, "hello.py", "print('hello')")
    done = retarget("run", "-d", "--name", "night", "hello.py", cwd=code)
    assert (done.returncode, done.stdout) == (0, "night\n")
    assert retarget("job", "wait", "night").returncode == 0
    assert retarget("job", "logs", "night").stdout == "hello\n"


def test_a_dry_run_starts_nothing(retarget: Cli, code: Path) -> None:
    write(code, "hello.py", "print('hello')")
    plan = json.loads(retarget("run", "--dry-run", "--json", "hello.py", cwd=code).stdout)
    assert plan["target"] == "local"
    assert plan["code"]["files"] == 1
    shown = retarget("run", "--dry-run", "--memory", "2g", "hello.py", "--", "a b", cwd=code)
    lines = [line.split(maxsplit=1) for line in shown.stdout.splitlines()]
    assert lines == [
        ["folder", f"{code} (1 file, 14 B)"],
        ["command", "python hello.py 'a b'"],
        ["target", "local"],
        ["environment", f"{sys.executable} if it is there, else the target's own Python"],
        ["resources", "1 CPU, 2.0 GiB"],
    ]
    assert retarget("run", "--json", "hello.py", cwd=code).returncode == 2
    assert json.loads(retarget("job", "list", "--json").stdout) == []


def test_a_retry_is_followed_too(retarget: Cli, code: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    text = f"import os, sys; n = os.path.exists({str(mark)!r}); open({str(mark)!r}, 'w')\n"
    write(code, "flaky.py", text + "print('try', int(n)); sys.exit(0 if n else 4)")
    done = retarget("run", "--retries", "2", "flaky.py", cwd=code)
    assert (done.returncode, done.stdout) == (0, "try 0\ntry 1\n")


def test_a_job_that_waits_says_for_what(retarget: Cli, code: Path) -> None:
    write(code, "slow.py", "import time; time.sleep(2)")
    cpus = str(os.cpu_count())
    retarget("run", "-d", "--name", "first", "--cpus", cpus, "slow.py", cwd=code)
    done = retarget("run", "--cpus", cpus, "--name", "second", "slow.py", cwd=code)
    assert done.returncode == 0
    assert "\nwaiting" in done.stderr
    assert "CPU" in done.stderr


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["nope.py"], "there is no script 'nope.py' in /"),
        (["helo.py"], "did you mean 'hello.py'?"),
        (["none/hello.py"], "there is no such folder"),
        (["python", "arg.py"], "retarget run -- python arg.py"),
        (["python", "-c", "print( 1 )"], "retarget run -- python -c 'print( 1 )'"),
        (["my", "script.py"], "quote a name with blanks: retarget run 'my script.py'\n"),
        (["my", "script.py", "5"], "retarget run 'my script.py' -- 5\n"),
        (["hello.py", "--env", "nope"], "'nope' is neither a file here nor a registered"),
        (["hello.py", "--lr", "0.1"], "retarget run hello.py -- --lr 0.1"),
        (["hello.py", "5"], "retarget run hello.py -- 5"),
        (["--lrr", "hello.py"], "'--lrr'"),
        (["hello.py", "-t", "mars"], "mars"),
        (["hello.py", "--memory", "2x"], "memory: '2x'"),
        (["hello.py", "--timeout", "soon"], "timeout: 'soon'"),
        (["hello.py", "--set-env", "A"], "--set-env 'A' is not K=V"),
        (["hello.py", "--cpus", "100000"], "100000"),
        (["hello.py", "--cpus", "many"], "many"),
        (["hello.py", "--name", "no/good"], "name: 'no/good'"),
        (["hello.py", "--env", "none.yml"], "none.yml"),
        (["hello.py", "--code", "nowhere"], "nowhere"),
        (["hello.py", "--python", "/no/python"], "/no/python"),
        (["plain.txt"], "plain.txt"),
        (["."], "'.' is a folder"),
        ([], "what to run?"),
    ],
)
def test_a_wrong_request_is_one_sentence(
    retarget: Cli, code: Path, args: list[str], sentence: str
) -> None:
    write(code, "hello.py", "print('hello')")
    write(code, "plain.txt", "text")
    write(code, "my script.py", "")
    done = retarget("run", *args, cwd=code)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_the_home_folder_is_never_sent_by_accident(retarget: Cli, code: Path) -> None:
    user = {"HOME": str(code)}
    (code / "project").mkdir()
    write(code / "project", "where.py", "import os; print(os.listdir())")
    write(code, "hello.py", "print('hello')")
    inside = retarget("run", "project/where.py", cwd=code, env=user)
    assert "'where.py'" in inside.stdout
    assert "hello.py" not in inside.stdout
    for args in (("hello.py",), ("--", "ls")):
        refused = retarget("run", *args, cwd=code, env=user)
        assert refused.returncode == 2
        assert "would send your whole home folder" in refused.stderr
        assert "--code" in refused.stderr
    assert retarget("run", "--code", ".", "hello.py", cwd=code, env=user).stdout == "hello\n"
    from_the_top = retarget("run", code / "project/where.py", cwd=Path("/"))
    assert "'where.py'" in from_the_top.stdout
    assert "whole disk" in retarget("run", "--", "ls", cwd=Path("/")).stderr


def test_a_folder_that_takes_long_to_read_is_told(retarget: Cli, code: Path) -> None:
    write(code, "hello.py", "print('hello')")
    assert "reading" not in retarget("run", "--dry-run", "hello.py", cwd=code).stderr
    with (code / "large.bin").open("wb") as file:
        file.truncate(200 * 2**30)  # takes no room on the disk, and long to be read
    command = [COMMAND, "run", "--dry-run", "hello.py"]
    with subprocess.Popen(command, cwd=code, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        line = child.stderr.readline()
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        assert (child.wait(timeout=30), child.stderr.read()) == (130, "")
    assert re.fullmatch(rf"reading {code}: [12] files?, [\d.]+ [GM]iB\n", line)


def test_a_script_that_is_ignored_is_told_before_it_fails(retarget: Cli, code: Path) -> None:
    write(code, ".gitignore", "*.py")
    write(code, "hello.py", "print('hello')")
    done = retarget("run", "hello.py", cwd=code)
    assert done.returncode == 2
    assert "ignore file" in done.stderr


def test_a_closed_pipe_is_silent(home: Path, code: Path) -> None:
    write(code, "many.py", "for n in range(100_000): print(n)")
    line = f"{COMMAND} run many.py | head -n 1"
    done = subprocess.run(line, shell=True, cwd=code, capture_output=True, text=True, timeout=60)
    assert done.stdout == "0\n"
    assert "BrokenPipe" not in done.stderr
    assert "error" not in done.stderr
    subprocess.run([COMMAND, "job", "wait", _only_job()], timeout=60, check=True)


def test_following_survives_a_killed_server(home: Path, code: Path) -> None:
    write(code, "slow.py", SLOW)
    lines: list[str] = []
    with _running(code, "slow.py") as child:
        assert child.stdout is not None
        for line in child.stdout:
            lines.append(line)
            if line in ("line 5\n", "line 20\n"):
                _kill_server(home)
    assert lines == [f"line {n}\n" for n in range(40)]
    assert child.returncode == 0


def test_following_survives_a_stopped_server(home: Path, retarget: Cli, code: Path) -> None:
    write(code, "slow.py", SLOW)
    lines: list[str] = []
    with _running(code, "slow.py") as child:
        assert child.stdout is not None
        for line in child.stdout:
            lines.append(line)
            if line == "line 5\n":
                assert retarget("server", "stop").returncode == 0
    assert lines == [f"line {n}\n" for n in range(40)]
    assert child.returncode == 0


def _running(code: Path, *args: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([COMMAND, "run", *args], cwd=code, stdout=subprocess.PIPE, text=True)


def _kill_server(home: Path) -> None:
    """Kill the server that lives now; what one that was killed before wrote is not enough."""
    for _ in range(600):
        found = running(Home(home))
        if found is not None and is_server(found.pid):
            os.kill(found.pid, signal.SIGKILL)
            return
        time.sleep(0.05)
    raise AssertionError("no server came back")


def _only_job() -> str:
    listed = subprocess.run(
        [COMMAND, "job", "list", "--json"], capture_output=True, timeout=60, check=True
    )
    [job] = json.loads(listed.stdout)
    return job["name"]
