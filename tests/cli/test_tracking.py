"""Metrics, experiments and models in the terminal, on real jobs."""

import csv
import io
import json
import math
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from retarget.cli.numbers import show_number, sparkline
from retarget.cli.terminal import printable
from retarget.sdk.job import Job
from retarget.sdk.workspace import Workspace
from tests.cli.test_job import on_screen

Cli = Callable[..., subprocess.CompletedProcess[str]]
COMMAND = str(Path(sys.executable).parent / "retarget")
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@pytest.fixture
def run_job(home: Path, tmp_path: Path) -> Callable[..., Job]:
    """Run a job that writes outputs/model.pkl, and log these metrics and params to it."""
    code = tmp_path / "code"
    code.mkdir()

    def run(
        name: str,
        metrics: dict[str, list[Any]] | None = None,
        params: dict[str, str] | None = None,
        **options: Any,
    ) -> Job:
        workspace = Workspace()
        command = ["sh", "-c", "printf weights > outputs/model.pkl"]
        job = workspace.submit(command, name=name, code=code, **options)
        job.wait()
        points = [
            {"key": key, "value": value, "step": step, "timestamp": 1000 * step}
            for key, values in (metrics or {}).items()
            for step, value in enumerate(values)
        ]
        rows = [{"key": key, "value": value} for key, value in (params or {}).items()]
        body = {"run_id": job.id, "metrics": points, "params": rows}
        workspace._connection.post("/api/2.0/mlflow/runs/log-batch", body)  # pyright: ignore[reportPrivateUsage]
        return job

    return run


def in_terminal(*args: str, answer: bytes = b"") -> tuple[int, str]:
    """Run a command on a terminal; return its exit code and what it wrote."""
    master, terminal = pty.openpty()
    env = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    child = subprocess.Popen(
        [COMMAND, *args], stdin=terminal, stdout=terminal, stderr=terminal, env=env
    )
    os.close(terminal)
    os.write(master, answer)
    shown = b""
    with suppress(OSError):  # Linux raises it when the other side is closed
        while piece := os.read(master, 65536):
            shown += piece
    os.close(master)
    return child.wait(timeout=200), shown.decode()


@pytest.mark.parametrize(
    ("values", "drawn", "plain"),
    [
        ([], "", ""),
        ([7.0], "▅", "+"),
        ([3.0, 3.0, 3.0], "▅▅▅", "+++"),
        ([0.0, 7.0], "▁█", "_@"),
        ([0.0, math.nan, 7.0, math.inf], "▁x█x", "_x@x"),
        ([math.nan, -math.inf], "xx", "xx"),
        ([-1.7e308, 1.7e308, 0.0], "▁█▅", "_@+"),
        ([0.0, 0.0, 7.0, 7.0, 0.0, 0.0, 7.0, 7.0], "▁█▁█", "_@_@"),
        ([1.7e308] * 8, "▅▅▅▅", "++++"),
    ],
)
def test_a_line_of_numbers(values: list[float], drawn: str, plain: str) -> None:
    assert sparkline(values, 4, blocks=True) == drawn
    assert sparkline(values, 4, blocks=False) == plain


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.25, "0.25"),
        (1200.0, "1200"),
        (1 / 3, "0.333333"),
        (1.5e-07, "1.5e-07"),
        (1e300, "1e+300"),
        (math.nan, "NaN"),
        (-math.inf, "-inf"),
        (None, ""),
    ],
)
def test_a_number_is_short(value: float | None, text: str) -> None:
    assert show_number(value) == text


def test_control_characters_are_escaped() -> None:
    assert printable("a\x1b[31mb\x07\x9b\u202ec") == "a\\x1b[31mb\\x07\\x9b\\u202ec"
    assert printable("plain é 猫 [bold]") == "plain é 猫 [bold]"


