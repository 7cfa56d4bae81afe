"""Runs scripts that log with several Pythons, and reads what they write."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.runner.harness import find_python

_SOURCE = Path(__file__).parents[2] / "src"


@dataclass
class TrackHarness:
    """A work folder for scripts, and the track folder that a runner would send."""

    python: str
    folder: Path
    track: Path

    def run(self, code: str, **variables: str) -> str:
        """Run a script as a job does, and return its stderr."""
        environ = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(_SOURCE),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        environ |= {"RETARGET_TRACK": str(self.track)} | variables
        process = subprocess.run(
            [self.python, "-W", "error", "-c", f"from retarget import track\n{code}"],
            cwd=self.folder,
            env={name: value for name, value in environ.items() if value},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert process.returncode == 0, process.stderr
        return process.stderr

    def run_failing(self, code: str) -> str:
        """Run a call that raises ValueError or TypeError, and return its message."""
        self.run(
            f"try:\n    {code}\nexcept (ValueError, TypeError) as error:\n"
            "    open('error', 'w').write(str(error))\nelse:\n    raise SystemExit('no error')"
        )
        return (self.folder / "error").read_text()

    def lines(self) -> list[dict[str, Any]]:
        """Return the logged lines, as a strict JSON parser reads them."""
        files = sorted(self.track.glob("*.jsonl"))
        lines = [line for file in files for line in file.read_text("utf-8").splitlines()]
        return [_parse_strictly(line) for line in lines]

    def points(self, name: str) -> list[tuple[int, Any]]:
        lines = [line for line in self.lines() if name in line.get("m", {})]
        return [(line["s"], line["m"][name]) for line in lines]

    def artifact(self, name: str) -> bytes:
        return (self.track / "artifacts" / name).read_bytes()


@pytest.fixture(params=["3.8", "current", "3.13"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> TrackHarness:
    """A harness for each of several Pythons."""
    return _harness(tmp_path, request.param)


@pytest.fixture
def current_harness(tmp_path: Path) -> TrackHarness:
    """A harness for the Python of the tests only."""
    return _harness(tmp_path, "current")


def _harness(tmp_path: Path, version: str) -> TrackHarness:
    python = sys.executable if version == "current" else find_python(version)
    for name in ("work", "track"):
        (tmp_path / name).mkdir()
    return TrackHarness(python, tmp_path / "work", tmp_path / "track")


def _parse_strictly(line: str) -> dict[str, Any]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(line, parse_constant=refuse)
