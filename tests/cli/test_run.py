"""`retarget run` as a shell sees it: streams, exit codes, messages."""

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
from retarget.sdk.local_server import is_server, running_server

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


def test_stdout_gets_only_the_output_of_the_script(retarget: Cli, code: Path) -> None:
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


def test_output_is_shown_byte_for_byte(home: Path, code: Path) -> None:
    content = bytes(range(256)) * 4000 + b"50%\r100%\rno newline at the end"
    (code / "data.bin").write_bytes(content)
    write(code, "cat.py", "import sys; sys.stdout.buffer.write(open('data.bin', 'rb').read())")
    done = subprocess.run([COMMAND, "run", "cat.py"], cwd=code, capture_output=True, timeout=200)
    assert done.stdout == content


def test_arguments_after_two_dashes_go_to_the_script(retarget: Cli, code: Path) -> None:
    write(code, "args.py", "import sys; print(sys.argv[1:])")
    done = retarget("run", "args.py", "--", "--lr", "0.1", "--", "-t", "a b", cwd=code)
    assert done.stdout == "['--lr', '0.1', '--', '-t', 'a b']\n"


def test_a_command_runs_unchanged(retarget: Cli, code: Path) -> None:
    write(code, "here.txt", "content")
    done = retarget("run", "--", "sh", "-c", "cat here.txt; exit 3", cwd=code)
    assert (done.returncode, done.stdout) == (3, "content")


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


def test_variables_and_resources_reach_the_job(retarget: Cli, code: Path) -> None:
    write(code, "env.py", "import os; print(os.environ['A'], os.environ['B'])")
    flags = ("--env", "A=1", "--env", "B=x=y", "--cpus", "0.5", "--memory", "64m")
    more = ("--timeout", "1m30s", "--retries", "1", "--priority", "3", "--experiment", "trial")
    done = retarget("run", *flags, *more, "--name", "full", "env.py", cwd=code)
    assert done.stdout == "1 x=y\n", done.stderr
    view = json.loads(retarget("job", "show", "full", "--json").stdout)
    values = [view[name] for name in ("cpus", "memory", "timeout", "retries", "priority")]
    assert values == [0.5, 64 * 2**20, 90, 1, 3]
    assert view["experiment"] == "trial"


def test_env_takes_values_from_the_shell_and_from_files(retarget: Cli, code: Path) -> None:
    write(code, "env.py", "import os; print([os.environ[name] for name in 'ABCDEF'])")
    lines = ["# comment", "", "export A=1", "B = two words # comment", "C='$x # \\n'"]
    write(code, "all.env", "\n".join([*lines, 'D="a\\n\\"b\\"" # comment', "E=file", "F=#1"]))
    write(code, "more.env", "\ufeffF=more\n")
    flags = ("--env-file", "all.env", "--env-file", "more.env", "--env", "E")
    done = retarget("run", *flags, "env.py", cwd=code, env={"E": "shell"})
    values = ["1", "two words", "$x # \\n", 'a\n"b"', "shell", "more"]
    assert done.stdout == f"{values}\n", done.stderr


def test_several_processes_are_labelled_by_rank(retarget: Cli, code: Path) -> None:
    write(code, "rank.py", "import os; print('I am', os.environ['RANK'], end='')")
    done = retarget("run", "--processes-per-node", "2", "rank.py", cwd=code)
    assert sorted(done.stdout.splitlines()) == ["[rank 0] I am 0", "[rank 1] I am 1"]


def test_detach_prints_the_name_alone(retarget: Cli, code: Path) -> None:
    write(code, "hello.py", "print('hello')")
    done = retarget("run", "-d", "--name", "night", "hello.py", cwd=code)
    assert (done.returncode, done.stdout) == (0, "night\n")
    assert retarget("job", "wait", "night").returncode == 0
    assert retarget("job", "logs", "night").stdout == "hello\n"


def test_a_detached_run_can_print_its_job_as_json(retarget: Cli, code: Path) -> None:
    write(code, "hello.py", "print('hello')")
    done = retarget("run", "-d", "--json", "--name", "night", "hello.py", cwd=code)
    job = json.loads(done.stdout)
    assert (job["name"], job["command"], done.stderr) == ("night", ["python", "hello.py"], "")
    assert retarget("job", "wait", "night").returncode == 0
    refused = retarget("run", "--json", "hello.py", cwd=code)
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: --json needs --detach or --dry-run")


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
        ["environment", f"{sys.executable} if the target has it, else the target's own Python"],
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


