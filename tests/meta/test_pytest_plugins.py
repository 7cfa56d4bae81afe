"""What our own pytest plugins promise: a clean temp folder, durations, a sample by seed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.durations import report, summary
from tests.sample import chosen

_ROOT = Path(__file__).parents[2]


def run_pytest(folder: Path, plugin: str, *args: str, **variables: str) -> tuple[int, str]:
    """Run the tests of a folder with one plugin, and with its own temp folder `folder/tmp`."""
    (folder / "tmp").mkdir(exist_ok=True)
    inherited = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    own = {"TMPDIR": str(folder / "tmp"), "PYTHONPATH": str(_ROOT)}
    done = subprocess.run(
        [sys.executable, *("-m", "pytest", "-q", "-c", os.devnull, "-p", plugin), *args, folder],
        cwd=folder,
        env=inherited | own | variables,
        capture_output=True,
        text=True,
        timeout=200,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("workers", ["0", "2"])
def test_what_a_test_leaves_in_the_temp_folder_fails_the_run_and_is_removed(
    tmp_path: Path, workers: str
) -> None:
    (tmp_path / "test_it.py").write_text(
        "import subprocess, tempfile\n"
        "def test_clean(tmp_path):\n with tempfile.TemporaryDirectory(): (tmp_path / 'x').touch()\n"
        "def test_untidy(): subprocess.run(['mktemp', '--tmpdir', 'here.XXXX'], check=True)\n"
    )
    code, output = run_pytest(tmp_path, "tests.temp_folder", "-n", workers)
    assert (code, "2 passed" in output) == (1, True), output
    assert "here." in output
    assert "first seen after test_it.py::test_untidy" in output
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_tidy_run_passes(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(tmp_path): (tmp_path / 'x').touch()")
    code, output = run_pytest(tmp_path, "tests.temp_folder", "-n", "2")
    assert code == 0, output
    assert list((tmp_path / "tmp").iterdir()) == []


def test_durations_are_written_per_folder_and_per_test(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/test_it.py").write_text("import time\ndef test_it(): time.sleep(0.1)")
    file = tmp_path / "durations.json"
    code, output = run_pytest(
        tmp_path, "tests.durations", "-n", "2", RETARGET_TEST_DURATIONS=str(file)
    )
    assert code == 0, output
    durations = json.loads(file.read_text())
    assert durations["folders"]["sub"] >= 0.1
    assert durations["tests"]["sub/test_it.py::test_it"] >= 0.1
    assert report(file).splitlines()[-2:] == [
        "the 1 slowest tests:",
        f"{durations['tests']['sub/test_it.py::test_it']:7.1f} s  sub/test_it.py::test_it",
    ]
    run_pytest(tmp_path, "tests.durations", RETARGET_TEST_DURATIONS=str(file))
    assert json.loads(file.read_text())["folders"]["sub"] >= 0.2  # runs are added up


def test_the_longest_come_first() -> None:
    assert list(summary({"a/t.py::x": 1.0, "b/t.py::y": 3.0, "a/t.py::z": 1.0})["folders"]) == [
        "b",
        "a",
    ]


def test_a_sample_depends_on_the_seed_alone() -> None:
    tests = [f"tests/x.py::test_{number}" for number in range(1000)]
    samples = [[test for test in tests if chosen(test, 25, seed)] for seed in (1, 1, 2)]
    assert samples[0] == samples[1] != samples[2]
    assert all(200 < len(sample) < 300 for sample in samples)
    assert all(chosen(test, 100, 1) for test in tests)


def test_only_tests_on_podman_are_sampled(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n@pytest.fixture\ndef podman(): ...\n"
        "def test_a(podman): ...\ndef test_b(): ...\nclass TestPodman:\n def test_c(self): ...\n"
    )
    code, output = run_pytest(tmp_path, "tests.sample", "--podman", "0")
    assert code == 0, output
    assert "1 passed, 2 deselected" in output
