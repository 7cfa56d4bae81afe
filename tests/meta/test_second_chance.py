"""What passes on a second try is reported and lets a run pass; everything else is red."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_SUITE = """
import os, signal, time
from pathlib import Path
import pytest

def first_time(name):
    try:
        Path(name).touch(exist_ok=False)
        return True
    except FileExistsError:
        return False

@pytest.fixture
def breaks_in_setup():
    assert not first_time("setup"), "broken set-up"

@pytest.fixture
def breaks_in_teardown():
    yield
    assert not first_time("teardown"), "broken tear-down"
"""
_FAILS_ONCE = """
@pytest.mark.parametrize("number", range({count}))
def test_fails_once(number):
    assert not first_time(f"once-{{number}}"), "a race"
"""
_KINDS_OF_FAILURE = """
def test_passes(): pass
def test_fails_once(): assert not first_time("call"), "a race"
def test_setup(breaks_in_setup): pass
def test_teardown(breaks_in_teardown): pass
@pytest.mark.timeout(2)
def test_hangs_once():
    if first_time("hang"): time.sleep(100)
def test_kills_its_worker_once():
    if first_time("kill"): os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def run(suite: Path, tests: str, *options: str) -> subprocess.CompletedProcess[str]:
    (suite / "test_it.py").write_text(_SUITE + tests)
    pytest_with = [sys.executable, "-m", "pytest", "-q", "-p", "tests.second_chance"]
    return subprocess.run(
        [*pytest_with, "--second-chance", *options, "test_it.py"],
        cwd=suite,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=200,
    )


def unstable(output: str) -> dict[str, str]:
    lines = [line for line in output.splitlines() if line.startswith("UNSTABLE ")]
    return dict(line.removeprefix("UNSTABLE test_it.py::").split(": ", 1) for line in lines)


def test_every_kind_of_failure_is_reported_and_has_a_second_chance(suite: Path) -> None:
    ended = run(suite, _KINDS_OF_FAILURE, "-n", "2", "--dist", "worksteal")
    causes = unstable(ended.stdout)
    assert ended.returncode == 0, ended.stdout
    assert all(line.startswith("UNSTABLE ") for line in ended.stdout.splitlines()[-5:])
    assert causes.pop("test_kills_its_worker_once").startswith("worker ")
    assert causes == {
        "test_fails_once": "AssertionError: a race",
        "test_setup": "AssertionError: broken set-up",
        "test_teardown": "AssertionError: broken tear-down",
        "test_hangs_once": "Failed: Timeout (>2.0s) from pytest-timeout.",
    }


def test_what_fails_again_is_red_and_is_shown_twice(suite: Path) -> None:
    tests = _FAILS_ONCE.format(count=1) + "def test_always(): assert 1 == 2, 'no race'\n"
    ended = run(suite, tests)
    assert ended.returncode == 1
    assert ended.stdout.count("E   AssertionError: no race") == 2
    assert unstable(ended.stdout) == {"test_fails_once[0]": "AssertionError: a race"}


def test_what_is_skipped_the_second_time_has_not_passed(suite: Path) -> None:
    ended = run(
        suite, "def test_it():\n    assert not first_time('it')\n    pytest.skip('later')\n"
    )
    assert (ended.returncode, unstable(ended.stdout)) == (1, {})


def test_more_than_five_are_red_at_once(suite: Path) -> None:
    ended = run(suite, _FAILS_ONCE.format(count=6))
    assert (ended.returncode, unstable(ended.stdout)) == (1, {})
    assert "no second chance: 6 tests failed, more than 5" in ended.stdout


@pytest.mark.parametrize(
    ("tests", "options", "problem"),
    [
        ("def test_it(: pass", ["-n", "1"], "could not collect test_it.py"),
        ("def test_a(): assert 0\ndef test_b(): pass", ["-x"], "the run broke off: stopping after"),
    ],
)
def test_an_incomplete_run_has_no_second_chance(
    suite: Path, tests: str, options: list[str], problem: str
) -> None:
    ended = run(suite, tests, *options)
    assert ended.returncode != 0
    assert f"no second chance: {problem}" in ended.stdout


def test_a_run_with_too_few_results_is_red_though_nothing_failed(suite: Path) -> None:
    hook = "def pytest_runtest_protocol(item):\n    return 'lost' in item.name or None\n"
    (suite / "conftest.py").write_text(hook)
    ended = run(suite, "def test_a(): pass\ndef test_lost(): pass\n")
    assert ended.returncode == 1
    assert "1 collected tests have no result: test_it.py::test_lost" in ended.stdout


def test_without_the_option_nothing_runs_twice(suite: Path) -> None:
    ended = run(suite, _FAILS_ONCE.format(count=1), "-p", "no:tests.second_chance")
    assert ended.returncode != 0
    assert unstable(ended.stdout) == {}