def test_a_waiting_job_says_what_it_waits_for(retarget: Cli, code: Path) -> None:
    gate = f"while not os.path.exists({str(code / 'go')!r}): time.sleep(0.05)"
    write(code, "slow.py", f"import os, time\n{gate}")
    cpus = str(os.cpu_count())
    retarget("run", "-d", "--name", "first", "--cpus", cpus, "slow.py", cwd=code)
    second = [COMMAND, "run", "--cpus", cpus, "--name", "second", "slow.py"]
    with subprocess.Popen(second, cwd=code, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        lines = [child.stderr.readline(), child.stderr.readline()]
        (code / "go").touch()
        child.communicate(timeout=200)
    assert child.returncode == 0
    assert lines[1].startswith("waiting")
    assert "CPU" in lines[1]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["nope.py"], "script 'nope.py' not found in /"),
        (["helo.py"], "did you mean 'hello.py'?"),
        (["none/hello.py"], ", which does not exist"),
        (["python", "arg.py"], "retarget run -- python arg.py"),
        (["python", "-c", "print( 1 )"], "retarget run -- python -c 'print( 1 )'"),
        (["my", "script.py"], "quote a name with spaces: retarget run 'my script.py'\n"),
        (["my", "script.py", "5"], "retarget run 'my script.py' -- 5\n"),
        (["hello.py", "-e", "nope"], "'nope' is neither a file nor a registered"),
        (["hello.py", "--lr", "0.1"], "retarget run hello.py -- --lr 0.1"),
        (["hello.py", "5"], "retarget run hello.py -- 5"),
        (["--lrr", "hello.py"], "'--lrr'"),
        (["hello.py", "-t", "mars"], "mars"),
        (["hello.py", "--memory", "2x"], "memory: '2x'"),
        (["hello.py", "--timeout", "soon"], "timeout: 'soon'"),
        (["hello.py", "--env", "=A"], "--env '=A' is not K=V"),
        (["hello.py", "--env", "NOPE"], "NOPE is not set in this shell; write --env NOPE=VALUE"),
        (["hello.py", "--env", "conda.yml"], "use --environment conda.yml"),
        (["hello.py", "--env-file", "none.env"], "cannot read none.env: No such file"),
        (["hello.py", "--env-file", "/dev/zero"], "/dev/zero has more than 1,000,000 bytes"),
        (
            ["hello.py", "--env-file", "bad.env"],
            "bad.env line 1: not K=V; line 3: the quote is not closed; "
            "line 4: only a comment may follow the closing quote; "
            "line 5: 'a b' is not the name of a variable\n",
        ),
        (["hello.py", "--variables", "A=1"], "has no option or argument '--variables'"),
        (["hello.py", "--cpus", "100000"], "100000"),
        (["hello.py", "--cpus", "many"], "many"),
        (["hello.py", "--name", "no/good"], "name: 'no/good'"),
        (["hello.py", "--environment", "none.yml"], "environment file 'none.yml' not found"),
        (["hello.py", "--code", "nowhere"], "nowhere"),
        (["hello.py", "--python", "/no/python"], "/no/python"),
        (["plain.txt"], "plain.txt"),
        (["."], "'.' is a folder"),
        ([], "nothing to run; pass a script"),
    ],
)
def test_a_wrong_request_is_one_sentence(
    retarget: Cli, code: Path, args: list[str], sentence: str
) -> None:
    write(code, "hello.py", "print('hello')")
    write(code, "plain.txt", "text")
    write(code, "my script.py", "")
    write(code, "bad.env", "A\nB=1\nC='x\nD='x'y\na b=1\n")
    done = retarget("run", *args, cwd=code)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_the_whole_home_folder_is_not_sent_by_accident(retarget: Cli, code: Path) -> None:
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
    from_root = retarget("run", code / "project/where.py", cwd=Path("/"))
    assert "'where.py'" in from_root.stdout
    assert "whole disk" in retarget("run", "--", "ls", cwd=Path("/")).stderr


def test_reading_a_large_folder_is_reported(retarget: Cli, code: Path) -> None:
    write(code, "hello.py", "print('hello')")
    assert "reading" not in retarget("run", "--dry-run", "hello.py", cwd=code).stderr
    with (code / "large.bin").open("wb") as file:
        file.truncate(200 * 2**30)  # sparse: needs no disk space, but takes long to read
    command = [COMMAND, "run", "--dry-run", "hello.py"]
    with subprocess.Popen(command, cwd=code, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        line = child.stderr.readline()
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        assert (child.wait(timeout=200), child.stderr.read()) == (130, "interrupted\n")
    assert re.fullmatch(rf"reading {code}: [12] files?, [\d.]+ [GM]iB\n", line)


def test_a_script_that_an_ignore_file_excludes_is_refused(retarget: Cli, code: Path) -> None:
    write(code, ".gitignore", "*.py")
    write(code, "hello.py", "print('hello')")
    done = retarget("run", "hello.py", cwd=code)
    assert done.returncode == 2
    assert ".gitignore in" in done.stderr
    assert "--include hello.py" in done.stderr


def test_a_closed_pipe_is_silent(home: Path, code: Path) -> None:
    write(code, "many.py", "for n in range(100_000): print(n)")
    line = f"{COMMAND} run many.py | head -n 1"
    done = subprocess.run(line, shell=True, cwd=code, capture_output=True, text=True, timeout=200)
    assert done.stdout == "0\n"
    assert "BrokenPipe" not in done.stderr
    assert "error" not in done.stderr
    subprocess.run([COMMAND, "job", "wait", _only_job()], timeout=200, check=True)


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
    """Kill the live server; the file of a server that was killed before is not enough."""
    for _ in range(600):
        server = running_server(Home(home))
        if server is not None and is_server(server.pid):
            os.kill(server.pid, signal.SIGKILL)
            return
        time.sleep(0.05)
    raise AssertionError("no server came back")


def _only_job() -> str:
    listed = subprocess.run(
        [COMMAND, "job", "list", "--json"], capture_output=True, timeout=200, check=True
    )
    [job] = json.loads(listed.stdout)
    return job["name"]
