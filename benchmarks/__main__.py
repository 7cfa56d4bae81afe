"""Runs the benchmarks: `python -m benchmarks [SUBJECT …]`; by default all of them."""

import signal
import sys
from collections.abc import Callable, Iterator

from benchmarks import crowds, logs, many_jobs, remote, snapshots, starting, tracking
from benchmarks.harness import CONSOLE, Row, line, show, write

SUBJECTS: dict[str, Callable[[], Iterator[Row]]] = {
    "starting": starting.measure,
    "many_jobs": many_jobs.measure,
    "crowds": crowds.measure,
    "snapshots": snapshots.measure,
    "logs": logs.measure,
    "remote": remote.measure,
    "tracking": tracking.measure,
}


def main(subjects: list[str]) -> int:
    unknown = set(subjects) - set(SUBJECTS)
    if unknown:
        CONSOLE.print(f"unknown subject: {', '.join(sorted(unknown))}; use {', '.join(SUBJECTS)}")
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the servers are stopped too
    for subject in subjects or SUBJECTS:
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
