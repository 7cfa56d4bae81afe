"""Why a script failed, from its log: with real scripts, and with logs of any bytes."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retarget.runner.failure import (
    MAX_CHARACTERS,
    TAIL_BYTES,
    describe_failure,
    find_cause,
    find_last_exception,
    find_last_line,
)
from retarget.testing import Receiver
from tests.runner.harness import HarnessLaunch, RunnerHarness

_TASK_GROUP = """
import asyncio

async def work(n):
    1 / n

async def main():
    async with asyncio.TaskGroup() as group:
        group.create_task(work(0))

asyncio.run(main())
"""

_TORCHRUN = """\
[rank1]: Traceback (most recent call last):
[rank0]: Traceback (most recent call last):
[rank1]:   File "{root}/train.py", line 12, in <module>
[rank0]:   File "{root}/train.py", line 9, in <module>
[rank1]:     1 / 0
[rank0]:     dist.all_reduce(x)
[rank1]: ZeroDivisionError: division by zero
[rank0]: RuntimeError: Connection closed by peer
E0101 09:00:00.000 torch/distributed/elastic/multiprocessing/api.py:870] failed (exitcode: 1)
Traceback (most recent call last):
  File "/usr/local/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-01-01_09:00:01
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 122)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_09:00:00
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 123)
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""

# fails as soon as its runner is gone
_FAIL_ALONE = """
import os, time
runner = os.getppid()
os.write(1, b'go')
while os.getppid() == runner: time.sleep(0.01)
1 / 0
"""


def _cause_of(folder: Path, code: str, script: str = "train.py") -> str:
    """Run a script in a folder and return what its log says about its end."""
    path = folder / script
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code)
    program = sys.executable if script.endswith(".py") else "bash"
    ended = subprocess.run(
        [program, str(path)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert ended.returncode != 0
    return find_cause(ended.stdout, [str(folder)])


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("print('go')\n1 / 0\n", "ZeroDivisionError: division by zero (train.py:2)"),
        ("assert 1 == 2\n", "AssertionError (train.py:1)"),
        ("def f(\n", "SyntaxError: '(' was never closed (train.py:1)"),
        ("if True:\npass\n", "IndentationError: expected an indented block after 'if' statement "
         "on line 1 (train.py:2)"),
        ("import json\njson.loads('{')\n", "json.decoder.JSONDecodeError: Expecting property "
         "name enclosed in double quotes: line 1 column 2 (char 1) (train.py:2)"),
        ("try:\n    1 / 0\nexcept ArithmeticError as error:\n    raise ValueError('no') from error",
         "ValueError: no (train.py:4)"),
        ("try:\n    1 / 0\nexcept ArithmeticError:\n    {}['x']", "KeyError: 'x' (train.py:4)"),
        ("print(' 50%', end='', flush=True)\n1 / 0\n",
         "ZeroDivisionError: division by zero (train.py:2)"),
        ("raise ValueError('first\\nsecond')", "ValueError: first (train.py:1)"),
        ("raise ValueError('\\n\\nsecond')", "ValueError: second (train.py:1)"),
        ("raise ValueError('a\\x1b[31mb\\x07\\tc')", "ValueError: ab\\x07 c (train.py:1)"),
        ("import sys; sys.exit('error: no data')", "error: no data"),
        ("import argparse; p = argparse.ArgumentParser(prog='train.py')\n"
         "p.add_argument('--lr', required=True); p.parse_args()",
         "train.py: error: the following arguments are required: --lr"),
        ("import sys; print('epoch 3'); sys.exit(3)", ""),
        ("import sys; sys.exit(3)", ""),
        (_TASK_GROUP, "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception): "
         "ZeroDivisionError: division by zero (train.py:5)"),
        ("raise ExceptionGroup('a', [ExceptionGroup('b', [KeyError(1)]), TypeError(2)])",
         "ExceptionGroup: a (2 sub-exceptions): KeyError: 1 (train.py:1)"),
    ],
)  # fmt: skip
def test_the_cause_is_the_last_exception_and_its_place(
    tmp_path: Path, code: str, cause: str
) -> None:
    assert _cause_of(tmp_path, code) == cause


def test_the_place_is_the_innermost_line_of_the_users_own_code(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "load.py").write_text("import json\ndef load(): return json.loads('x')\n")
    assert _cause_of(tmp_path, "from lib.load import load\nload()\n").endswith("(lib/load.py:2)")


