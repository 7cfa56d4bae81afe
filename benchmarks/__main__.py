"""Runs the benchmarks: `python -m benchmarks [SUBJECT …]`, all of them without a name."""

import signal
import sys
from collections.abc import Callable, Iterator

from benchmarks import tracking
from benchmarks.frame import CONSOLE, Row, line, show, write

SUBJECTS: dict[str, tuple[str, Callable[[], Iterator[Row]]]] = {
    "tracking": (tracking.PEER, tracking.measure),
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
    peer, measure = SUBJECTS[subject]
    rows: list[Row] = []
    try:
        for row in measure():
            rows.append(row)
            CONSOLE.print(line(row, peer))
    finally:
        CONSOLE.print(show(subject, peer, rows))
        CONSOLE.print(f"written to {write(subject, peer, rows)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