def test_metrics_are_drawn_within_the_screen(retarget: Cli, run_job: Callable[..., Job]) -> None:
    logged = {
        "loss": [1.0, 0.5, 0.25],
        "flat": [2.0] * 200,
        "odd": [1.0, "NaN", "Infinity"],
        "void": ["NaN"],
        "long/" + "n" * 100: [1.0],
    }
    run_job("night", logged)
    rows = [line.split() for line in retarget("job", "metrics", "night").stdout.splitlines()]
    assert rows[0] == ["METRIC", "BY", "STEP", "FIRST", "MIN", "MAX", "LAST", "STEP"]
    by_key = {row[0]: row[1:] for row in rows[1:]}
    assert by_key["loss"] == ["█▃▁", "1", "0.25", "1", "0.25", "2"]
    assert by_key["flat"] == ["▅" * 40, "2", "2", "2", "2", "199"]
    assert by_key["odd"] == ["▅xx", "1", "1", "inf", "inf", "2"]
    assert by_key["void"] == ["x", "NaN", "NaN", "0"]
    for columns in (80, 50):
        shown = on_screen("job", "metrics", "night", columns=columns)
        assert len(shown) == 6
        assert any("…" in line for line in shown)
    ascii_only = retarget("job", "metrics", "night", "loss", env={"PYTHONIOENCODING": "ascii"})
    assert ascii_only.stdout.splitlines()[1].split()[1] == "@-_"
    poor = retarget("job", "metrics", "night", "los")
    assert (poor.returncode, poor.stderr.count("\n")) == (1, 1)
    assert "it has flat, long/" in poor.stderr


def test_metrics_as_numbers(retarget: Cli, run_job: Callable[..., Job]) -> None:
    run_job("night", {"loss": [float(step) for step in range(50)], "odd": ["NaN", "-Infinity"]})
    one = retarget("job", "metrics", "night", "odd", "--csv")
    assert one.stdout == (
        "step,logged_at,value\n"
        "0,1970-01-01T00:00:00.000000Z,NaN\n"
        "1,1970-01-01T00:00:01.000000Z,-Infinity\n"
    )
    assert one.stderr == ""
    few = retarget("job", "metrics", "night", "--csv", "--points", "2")
    assert few.stdout.splitlines()[:3] == [
        "key,step,logged_at,value",
        "loss,0,1970-01-01T00:00:00.000000Z,0.0",
        "loss,49,1970-01-01T00:00:49.000000Z,49.0",
    ]
    assert few.stderr == "loss: 2 of 50 points, evenly spaced\n"
    loss, odd = json.loads(retarget("job", "metrics", "night", "--json").stdout)
    assert (loss["total"], loss["max"], len(loss["points"])) == (50, 49.0, 50)
    assert [point["value"] for point in odd["points"]] == ["NaN", "-Infinity"]
    assert retarget("job", "metrics", "night", "--json", "--csv").returncode == 2
    assert retarget("job", "metrics", "night", "--points", "0").returncode == 2


def test_a_job_without_metrics_says_so(retarget: Cli, run_job: Callable[..., Job]) -> None:
    run_job("quiet")
    done = retarget("job", "metrics", "quiet")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "quiet has logged no metrics\n"
    assert json.loads(retarget("job", "metrics", "quiet", "--json").stdout) == []


def test_metrics_are_followed_to_the_end(retarget: Cli, tmp_path: Path) -> None:
    job = Workspace().submit(["sh", "-c", "while test ! -e go; do sleep 0.1; done"], code=tmp_path)
    body = {"run_id": job.id, "metrics": [{"key": "loss", "value": 1, "timestamp": 1, "step": 1}]}
    Workspace()._connection.post("/api/2.0/mlflow/runs/log-batch", body)  # pyright: ignore[reportPrivateUsage]
    master, terminal = pty.openpty()
    args = [COMMAND, "job", "metrics", job.name, "-f"]
    with subprocess.Popen(args, stdout=terminal, env=os.environ | {"TERM": "xterm"}) as child:
        os.close(terminal)
        shown = b""
        while b"loss" not in shown:
            shown += os.read(master, 65536)
        job.cancel()
        with suppress(OSError):
            while piece := os.read(master, 65536):
                shown += piece
        assert child.wait(timeout=200) == 0
    os.close(master)
    last = re.sub(r"\x1b\[[\d;?]*\w", "", shown.decode()).rstrip().splitlines()[-1]
    assert last.split() == ["loss", "▅", "1", "1", "1", "1", "1"]
    plain = retarget("job", "metrics", job.name, "-f")
    assert plain.stdout.splitlines()[-1].split()[0] == "loss"