def test_a_syntax_error_in_an_imported_module_has_the_place_in_that_module(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("x = (\n")
    assert _cause_of(tmp_path, "import other\n") == "SyntaxError: '(' was never closed (other.py:1)"


def test_paths_of_the_code_folder_are_relative_in_the_message(tmp_path: Path) -> None:
    cause = _cause_of(tmp_path, "import os\nopen(os.path.abspath('data/x.csv'))\n")
    expected = "[Errno 2] No such file or directory: 'data/x.csv'"
    assert cause == f"FileNotFoundError: {expected} (train.py:2)"


def test_a_shell_says_which_command_is_missing(tmp_path: Path) -> None:
    cause = _cause_of(tmp_path, "echo go\nno-such-program --now\n", "job.sh")
    assert cause == "job.sh: line 2: no-such-program: command not found"


def test_a_handled_exception_is_not_the_cause_of_an_end_long_after_it(tmp_path: Path) -> None:
    code = (
        "import sys, traceback\ntry: 1 / 0\nexcept ArithmeticError: traceback.print_exc()\n"
        "for step in range(100): print('step', step, flush=True)\nsys.exit(4)"
    )
    assert _cause_of(tmp_path, code) == ""


def test_a_later_usage_error_counts_more_than_a_handled_exception(tmp_path: Path) -> None:
    code = (
        "import sys, traceback\ntry: 1 / 0\nexcept ArithmeticError: traceback.print_exc()\n"
        "sys.exit('train.py: error: no data')"
    )
    assert _cause_of(tmp_path, code) == "train.py: error: no data"


def test_output_after_the_exception_does_not_hide_it(tmp_path: Path) -> None:
    code = "import atexit\natexit.register(print, 'bye')\n1 / 0\n"
    assert _cause_of(tmp_path, code) == "ZeroDivisionError: division by zero (train.py:3)"


def test_of_several_processes_under_torchrun_the_first_failure_is_the_cause() -> None:
    log = _TORCHRUN.format(root="/work").encode()
    assert find_cause(log, ["/work"]) == "rank 1: ZeroDivisionError: division by zero (train.py:12)"


def test_without_labels_the_exception_before_the_report_of_torchrun_is_the_cause() -> None:
    log = _TORCHRUN.format(root="/work").replace("[rank1]: ", "")
    log = "\n".join(line for line in log.split("\n") if not line.startswith("[rank0]"))
    cause = find_cause(log.encode(), ["/work"])
    assert cause == "rank 1: ZeroDivisionError: division by zero (train.py:12)"


def test_a_log_that_goes_on_after_an_exception_does_not_end_with_it() -> None:
    log = b'Traceback (most recent call last):\n  File "/w/a.py", line 1, in f\nKeyError: 1\n'
    assert find_last_exception(log, ["/w"]) == "KeyError: 1 (a.py:1)"
    assert find_last_exception(log + b"next epoch\n", ["/w"]) == ""


def test_a_terminal_title_without_an_end_does_not_hide_the_cause() -> None:
    log = b'\x1b]0;title\nTraceback (most recent call last):\n  File "a.py", line 1\nKeyError: 1\n'
    assert find_cause(log, []) == "KeyError: 1 (a.py:1)"


def test_a_long_message_is_cut() -> None:
    log = b"Traceback (most recent call last):\n  x\nValueError: " + b"long " * 10_000
    assert len(find_cause(log, [])) == MAX_CHARACTERS


def test_a_reason_without_a_cause_is_a_sentence() -> None:
    assert describe_failure("rank 1", 9, "") == "rank 1 ended with exit code 9"
    last = find_last_line(b"loss 1\rloss 2\nno data in /w/x.csv\n\n", ["/w"])
    assert describe_failure("the script", 1, "", last) == (
        "the script ended with exit code 1; its last line: no data in x.csv"
    )
    assert describe_failure("rank 1", 9, "KeyError: 1") == "rank 1: exit code 9: KeyError: 1"
    assert describe_failure("the script", 1, "KeyError: 1") == "exit code 1: KeyError: 1"


_PARTS = st.sampled_from(
    [
        b"Traceback (most recent call last):\n",
        b"  + Exception Group Traceback (most recent call last):\n",
        b'  File "/w/train.py", line 12, in f\n',
        b'  File "/w/train.py", line 12\n',
        b'  |   File "/w/train.py", line 12, in f\n',
        b"  | ExceptionGroup: a (1 sub-exception)\n",
        b"  +-+---------------- 1 ----------------\n",
        b"    | KeyError: 1\n",
        b"[rank3]: ",
        b"ChildFailedError:\n",
        b"  rank      : 1\n",
        b"ValueError:",
        b": error: ",
        b"\r",
        b"\n",
        b"\x1b[",
        b"\x1b]0;",
    ]
)


@given(st.lists(_PARTS | st.binary(max_size=40), max_size=40).map(b"".join))
def test_any_log_gives_a_short_printable_cause(log: bytes) -> None:
    for cause in (find(log, ["/w"]) for find in (find_cause, find_last_exception, find_last_line)):
        assert cause.isprintable()
        assert len(cause) <= 3 * MAX_CHARACTERS


def test_a_huge_log_takes_no_time() -> None:
    for line in (
        b"[" * TAIL_BYTES,
        b" " * TAIL_BYTES,
        b"Traceback " * TAIL_BYTES,
        b"\x1b]" * 99999,
    ):
        assert find_cause(b"x\n" + line, ["/w"]) == ""


def test_the_runner_reports_the_cause(harness: RunnerHarness) -> None:
    finished = harness.run("python", "-c", "print('go'); 1 / 0").finished
    assert finished["reason"] == "exit code 1: ZeroDivisionError: division by zero"
    assert (finished["outcome"], finished["exit_code"]) == ("failed", 1)


def test_a_runner_that_takes_over_reports_the_exception_too(harness: RunnerHarness) -> None:
    """The script fails while no runner can see its exit code."""
    launch = harness.launch("python", "-c", _FAIL_ALONE).start()
    _kill_until_the_script_has_failed(launch)
    reason = launch.start().finish().finished["reason"]
    assert reason == (
        "its runner was killed while the script ran; the log ends with "
        "ZeroDivisionError: division by zero"
    )


def test_a_secret_in_the_exception_is_masked(harness: RunnerHarness, receiver: Receiver) -> None:
    receiver.secrets = {"TOKEN": "s3cret value"}
    code = "import os; raise ValueError(f'bad token  {os.environ[\"TOKEN\"]}')"
    reason = harness.run("python", "-c", code, secrets=("TOKEN",)).finished["reason"]
    assert reason == f"exit code 1: ValueError: bad token {'*' * len('s3cret value')}"


def test_a_runner_that_takes_over_quotes_no_log_that_it_cannot_mask(
    harness: RunnerHarness, receiver: Receiver
) -> None:
    receiver.secrets = {"TOKEN": "s3cret value"}
    launch = harness.launch("python", "-c", _FAIL_ALONE, secrets=("TOKEN",)).start()
    _kill_until_the_script_has_failed(launch)
    reason = launch.start().finish().finished["reason"]
    assert reason == "its runner was killed while the script ran"


def _kill_until_the_script_has_failed(launch: HarnessLaunch) -> None:
    launch.wait_for_output("output", b"go")
    launch.kill()
    output = launch.folder / "streams" / "output"
    while not output.read_bytes().endswith(b"by zero\n"):
        time.sleep(0.01)


def test_a_failed_cell_of_a_notebook_is_the_cause_whatever_was_printed_before() -> None:
    traceback = (
        b"Traceback (most recent call last):\n  File \"a.py\", line 1\nKeyError: 'handled'\n"
    )
    last = b"retarget: cell 3 of my nb.ipynb failed: ValueError: cell 1 of x failed: no\n"
    cause = "ValueError: cell 1 of x failed: no (cell 3 of my nb.ipynb)"
    assert find_cause(traceback + last, ["/work"]) == cause
    long = b"retarget: cell 3 of nb.ipynb failed: ValueError: " + 1000 * b"x" + b"\n"
    assert find_cause(long, []).endswith("\u2026 (cell 3 of nb.ipynb)")


def test_a_program_of_the_layer_is_shown_without_the_path_of_the_launch() -> None:
    log = b"/h/launches/0a/layer/bin/python: No module named churnkit.trian"
    assert find_cause(log, ["/h/launches/0a/work"]) == "python: No module named churnkit.trian"
