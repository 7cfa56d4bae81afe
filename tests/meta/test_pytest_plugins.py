"""What our own pytest plugins promise: a clean temp folder, durations, a choice of tests."""

import json
import os
import subprocess
import sys
from itertools import combinations, product
from pathlib import Path

import pytest

from tests.chaos import test_stages
from tests.durations import report, summary
from tests.everything import select_for_everything

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


def test_each_clause_of_the_contract_always_runs_locally_and_some_elsewhere() -> None:
    local, docker, podman, ssh = (
        f"tests/drivers/{name}"
        for name in (
            "test_local.py::TestLocal",
            "test_container.py::TestDocker",
            "test_container.py::TestPodman",
            "test_ssh.py::TestSsh",
        )
    )
    contract = [f"{place}::test_{n}" for n in range(70) for place in (local, docker, podman, ssh)]
    own = [f"{docker}::test_own", f"{ssh}::test_other"]
    remaining = {*contract, *own} - select_for_everything([*contract, *own])
    assert sum(test.startswith(local) for test in remaining) == 70
    assert sum(test.startswith(docker) for test in remaining) in range(15, 35)
    assert sum(test.startswith(ssh) for test in remaining) in range(15, 35)
    assert not any("Podman" in test for test in remaining)
    assert {*own} <= remaining


def test_each_test_of_the_store_always_runs_on_one_database() -> None:
    databases = ("sqlite", "postgresql")
    tests = [f"tests/store/test_a.py::test_{n}[{name}-x]" for n in range(100) for name in databases]
    remaining = {*tests} - select_for_everything([*tests, "tests/store/test_b.py::test_c[sqlite]"])
    assert len({test.partition("[")[0] for test in remaining}) == len(remaining) == 100
    assert sum("sqlite" in test for test in remaining) in range(30, 70)
    without = {*tests} - select_for_everything(tests, has_postgresql=False)
    assert all("sqlite" in test for test in without)


def test_what_runs_on_podman_alone_always_runs() -> None:
    assert select_for_everything(["t.py::test_a[podman]", "t.py::test_a[docker]"]) == {
        "t.py::test_a[podman]"
    }
    assert select_for_everything(["t.py::test_a[skinny-old]"]) == set()
    assert select_for_everything(["t.py::test_podman", "t.py::TestPodman::test_b"]) == set()


def test_every_pair_of_kills_always_runs() -> None:
    parts = ("server", "runner", "script")
    kills = ["+".join(kill) for size in (1, 2, 3) for kill in combinations(parts, size)]
    stages = [name for name in vars(test_stages) if name.startswith("test_")]
    tests = [f"tests/chaos/test_stages.py::{stage}[{kill}]" for stage in stages for kill in kills]
    remaining = [
        test.rpartition("::")[2] for test in tests if test not in select_for_everything(tests)
    ]
    factors = [
        {"stage": test.partition("[")[0]} | {part: part in test.partition("[")[2] for part in parts}
        for test in remaining
    ]
    levels = {"stage": stages} | {part: [True, False] for part in parts}
    for first, second in combinations(levels, 2):
        shown = {(case[first], case[second]) for case in factors}
        assert shown == {*product(levels[first], levels[second])}
    assert len(remaining) == 2 * len(stages)
    # a test that is run alone, such as again after a failure, is chosen as among all
    assert {test for test in tests if not select_for_everything([test])} == {
        test for test in tests if test not in select_for_everything(tests)
    }