def test_jobs_side_by_side(retarget: Cli, run_job: Callable[..., Job]) -> None:
    run_job("one", {"loss": [0.5], "acc": [0.5], "odd": ["NaN"]}, {"lr": "0.1", "size": "32"})
    run_job("two", {"loss": [0.25], "acc": [0.25], "odd": ["NaN"]}, {"lr": "0.2", "size": "32"})
    rows = [line.split() for line in retarget("job", "compare", "one", "two").stdout.splitlines()]
    assert rows[0] == ["one", "two"]
    assert rows[1] == ["state", "succeeded", "succeeded"]
    assert rows[2][0] == "took"
    assert rows[3:] == [
        ["params"],
        ["lr", "0.1", "0.2"],
        ["size", "32", "32"],
        ["metrics"],
        ["acc", "0.5*", "0.25"],
        ["loss", "0.5", "0.25*"],
        ["odd", "NaN", "NaN"],
    ]
    text = retarget("job", "compare", "one", "two", "--diff", "--csv").stdout
    table = list(csv.reader(io.StringIO(text)))
    assert table[0] == ["kind", "key", "one", "two"]
    assert [row for row in table[1:] if row[1] != "took"] == [
        ["param", "lr", "0.1", "0.2"],
        ["metric", "acc", "0.5", "0.25"],
        ["metric", "loss", "0.5", "0.25"],
    ]
    first, second = json.loads(retarget("job", "compare", "one", "two", "--json").stdout)
    assert (first["name"], first["metrics"]["odd"], second["params"]["lr"]) == ("one", "NaN", "0.2")
    alone = retarget("job", "compare", "one", "one")
    message = "error: compare needs 2 to 100 jobs, got 1\n"
    assert (alone.returncode, alone.stderr) == (2, message)


def test_many_jobs_are_compared_within_the_screen(run_job: Callable[..., Job]) -> None:
    names = [f"a-rather-long-name-of-a-job-{number}" for number in range(3)]
    for name in names:
        run_job(name, {"loss": [0.5]}, {"note": "words " * 20})
    shown = on_screen("job", "compare", *names)
    assert [line.split()[0] for line in shown if line].count("state") == 2
    assert sum(line.split().count("succeeded") for line in shown) == 3


def test_more_than_four_jobs_are_compared_as_rows(
    retarget: Cli, run_job: Callable[..., Job]
) -> None:
    names = [f"sweep-{number}" for number in range(5)]
    for number, name in enumerate(names):
        run_job(name, {"loss": [number]}, {"lr": str(number), "same": "x"})
    done = retarget("job", "compare", *names)
    table = [line.split() for line in done.stdout.splitlines()]
    assert table[0] == ["NAME", "STATE", "TOOK", "loss", "lr", "same"]
    assert [row[0] for row in table[1:]] == names
    assert [row[-3] for row in table[1:]] == ["0*", "1", "2", "3", "4"]
    assert done.stderr.startswith("* best value: the smallest of a loss")
    assert on_screen("job", "compare", *names)[0].split() == table[0]


def test_a_job_shows_what_it_logged(retarget: Cli, run_job: Callable[..., Job]) -> None:
    many = {f"p{number:02}": "x" for number in range(30)}
    run_job("night", {"acc": [0.5], "odd": ["NaN"]}, many)
    shown = retarget("job", "show", "night").stdout
    assert "metrics  acc=0.5  odd=NaN\n" in shown
    assert "p19=x  … and 10 more" in shown
    view = json.loads(retarget("job", "show", "night", "--json").stdout)
    assert (view["metrics"], len(view["params"])) == ({"acc": 0.5, "odd": "NaN"}, 30)
    assert (view["display_name"], view["tags"]) == ("night", {})
    run_job("quiet")
    assert "logged" not in retarget("job", "show", "quiet").stdout


