"""The runner works with any Python from 3.8 on."""

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from retarget.testing import Receiver
from tests.runner.harness import RunnerHarness, find_python, packages, wheel

_RUNNER = Path(__file__).parents[2] / "src/retarget/runner"


@pytest.fixture(params=["3.8", "3.9", "3.13"])
def old(request: pytest.FixtureRequest, harness: RunnerHarness) -> RunnerHarness:
    harness.python = harness.node["python"] = find_python(request.param)
    return harness


def test_it_does_all_of_its_work(old: RunnerHarness, receiver: Receiver, tmp_path: Path) -> None:
    wheel(tmp_path / "wheels")
    files = {"a.py": b"import sys, os, tinypkg\nprint(sys.version_info[:2], os.environ['RANK'])\n"}
    files["a.py"] += b"open('outputs/' + os.environ['RANK'], 'w').write('kept')\n"
    reports = old.run(
        "python",
        "a.py",
        snapshot=receiver.add_snapshot(files),
        environment=packages(tmp_path / "wheels", "tinypkg"),
        processes_per_node=2,
    )
    assert reports.finished["outcome"] == "succeeded"
    version = tuple(int(part) for part in _version_of(old.python).split("."))
    assert [reports.stream(f"rank-{n}").decode() for n in (0, 1)] == [
        f"{version} {n}\n" for n in (0, 1)
    ]
    assert reports.outputs == {"outputs/0": b"kept", "outputs/1": b"kept"}


def test_it_takes_over_from_a_killed_one(old: RunnerHarness) -> None:
    launch = old.launch("sh", "-c", "echo READY; sleep 60").start()
    launch.wait_for_output("output", b"READY")
    launch.kill()
    assert launch.start().finish().finished["outcome"] == "lost"


def test_the_package_is_named_by_its_content(harness: RunnerHarness) -> None:
    from retarget.runner.package import build_zipapp

    assert build_zipapp(harness.root / "runners") == harness.zipapp
    assert os.listdir(harness.root / "runners") == [harness.zipapp.name]
    with zipfile.ZipFile(harness.zipapp) as archive:
        packed = {name for name in archive.namelist() if name.endswith(".py")}
    assert packed >= {f"retarget/runner/{path.name}" for path in _RUNNER.glob("*.py")}


def test_it_loads_little_before_the_script_starts(harness: RunnerHarness) -> None:
    """Each of the heavy modules takes as long as starting the script."""
    code = (
        f"import sys; before = set(sys.modules); sys.path.insert(0, {str(harness.zipapp)!r})\n"
        "import retarget.runner.__main__, retarget.runner.supervise\n"
        "print(*(set(sys.modules) - before))"
    )
    loaded = subprocess.check_output([harness.python, "-I", "-S", "-c", code], text=True).split()
    heavy = {"http.client", "subprocess", "shutil", "socket", "ssl", "ctypes", "tempfile", "email"}
    assert heavy.isdisjoint(loaded)


def test_the_types_are_checked_for_its_oldest_python() -> None:
    settings = (_RUNNER.parents[2] / "pyproject.toml").read_text()
    assert '{ root = "src/retarget/runner", pythonVersion = "3.8"' in settings


def _version_of(python: str) -> str:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.check_output([python, "-c", code], text=True).strip()
