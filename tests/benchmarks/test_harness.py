"""The harness of the benchmarks: rounds, goals and results."""

import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.harness import (
    RETARGET,
    Goal,
    MeasurementFailed,
    Row,
    Start,
    free_port,
    measure_rounds,
    run_server,
    show,
    temporary_folder,
    write,
)

ROWS = [
    Row(
        "logging",
        "/s",
        {RETARGET: [50_000, 10, 60_000], "Peer": [5_000]},
        higher_is_better=True,
        goal=Goal(40_000),
    ),
    Row("reading", "ms", {RETARGET: [4.0], "Peer": [8.0]}, goal=Goal(3)),
    Row(
        "many jobs",
        "/s",
        {RETARGET: [30], "Peer": [10]},
        higher_is_better=True,
        goal=Goal(ratio=4, peer="Peer"),
    ),
    Row("alone", "ms", {RETARGET: [1.5], "Peer": []}),
    Row("both", "ms", {RETARGET: [5.0], "Peer": [1.0]}, goal=Goal(9, ratio=1 / 8, peer="Peer")),
]


def test_a_goal_is_met_by_the_median_and_higher_is_not_always_better() -> None:
    assert [row.met() for row in ROWS] == [True, False, False, None, True]
    assert [row.ratio("Peer") for row in ROWS] == [10, 2, 3, None, 0.2]


def test_results_are_written_as_json_and_as_a_table(tmp_path: Path) -> None:
    path = write("subject", ROWS, tmp_path)
    first = json.loads(path.read_text())["rows"][0]
    assert first["median"] == {RETARGET: 50_000, "Peer": 5_000}
    assert first["rounds"][RETARGET] == [50_000, 10, 60_000]
    table = (tmp_path / "subject.md").read_text().splitlines()
    assert table[0] == f"| measurement | goal | {RETARGET} | compared with |"
    assert table[2] == "| logging | ≥ 40,000/s | 50,000/s | Peer 5,000/s (10x) |"
    assert table[5] == "| alone |  | 1.50 ms | Peer - |"
    assert table[6] == "| both | ≤ 9 ms, ≤ 8 times Peer | 5.00 ms | Peer 1.00 ms (0.2x) |"


def test_the_table_fits_a_terminal() -> None:
    console = Console(width=100, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(show("subject", ROWS))
    assert "≥ 4x Peer" in capture.get()


def test_the_order_alternates_and_a_side_that_fails_is_not_measured_again() -> None:
    order: list[str] = []

    def good() -> float:
        order.append("good")
        return 1.0

    def bad() -> float:
        order.append("bad")
        if len(order) > 3:
            raise MeasurementFailed("no more")
        return 2.0

    results = measure_rounds({"good": good, "bad": bad}, 3)
    assert order == ["good", "bad", "bad", "good", "good", "bad"]
    assert results == {"good": [1.0, 1.0, 1.0], "bad": [2.0, 2.0]}


def test_no_process_of_a_server_remains(tmp_path: Path) -> None:
    port = free_port()
    serve = f"{sys.executable} -m http.server --bind 127.0.0.1 {port}"
    command = ["bash", "-c", f"sleep 600 & echo $! > child; {serve}"]
    with run_server(Start("files", command, port, "/child", tmp_path)) as server:
        assert server.memory() > 1
        child = int((tmp_path / "child").read_text())
    status = Path(f"/proc/{child}/status")  # init may not have reaped it yet
    assert not status.exists() or "Z (zombie)" in status.read_text()


def test_the_cache_is_created_in_a_fresh_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.harness.CACHE", tmp_path / "clone/.cache")
    with temporary_folder() as folder:
        assert Path(folder).parent == tmp_path / "clone/.cache"