def test_experiments_are_listed_and_shown(retarget: Cli, run_job: Callable[..., Job]) -> None:
    run_job("one", {"acc": [0.5]}, {"lr": "0.1"}, experiment="trial")
    run_job("two", {"acc": [0.75]}, {"size": "9"}, experiment="trial")
    table = [line.split() for line in retarget("experiment", "list").stdout.splitlines()]
    assert table[0] == ["NAME", "JOBS", "RUNS", "CHANGED"]
    assert table[1][:3] == ["trial", "2", "2"]
    listed = json.loads(retarget("experiment", "list", "--json").stdout)
    assert [row["name"] for row in listed] == ["trial", "Default"]
    assert retarget("experiment", "list", "--csv").stdout.startswith("id,name,stage,jobs,runs,")
    shown = retarget("experiment", "show", "trial")
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert rows[-3] == ["NAME", "STATE", "acc", "lr", "size", "AGE", "TOOK"]
    assert rows[-2][:4] == ["two", "succeeded", "0.75", "9"]
    assert rows[-1][:4] == ["one", "succeeded", "0.5", "0.1"]
    best = retarget("experiment", "show", "trial", "--sort", "metrics.acc", "--top", "1")
    assert best.stdout.splitlines()[-1].split()[:3] == ["two", "succeeded", "0.75"]
    assert best.stderr.startswith("best first: the largest metrics.acc\n")
    worst = retarget("experiment", "show", "trial", "--sort", "metrics.acc asc", "--csv").stdout
    assert [row["job"] for row in csv.DictReader(io.StringIO(worst))] == ["one", "two"]
    unknown = retarget("experiment", "show", "trial", "--sort", "acc")
    assert (unknown.returncode, "metrics.acc" in unknown.stderr) == (2, True)
    few = retarget("experiment", "show", "trial", "--limit", "1")
    assert "the newest 1 of 2 runs" in few.stderr
    runs = list(
        csv.DictReader(io.StringIO(retarget("experiment", "show", "trial", "--csv").stdout))
    )
    assert [(run["job"], run["metrics.acc"], run["params.lr"]) for run in runs] == [
        ("two", "0.75", ""),
        ("one", "0.5", "0.1"),
    ]
    view = json.loads(retarget("experiment", "show", "trial", "--json").stdout)
    assert view["newest"][0]["metrics"]["acc"]["value"] == 0.75
    wrong = retarget("experiment", "show", "trail")
    assert wrong.stderr == "error: no experiment named 'trail'; did you mean 'trial'?\n"


def test_a_model_is_registered_aliased_downloaded_and_deleted(
    retarget: Cli, run_job: Callable[..., Job], tmp_path: Path
) -> None:
    job = run_job("night", {"acc": [0.5]})
    assert "model register" in retarget("model", "list").stderr
    register = ("register", "iris", "--job", "night", "--path", "outputs/model.pkl")
    assert retarget("model", *register, "--tag", "a=b").stdout == "iris:1\n"
    assert retarget("model", *register, "--description", "better").stdout == "iris:2\n"
    assert retarget("model", "alias", "iris", "champion", "1").returncode == 0
    listed = retarget("model", "list").stdout.splitlines()[1].split()
    assert (listed[:3], listed[-1]) == (["iris", "2", "champion=1"], "better")
    shown = retarget("model", "show", "iris").stdout.splitlines()
    assert [line.split()[0] for line in shown[-2:]] == ["2", "1"]
    lineage = retarget("model", "show", "iris", "1").stdout
    for text in ("a=b", "night", job.id, str(job.to_json()["snapshot"]), "acc=0.5", "model.pkl"):
        assert text in lineage
    assert "version  1\n" in re.sub(" +", "  ", retarget("model", "show", "iris@champion").stdout)
    version = json.loads(retarget("model", "show", "iris:2", "--json").stdout)
    assert (version["version"], version["files"][0]["path"]) == (2, "model.pkl")
    done = retarget("model", "download", "iris@champion", cwd=tmp_path)
    assert done.stdout == "iris-1/model.pkl\n"
    moved = retarget("model", "alias", "iris", "champion", "iris:1")
    assert "iris@champion is version 1" in moved.stderr
    done = retarget("model", "download", "iris@champion", "-o", tmp_path / "got")
    assert done.stdout == f"{tmp_path}/got/model.pkl\n"
    assert (tmp_path / "got/model.pkl").read_text() == "weights"
    assert retarget("model", "alias", "iris", "champion", "--remove").returncode == 0
    assert retarget("model", "delete", "iris:2", "--yes").returncode == 0
    assert "'iris' has no version '2'; it has 1\n" in retarget("model", "show", "iris:2").stderr
    assert retarget("model", "delete", "iris").returncode == 0
    assert json.loads(retarget("model", "list", "--json").stdout) == []


def test_a_model_replaces_no_file_of_the_user_and_a_deleted_version_names_its_aliases(
    retarget: Cli, run_job: Callable[..., Job], tmp_path: Path
) -> None:
    run_job("night")
    retarget("model", "register", "iris", "--job", "night", "--path", "outputs/model.pkl")
    (tmp_path / "model.pkl").write_text("mine")
    download = ("model", "download", "iris", "-o", tmp_path)
    refused = retarget(*download)
    assert (refused.returncode, "with different content" in refused.stderr) == (1, True)
    assert (tmp_path / "model.pkl").read_text() == "mine"
    assert retarget(*download, "--force").returncode == 0
    assert (tmp_path / "model.pkl").read_text() == "weights"
    retarget("model", "alias", "iris", "champion", "1")
    deleted = retarget("model", "delete", "iris:1", "--yes").stderr.splitlines()
    assert deleted[0] == "deleted iris:1 and its alias champion"
    assert deleted[1].startswith("iris has no versions left; ")


