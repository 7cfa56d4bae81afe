"""Scripts that log, run by several Pythons, and what they leave in the folder of a job."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.runner.workshop import find_python

_SOURCE = Path(__file__).parents[2] / "src"


@dataclass
class Desk:
    """A folder to work in, and one that a runner would send from."""

    python: str
    folder: Path
    track: Path

    def run(self, code: str, **variables: str) -> str:
        """Run a script as a job does, and return what it wrote to stderr."""
        env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(_SOURCE),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        env |= {"RETARGET_TRACK": str(self.track)} | variables
        done = subprocess.run(
            [self.python, "-W", "error", "-c", f"from retarget import track\n{code}"],
            cwd=self.folder,
            env={name: value for name, value in env.items() if value},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    def fails(self, code: str) -> str:
        """Run a call that raises ValueError or TypeError, and return its message."""
        self.run(
            f"try:\n    {code}\nexcept (ValueError, TypeError) as error:\n"
            "    open('said', 'w').write(str(error))\nelse:\n    raise SystemExit('it went well')"
        )
        return (self.folder / "said").read_text()

    def lines(self) -> list[dict[str, Any]]:
        """Return what was logged, as a strict reader of JSON sees it."""
        files = sorted(self.track.glob("*.jsonl"))
        return [_strict(line) for file in files for line in file.read_text("utf-8").splitlines()]

    def points(self, name: str) -> list[tuple[int, Any]]:
        found = [line for line in self.lines() if name in line.get("m", {})]
        return [(line["s"], line["m"][name]) for line in found]

    def artifact(self, name: str) -> bytes:
        return (self.track / "artifacts" / name).read_bytes()


@pytest.fixture(params=["3.8", "present", "3.13"])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Desk:
    return _desk(tmp_path, request.param)


@pytest.fixture
def present(tmp_path: Path) -> Desk:
    return _desk(tmp_path, "present")


def _desk(tmp_path: Path, version: str) -> Desk:
    python = sys.executable if version == "present" else find_python(version)
    for name in ("work", "track"):
        (tmp_path / name).mkdir()
    return Desk(python, tmp_path / "work", tmp_path / "track")


def _strict(line: str) -> dict[str, Any]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(line, parse_constant=refuse)
