"""`retarget job logs`: the end of a log, lines since some time, and lines with their times."""

import re
import subprocess
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from retarget import Workspace
from retarget.sdk.http import Connection

Cli = Callable[..., subprocess.CompletedProcess[str]]


def test_the_last_lines_are_exact(retarget: Cli) -> None:
    script = "seq 1 100000; printf 'no newline'"
    retarget("run", "--name", "a", "--", "sh", "-c", script)
    whole = retarget("job", "logs", "a").stdout
    for count in (0, 2, 20_000, 1_000_000):
        expected = "".join(whole.splitlines(keepends=True)[-count:] if count else [])
        for args in ((), ("-f",), ("--stream", "output"), ("--attempt", "1")):
            assert retarget("logs", "a", "-n", str(count), *args).stdout == expected, (count, args)
    assert retarget("job", "logs", "a", "-n", "-1").returncode == 2


def test_of_several_processes_each_has_its_last_lines(retarget: Cli) -> None:
    script = "echo first; echo I am $RANK"
    retarget("run", "--name", "r", "--processes-per-node", "11", "--", "sh", "-c", script)
    expected = [f"[rank {rank}] I am {rank}" for rank in range(11)]
    assert retarget("job", "logs", "r", "-n", "1").stdout.splitlines() == expected
    followed = retarget("job", "logs", "r", "-n", "1", "-f").stdout.splitlines()
    assert sorted(followed) == sorted(expected)
    assert retarget("job", "logs", "r", "-n", "1", "--rank", "3").stdout == "I am 3\n"


def test_without_output_the_preparation_ends_the_log(retarget: Cli, tmp_path: Path) -> None:
    done = retarget("run", "--name", "b", "--pip", "no-such-package-of-ours==1", "--", "true")
    assert done.returncode == 1
    prepared = retarget("job", "logs", "b", "--stream", "prepare").stdout.splitlines(keepends=True)
    assert prepared
    for args in ((), ("-f",)):
        assert retarget("job", "logs", "b", "-n", "1", *args).stdout == prepared[-1]


def test_only_the_end_of_a_log_is_read(retarget: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    retarget("run", "--name", "a", "--", "sh", "-c", "seq 1 1000000")
    sizes: list[int] = []
    original: Any = Connection.stream

    @contextmanager
    def stream(self: Connection, *args: Any, **options: Any) -> Generator[Iterator[bytes]]:
        with original(self, *args, **options) as response:
            yield (sizes.append(len(piece)) or piece for piece in response)

    monkeypatch.setattr(Connection, "stream", stream)
    job = Workspace().jobs["a"]
    assert job.logs(lines=3) == "999998\n999999\n1000000\n"
    assert "".join(job.logs(lines=2, follow=True)) == "999999\n1000000\n"
    assert sum(sizes) < 300_000 < len("".join(job.logs()))


_SLOW = """
import time
print("early", flush=True)
time.sleep(3)
print("late", flush=True)
time.sleep(1)
print("end without a line break", end="")
"""
_STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}"


def times_of(text: str) -> dict[str, datetime]:
    matches = re.findall(rf"^({_STAMP}) (.*)$", text, re.MULTILINE)
    return {line: datetime.fromisoformat(time) for time, line in matches}


def test_each_line_has_the_time_when_it_was_written(retarget: Cli, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(_SLOW)
    retarget("run", "--name", "a", "slow.py")
    log = retarget("job", "logs", "a", "--timestamps").stdout
    times = times_of(log)
    assert list(times) == ["early", "late", "end without a line break"]
    assert times["late"] - times["early"] > timedelta(seconds=2.5)
    assert retarget("job", "logs", "a", "--timestamps", "-f").stdout == log
    last = retarget("job", "logs", "a", "--timestamps", "-n", "1").stdout
    assert last == log.splitlines()[-1]
    between = (times["early"] + timedelta(seconds=1)).isoformat()
    since = retarget("job", "logs", "a", "--since", between)
    assert since.stdout == "late\nend without a line break"
    later = (times["late"] + timedelta(minutes=5)).isoformat()
    assert retarget("job", "logs", "a", "--since", later, "--timestamps").stdout == ""
    assert retarget("job", "logs", "a", "--since", "1h").stdout == "".join(
        f"{line}\n" for line in times
    ).rstrip("\n")
    refused = retarget("job", "logs", "a", "--since", "yesterday")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--since: 'yesterday' is not a time" in refused.stderr


def test_times_are_true_although_the_server_was_away(retarget: Cli, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(_SLOW.replace("sleep(3)", "sleep(8)"))
    retarget("run", "-d", "--name", "a", "slow.py")
    job = Workspace().jobs["a"]
    assert b"early\n" in (piece for _, piece in job.follow())
    retarget("server", "stop")
    time.sleep(12)  # the script writes its other lines meanwhile
    retarget("job", "wait", "a")
    times = times_of(retarget("job", "logs", "a", "--timestamps").stdout)
    assert timedelta(seconds=7) < times["late"] - times["early"] < timedelta(seconds=11)


def test_every_rank_and_every_attempt_has_times(retarget: Cli) -> None:
    script = "echo hello from $RANK; exit 3"
    options = ("--name", "a", "--processes-per-node", "2", "--retries", "1")
    retarget("run", *options, "--", "sh", "-c", script)
    for args in ((), ("--attempt", "1"), ("-f",)):
        log = retarget("job", "logs", "a", "--timestamps", *args).stdout
        assert {re.sub(_STAMP, "", line) for line in log.splitlines()} <= {
            " [rank 0] hello from 0",
            " [rank 1] hello from 1",
        }
        assert log
    assert retarget("job", "logs", "a", "--rank", "1", "--timestamps").stdout
