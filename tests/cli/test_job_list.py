"""`retarget job list`: filters, orders and columns, on real jobs."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.test_job import on_screen

Cli = Callable[..., subprocess.CompletedProcess[str]]
TRAIN = """
import sys
from retarget import track
lr = float(sys.argv[1])
track.param("lr", sys.argv[1])
track.log("acc", 1 - lr)
track.log("loss", lr)
raise SystemExit(lr > 0.7)
"""


@pytest.fixture
def sweep(retarget: Cli, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    for lr in ("0.5", "0.1", "0.9"):
        retarget("run", "--name", f"lr-{lr}", "--experiment", "sweep", "train.py", "--", lr)
    retarget("run", "--name", "other", "--", "true")


def names(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line.split()[0] for line in done.stdout.splitlines()[1:]]


def test_a_sweep_is_sorted_filtered_and_cut(retarget: Cli, sweep: None) -> None:
    best = retarget("job", "list", "--sort", "metrics.acc", "--top", "2")
    assert names(best) == ["lr-0.1", "lr-0.5"]
    assert best.stderr == "best first: the largest metrics.acc\n"
    assert best.stdout.splitlines()[1].split()[2] == "0.9"  # the value is a column
    least = retarget("job", "list", "--sort", "metrics.loss", "--top", "1")
    assert (names(least), least.stderr) == (["lr-0.1"], "best first: the smallest metrics.loss\n")
    ordered = retarget("job", "list", "--sort", "-metrics.loss", "--experiment", "sweep")
    assert names(ordered) == ["lr-0.9", "lr-0.5", "lr-0.1"]
    filtered = retarget("job", "list", "--filter", 'metrics.acc > 0.3 and params.lr = "0.1"')
    assert names(filtered) == ["lr-0.1"]
    failed = retarget("job", "list", "--filter", "state = failed", "--json")
    assert [job["name"] for job in json.loads(failed.stdout)] == ["lr-0.9"]
    assert names(retarget("job", "list", "--all")) == ["other", "lr-0.9", "lr-0.1", "lr-0.5"]
    nothing = retarget("job", "list", "--filter", "metrics.acc > 5")
    assert (nothing.stdout, nothing.stderr) == ("", "no matching jobs\n")


def test_columns_can_be_chosen(retarget: Cli, sweep: None) -> None:
    chosen = retarget("job", "list", "--columns", "name,params.lr,exit_code", "--sort", "name")
    assert [line.split() for line in chosen.stdout.splitlines()] == [
        ["NAME", "params.lr", "EXIT_CODE"],
        ["lr-0.1", "0.1", "0"],
        ["lr-0.5", "0.5", "0"],
        ["lr-0.9", "0.9", "1"],
        ["other", "0"],
    ]
    wrong = retarget("job", "list", "--columns", "name,colour")
    assert (wrong.returncode, "unknown column 'colour'" in wrong.stderr) == (2, True)


def test_the_table_says_what_ran_and_why_where_that_says_something(
    retarget: Cli, sweep: None
) -> None:
    table = on_screen("job", "list")
    assert table[0].split() == [
        *("NAME", "STATE", "COMMAND", "EXPERIMENT", "AGE", "TOOK", "REASON")
    ]
    other, failed, succeeded, _ = table[1:]
    assert "true" in other
    assert "train.py 0.9" in failed
    assert "exit code" in retarget("job", "list").stdout.splitlines()[2]
    assert "ended" not in succeeded


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--sort", "acc"], "for a logged value write metrics.acc"),
        (["--filter", "acc > 1"], "for a logged value write metrics.acc"),
        (["--top", "1", "--all"], "--limit, --all and --top exclude each other"),
    ],
)
def test_a_wrong_choice_says_what_to_write(retarget: Cli, args: list[str], sentence: str) -> None:
    done = retarget("job", "list", *args)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
