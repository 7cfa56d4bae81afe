"""Runs the benchmarks: `python -m benchmarks [SUBJECT …]`, all of them without a name."""

import signal
import sys
from collections.abc import Callable, Iterator

from benchmarks import crowds, elsewhere, logs, snapshots, starting, tracking
from benchmarks.frame import CONSOLE, Row, line, show, write

SUBJECTS: dict[str, Callable[[], Iterator[Row]]] = {
    "starting": starting.measure,
    "crowds": crowds.measure,
    "snapshots": snapshots.measure,
    "logs": logs.measure,
    "elsewhere": elsewhere.measure,
    "tracking": tracking.measure,
}


def main(asked: list[str]) -> int:
    unknown = set(asked) - set(SUBJECTS)
    if unknown:
        CONSOLE.print(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(SUBJECTS)}")
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the servers are stopped then too
    for subject in asked or SUBJECTS:
        _run(subject)
    return 0


def _run(subject: str) -> None:
    rows: list[Row] = []
    try:
        for row in SUBJECTS[subject]():
            rows.append(row)
            CONSOLE.print(line(row))
    finally:
        CONSOLE.print(show(subject, rows))
        CONSOLE.print(f"written to {write(subject, rows)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
