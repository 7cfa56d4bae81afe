"""Record in $RETARGET_TEST_DURATIONS how long each test and each folder of tests took.

`python -m tests.durations FILE` prints the folders and the slowest tests.
"""

import json
import os
import sys
from collections import defaultdict
from pathlib import Path

import pytest

_FILE = os.environ.get("RETARGET_TEST_DURATIONS")
_SLOWEST = 15
_seconds: defaultdict[str, float] = defaultdict(float)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _FILE and not hasattr(session.config, "workerinput"):
        _add(Path(_FILE), _seconds)


def summary(seconds: dict[str, float]) -> dict[str, dict[str, float]]:
    """Sum up the durations per folder. Folders and tests are sorted by duration, longest first."""
    folders: defaultdict[str, float] = defaultdict(float)
    for test, duration in seconds.items():
        folders[test.split("::")[0].rpartition("/")[0]] += duration
    return {"folders": _longest_first(folders), "tests": _longest_first(seconds)}


def report(file: Path) -> str:
    """Return the folders and the slowest tests of a file, with their seconds."""
    durations: dict[str, dict[str, float]] = json.loads(file.read_text())
    slowest = list(durations["tests"].items())[:_SLOWEST]
    lines = [f"{seconds:7.1f} s  {name}" for name, seconds in durations["folders"].items()]
    lines += ["", f"the {len(slowest)} slowest tests:"]
    return "\n".join(lines + [f"{seconds:7.1f} s  {name}" for name, seconds in slowest])


def _add(file: Path, seconds: dict[str, float]) -> None:
    """Add the durations of this run to those of earlier runs in the file."""
    text = file.read_text() if file.exists() else ""
    before: dict[str, float] = json.loads(text)["tests"] if text else {}
    total = {test: before.get(test, 0.0) + seconds.get(test, 0.0) for test in before | seconds}
    file.write_text(json.dumps(summary(total), indent=1) + "\n")


def _longest_first(seconds: dict[str, float]) -> dict[str, float]:
    ordered = sorted(seconds.items(), key=lambda pair: -pair[1])
    return {name: round(duration, 3) for name, duration in ordered}


if __name__ == "__main__":
    print(report(Path(sys.argv[1])))
