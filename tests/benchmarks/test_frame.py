"""The frame of the benchmarks: whose turn it is, what a bar means, and what is written."""

import json
import sys
from pathlib import Path

from rich.console import Console

from benchmarks.frame import (
    OURS,
    Bar,
    Refused,
    Row,
    Start,
    free_port,
    serving,
    show,
    take_turns,
    write,
)

ROWS = [
    Row("logging", "/s", {OURS: [50_000, 10, 60_000], "Peer": [5_000]}, more=True, bar=Bar(40_000)),
    Row("reading", "ms", {OURS: [4.0], "Peer": [8.0]}, bar=Bar(3)),
    Row("crowds", "/s", {OURS: [30], "Peer": [10]}, more=True, bar=Bar(times=4, of="Peer")),
    Row("alone", "ms", {OURS: [1.5], "Peer": []}),
    Row("both", "ms", {OURS: [5.0], "Peer": [1.0]}, bar=Bar(9, times=1 / 8, of="Peer")),
]


def test_a_bar_is_met_by_the_median_and_more_is_not_always_better() -> None:
    assert [row.met() for row in ROWS] == [True, False, False, None, True]
    assert [row.ratio("Peer") for row in ROWS] == [10, 2, 3, None, 0.2]


def test_results_are_written_as_json_and_as_a_table(tmp_path: Path) -> None:
    path = write("subject", ROWS, tmp_path)
    first = json.loads(path.read_text())["rows"][0]
    assert first["median"] == {OURS: 50_000, "Peer": 5_000}
    assert first["rounds"][OURS] == [50_000, 10, 60_000]
    table = (tmp_path / "subject.md").read_text().splitlines()
    assert table[0] == f"| what | bar | {OURS} | beside it |"
    assert table[2] == "| logging | ≥ 40,000/s | 50,000/s | Peer 5,000/s (10x) |"
    assert table[5] == "| alone |  | 1.50 ms | Peer - |"
    assert table[6] == "| both | ≤ 9 ms, ≤ 8 times Peer | 5.00 ms | Peer 1.00 ms (0.2x) |"


def test_the_table_fits_a_terminal() -> None:
    console = Console(width=100, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(show("subject", ROWS))
    assert "≥ 4x Peer" in capture.get()


def test_sides_take_turns_and_one_that_refuses_is_left_out() -> None:
    order: list[str] = []

    def good() -> float:
        order.append("good")
        return 1.0

    def bad() -> float:
        order.append("bad")
        if len(order) > 3:
            raise Refused("no more")
        return 2.0

    found = take_turns({"good": good, "bad": bad}, 3)
    assert order == ["good", "bad", "bad", "good", "good", "bad"]
    assert found == {"good": [1.0, 1.0, 1.0], "bad": [2.0, 2.0]}


def test_nothing_of_a_server_remains(tmp_path: Path) -> None:
    port = free_port()
    serve = f"{sys.executable} -m http.server --bind 127.0.0.1 {port}"
    command = ["bash", "-c", f"sleep 600 & echo $! > child; {serve}"]
    with serving(Start("files", command, port, "/child", tmp_path)) as server:
        assert server.memory() > 1
        child = int((tmp_path / "child").read_text())
    status = Path(f"/proc/{child}/status")  # init may not have buried it yet
    assert not status.exists() or "Z (zombie)" in status.read_text()