def test_an_error_about_a_model_is_one_sentence(retarget: Cli, run_job: Callable[..., Job]) -> None:
    run_job("night")
    retarget("model", "register", "iris", "--job", "night", "--path", "outputs/model.pkl")
    for code, args, sentence in (
        (1, ("show", "irs"), "no model named 'irs'; did you mean 'iris'?"),
        (1, ("show", "else"), "see `retarget model list`"),
        (1, ("download", "iris@best"), "'iris' has no version 'best'; it has 1"),
        (2, ("show", "iris:1", "1"), "got two versions, '1' and '1'; pass only one"),
        (2, ("delete", "iris:"), "NAME:3 or NAME@ALIAS"),
        (2, ("alias", "iris", "champion"), "--remove"),
        (2, ("alias", "iris", "3", "1"), "looks like a version number"),
        (1, ("alias", "iris", "best", "--remove"), "'iris' has no alias 'best'; it has none"),
        (1, ("register", "iris", "--job", "night", "--path", "outputs/x"), "outputs/model.pkl"),
        (2, ("register", "i", "--job", "night", "--path", "outputs", "--tag", "x"), "K=V"),
    ):
        done = retarget("model", *args)
        assert (done.returncode, done.stdout) == (code, "")
        assert sentence in done.stderr
        assert done.stderr.count("\n") == 1


def test_deleting_a_model_asks_on_a_terminal(retarget: Cli, run_job: Callable[..., Job]) -> None:
    run_job("night")
    retarget("model", "register", "iris", "--job", "night", "--path", "outputs")
    code, shown = in_terminal("model", "delete", "iris", answer=b"n\n")
    assert (code, "Delete iris with 1 version and its files?" in shown) == (1, True)
    assert len(json.loads(retarget("model", "list", "--json").stdout)) == 1
    assert in_terminal("model", "delete", "iris", answer=b"y\n")[0] == 0
    assert json.loads(retarget("model", "list", "--json").stdout) == []


def test_logged_control_characters_do_not_reach_the_terminal(
    retarget: Cli, run_job: Callable[..., Job]
) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b1m\x7f"
    job = run_job("night", {"acc": [1.0]}, {"evil": evil, "more": "é"})
    run_job("other", {}, {"evil": "x"})
    job.register_model("iris", "outputs", description=evil, tags={"evil": evil})
    for args in (
        ("job", "show", "night"),
        ("job", "show", "night", "--json"),
        ("job", "compare", "night", "other"),
        ("job", "compare", "night", "other", "--csv"),
        ("experiment", "show", "Default"),
        ("experiment", "show", "Default", "--csv"),
        ("experiment", "show", evil),
        ("model", "list"),
        ("model", "show", "iris"),
        ("model", "show", "iris", "1"),
        ("model", "show", "iris", evil),
    ):
        _, shown = in_terminal(*args)
        text = re.sub(r"\x1b\[[\d;]*m", "", shown).replace("\r", "")
        assert CONTROL_CHARACTERS.findall(text) == [], args
        assert "x1b" in text or "u001b" in text or args[-1] in ("iris", "1"), args
    view = json.loads(retarget("job", "show", "night", "--json").stdout)
    assert view["params"]["evil"] == evil
    plain = retarget("job", "show", "night", env={"PYTHONIOENCODING": "ascii"})
    assert "more=\\xe9" in plain.stdout


def test_names_are_completed(retarget: Cli, run_job: Callable[..., Job]) -> None:
    run_job("night", {"loss": [1.0], "acc": [1.0]}, experiment="trial")
    retarget("model", "register", "iris", "--job", "night", "--path", "outputs")
    for line, names in (
        ("experiment show tr", ["trial"]),
        ("model show i", ["iris"]),
        ("job metrics n", ["night"]),
        ("job metrics night l", ["loss"]),
        ("job compare n", ["night"]),
    ):
        env = {"_RETARGET_COMPLETE": "complete_bash", "COMP_WORDS": f"retarget {line}"}
        env["COMP_CWORD"] = str(len(line.split()))
        assert retarget(env=env).stdout.split() == names, line
