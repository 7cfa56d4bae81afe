"""The runner is for any Python from 3.8 on."""

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from retarget.testing import Receiver
from tests.runner.workshop import Workshop, find_python, packages, wheel

_HERE = Path(__file__).parents[2] / "src/retarget/runner"


@pytest.fixture(params=["3.8", "3.9", "3.13"])
def old(request: pytest.FixtureRequest, workshop: Workshop) -> Workshop:
    workshop.python = workshop.node["python"] = find_python(request.param)
    return workshop


def test_it_does_all_of_its_work(old: Workshop, receiver: Receiver, tmp_path: Path) -> None:
    wheel(tmp_path / "wheels")
    files = {"a.py": b"import sys, os, tinypkg\nprint(sys.version_info[:2], os.environ['RANK'])\n"}
    files["a.py"] += b"open('outputs/' + os.environ['RANK'], 'w').write('kept')\n"
    heard = old.run(
        "python",
        "a.py",
        snapshot=receiver.snapshot(files),
        environment=packages(tmp_path / "wheels", "tinypkg"),
        processes_per_node=2,
    )
    assert heard.finished["outcome"] == "succeeded"
    version = tuple(int(part) for part in _version_of(old.python).split("."))
    assert [heard.stream(f"rank-{n}").decode() for n in (0, 1)] == [
        f"{version} {n}\n" for n in (0, 1)
    ]
    assert heard.outputs == {"outputs/0": b"kept", "outputs/1": b"kept"}


def test_it_takes_over_from_a_killed_one(old: Workshop) -> None:
    work = old.launch("sh", "-c", "echo READY; sleep 60").start()
    work.hear("output", b"READY")
    work.kill()
    assert work.start().finish().finished["outcome"] == "lost"


def test_the_package_is_named_by_its_content(workshop: Workshop) -> None:
    from retarget.runner.package import build_zipapp

    assert build_zipapp(workshop.root / "runners") == workshop.zipapp
    assert os.listdir(workshop.root / "runners") == [workshop.zipapp.name]
    with zipfile.ZipFile(workshop.zipapp) as archive:
        packed = {name for name in archive.namelist() if name.endswith(".py")}
    assert packed >= {f"retarget/runner/{path.name}" for path in _HERE.glob("*.py")}


def test_it_loads_little_before_the_script_starts(workshop: Workshop) -> None:
    """Each of these costs as much as starting the script does."""
    code = (
        f"import sys; before = set(sys.modules); sys.path.insert(0, {str(workshop.zipapp)!r})\n"
        "import retarget.runner.__main__, retarget.runner.supervise\n"
        "print(*(set(sys.modules) - before))"
    )
    loaded = subprocess.check_output([workshop.python, "-I", "-S", "-c", code], text=True).split()
    heavy = {"http.client", "subprocess", "shutil", "socket", "ssl", "ctypes", "tempfile", "email"}
    assert heavy.isdisjoint(loaded)


def test_the_types_are_checked_as_of_its_oldest_python() -> None:
    settings = (_HERE.parents[2] / "pyproject.toml").read_text()
    assert '{ root = "src/retarget/runner", pythonVersion = "3.8"' in settings


def _version_of(python: str) -> str:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.check_output([python, "-c", code], text=True).strip()
