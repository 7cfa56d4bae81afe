"""The versions that an environment resolved to are reported, and installed again exactly."""

import os
import platform
import sys
from pathlib import Path
from typing import Any

import pytest

from retarget.core.environments import Environment
from retarget.core.locks import Lock
from retarget.runner import locks
from retarget.runner.built import list_built, remove
from tests.runner.harness import RunnerHarness, packages, wheel

_SHOW = "import tinypkg; print(tinypkg.VERSION)"
_PLATFORM = f"{sys.platform}-{platform.machine()}"
_PYTHON = platform.python_version()


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """Two versions of a package: without a lock, the newer one is installed."""
    wheel(tmp_path / "wheels", version="1.0")
    wheel(tmp_path / "wheels", version="2.0")
    return tmp_path / "wheels"


def _lock(*lines: str, **fields: str) -> Lock:
    known = {"platform": locks.platform_name(), "python": _PYTHON} | fields
    return Lock.model_validate(known | {"packages": lines})


def _reported(events: list[dict[str, Any]]) -> dict[str, Any]:
    return next(event["lock"] for event in events if event["kind"] == "environment")


def test_the_resolved_versions_are_reported(harness: RunnerHarness, wheels: Path) -> None:
    reports = harness.run("true", environment=packages(wheels, "tinypkg"))
    lock = Lock.model_validate(_reported(reports.events))
    assert lock == _lock("tinypkg==2.0", platform=locks.platform_name())
    assert lock.platform.startswith(_PLATFORM)


def test_a_lock_is_installed_exactly(harness: RunnerHarness, wheels: Path) -> None:
    lock = _lock("tinypkg==1.0")
    environment = packages(wheels, "tinypkg")
    reports = harness.run("python", "-c", _SHOW, environment=environment, locks=(lock,))
    assert reports.stream() == b"1.0\n"
    assert _reported(reports.events) == {"id": lock.id}


def test_a_lock_for_another_python_is_not_used_and_that_is_logged(
    harness: RunnerHarness, wheels: Path
) -> None:
    lock = _lock("tinypkg==1.0", python="3.5.2")
    environment = packages(wheels, "tinypkg")
    reports = harness.run("python", "-c", _SHOW, environment=environment, locks=(lock,))
    assert reports.stream() == b"2.0\n"
    log = reports.stream("prepare").decode()
    assert "Python 3.5.2; resolving the versions" in log
    assert _reported(reports.events)["packages"] == ["tinypkg==2.0"]


def test_what_was_resolved_here_before_the_lock_is_not_used(
    harness: RunnerHarness, wheels: Path
) -> None:
    """Two hosts may resolve an environment at the same time: the first lock counts for both."""
    environment, lock = packages(wheels, "tinypkg"), _lock("tinypkg==1.0")
    before = harness.run("python", "-c", _SHOW, environment=environment)
    after = [
        harness.run("python", "-c", _SHOW, environment=environment, locks=(lock,)) for _ in range(2)
    ]
    assert [reports.stream() for reports in (before, *after)] == [b"2.0\n", b"1.0\n", b"1.0\n"]
    assert after[1].stream("prepare") == b""
    assert len(harness.environments()) == 2


def test_a_lock_of_another_patch_version_of_python_is_built_once(
    harness: RunnerHarness, wheels: Path
) -> None:
    lock = _lock("tinypkg==1.0", python=f"{locks.minor(_PYTHON)}.99")
    environment = packages(wheels, "tinypkg")
    reports = harness.run("python", "-c", _SHOW, environment=environment, locks=(lock,))
    assert reports.stream() == b"1.0\n"
    assert reports.stream("prepare").count(b": building") == 1
    assert len(harness.environments()) == 1


def test_a_range_of_pythons_gets_the_python_of_the_lock(
    harness: RunnerHarness, wheels: Path
) -> None:
    environment = packages(wheels, "tinypkg").model_copy(update={"python": ">=3.8"})
    lock = _lock("tinypkg==1.0", python=_PYTHON)
    script = "import sys, tinypkg; print(sys.version_info[:2], tinypkg.VERSION)"
    reports = harness.run("python", "-c", script, environment=environment, locks=(lock,))
    assert reports.stream().decode() == f"{sys.version_info[:2]} 1.0\n"


def test_a_locked_version_that_is_gone_fails_with_what_to_do(
    harness: RunnerHarness, wheels: Path
) -> None:
    environment, lock = packages(wheels, "tinypkg"), _lock("tinypkg==0.9")
    reports = harness.run("true", environment=environment, locks=(lock,))
    assert "tinypkg==0.9" in reports.finished["reason"]
    assert "change the definition to resolve them again" in reports.finished["reason"]


def test_a_lock_is_not_blamed_for_an_index_that_cannot_be_reached(
    harness: RunnerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    environment = Environment(kind="system", pip=("tinypkg",))
    reports = harness.run("true", environment=environment, locks=(_lock("tinypkg==0.9"),))
    assert "127.0.0.1:9" in reports.finished["reason"]
    assert "locked" not in reports.finished["reason"]


def test_an_environment_built_with_several_locks_is_removed_whole(
    harness: RunnerHarness, wheels: Path
) -> None:
    environment, lock = packages(wheels, "tinypkg"), _lock("tinypkg==1.0")
    harness.run("true", environment=environment)
    harness.run("true", environment=environment, locks=(lock,))
    root, digest = os.path.join(harness.root, "environments"), str(environment.digest)
    assert [built["digest"] for built in list_built(root)] == [digest, digest]
    assert remove(root, digest) == "removed"
    assert os.listdir(root) == []
    assert remove(root, digest) == "absent"


def test_requirements_with_hashes_stay_as_they_are() -> None:
    lines = ["--require-hashes", "a==1 --hash=sha256:00"]
    assert locks.locked_lines(lines, {"packages": ["a==1"]}) == lines


def test_a_line_with_a_variable_stays_as_it_is() -> None:
    lines = ["--index-url https://x/", "My_Pkg @ https://${TOKEN}@x/y.whl", "b"]
    lock = {"packages": ["b==1", "my-pkg @ https://x/y.whl"]}
    assert locks.locked_lines(lines, lock) == [*lines[:2], "b==1"]


@pytest.mark.parametrize(
    "line", ["-r /etc/passwd", "a", "a==1; b", "--index-url http://x", "a @ /x", "a==1\nb==2"]
)
def test_only_packages_with_versions_are_accepted_as_a_lock(line: str) -> None:
    with pytest.raises(ValueError, match="is not a package with its version"):
        _lock(line)
