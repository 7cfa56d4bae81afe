"""`retarget job wait`, `cancel` and `delete` on many jobs."""

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Cli = Callable[..., subprocess.CompletedProcess[str]]
COMMAND = str(Path(sys.executable).parent / "retarget")


@pytest.fixture
def sweep(retarget: Cli) -> Iterator[Cli]:
    """Three jobs that have ended (the second failed with 7), one that sleeps, and another."""
    for name, command in (("sweep-1", "true"), ("sweep-2", "exit 7"), ("sweep-3", "true")):
        retarget("run", "--name", name, "--experiment", "sw", "--", "sh", "-c", command)
    retarget("run", "--name", "other", "--", "true")
    retarget("run", "-d", "--name", "sweep-long", "--experiment", "sw", "--", "sleep", "300")
    while json.loads(retarget("job", "show", "sweep-long", "--json").stdout)["state"] != "running":
        time.sleep(0.05)
    yield retarget
    retarget("job", "cancel", "sweep-*")
    assert retarget("job", "wait", "sweep-long").returncode == 130


def names(retarget: Cli) -> list[str]:
    return [row["name"] for row in json.loads(retarget("job", "list", "--json").stdout)]


def test_several_jobs_and_patterns_are_waited_for(sweep: Cli) -> None:
    done = sweep("job", "wait", "other", "sweep-?")
    assert done.returncode == 7  # that of the first one that did not succeed
    assert [line.split()[0] for line in done.stderr.splitlines()] == [
        *("other", "sweep-3", "sweep-2", "sweep-1")
    ]
    assert sweep("job", "wait", "sweep-1", "other", "sweep-1").stderr.count("succeeded") == 2
    wrong = sweep("job", "wait", "other", "nobody")
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("error: no job named 'nobody'")
    assert sweep("job", "cancel", "sweep-long").returncode == 0
    assert sweep("job", "wait", "--experiment", "sw").returncode == 130


def test_a_pattern_cancels_only_jobs_that_have_not_ended(sweep: Cli) -> None:
    done = sweep("job", "cancel", "sweep-*")
    assert (done.returncode, done.stderr) == (0, "canceling sweep-long\n")
    sweep("job", "wait", "sweep-long")
    again = sweep("job", "cancel", "sweep-*", "--experiment", "sw")
    assert (again.returncode, again.stderr) == (0, "4 matching jobs have already ended\n")
    assert sweep("job", "cancel", "sweep-1").returncode == 1


def test_a_pattern_deletes_only_jobs_that_have_ended(sweep: Cli) -> None:
    done = sweep("job", "delete", "sweep-*")
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "skipped 1 job that has not ended: sweep-long (running)",
        *("deleted sweep-3", "deleted sweep-2", "deleted sweep-1"),
    ]
    assert names(sweep) == ["sweep-long", "other"]


def test_names_patterns_and_options_all_restrict(sweep: Cli) -> None:
    done = sweep("job", "delete", "*", "--older-than", "7d")
    assert done.returncode == 1
    assert done.stderr == (
        "error: no job matches '*' and is older than 7d; `retarget job list --all` shows all\n"
    )
    done = sweep("job", "delete", "other", "sweep-1", "--experiment", "sw")
    assert done.returncode == 1
    assert "no job matches 'other' and is in experiment 'sw'" in done.stderr
    assert "deleted sweep-1\n" in done.stderr
    assert sweep("rm", "--older-than", "0.001s", "--experiment", "sw").returncode == 0
    assert names(sweep) == ["sweep-long", "other"]


@pytest.mark.parametrize("command", ["wait", "cancel", "delete"])
def test_what_chooses_no_job_is_one_sentence(retarget: Cli, command: str) -> None:
    for args, code, text in (
        ((), 2, "missing jobs; pass names, patterns such as 'sweep-*', or --experiment NAME"),
        (("x-*",), 1, "no job matches 'x-*'; `retarget job list --all` shows all"),
        (("--experiment", "no"), 1, "no job is in experiment 'no'; `retarget job list --all` "),
        (("--older-than", "7x"), 2, "--older-than: '7x' is not a duration; write 90s, 15m"),
        (("a b*",), 2, "name: 'a b*' is not a pattern for names of jobs"),
    ):
        done = retarget("job", command, *args)
        assert done.returncode == code, args
        assert done.stderr.startswith(f"error: {text}")
        assert done.stderr.count("\n") == 1


def test_delete_lists_the_jobs_and_asks_once(sweep: Cli) -> None:
    shown = ask("job", "delete", "sweep-*", answer=b"n\n", code=1)
    assert [line.split()[0] for line in shown.splitlines() if line.startswith("  ")] == [
        *("sweep-3", "sweep-2", "sweep-1")
    ]
    assert "  sweep-2  failed, " in shown
    assert "Delete these 3 jobs with logs, outputs, metrics and artifacts?" in shown
    assert len(names(sweep)) == 5
    ask("rm", "sweep-*", answer=b"y\n", code=0)
    assert names(sweep) == ["sweep-long", "other"]


def ask(*args: str, answer: bytes, code: int) -> str:
    """Run a command on a terminal, answer its one question, and return what it showed."""
    master, terminal = pty.openpty()
    with subprocess.Popen([COMMAND, *args], stdin=terminal, stderr=terminal) as child:
        shown = b""
        while b"?" not in shown:
            shown += os.read(master, 65536)
        os.write(master, answer)
        assert child.wait(timeout=200) == code
    while select.select([master], [], [], 0)[0]:
        shown += os.read(master, 65536)
    os.close(terminal)
    os.close(master)
    return shown.decode().replace("\r", "")
