"""What a job requires beside its environment is installed for it, if it is missing there."""

import venv
from pathlib import Path
from typing import Any

import pytest

from retarget.testing import Reports
from tests.runner.harness import RunnerHarness, packages, wheel

_SHOW = "import helper, tinypkg; print(helper.VERSION, tinypkg.VERSION, tinypkg.__file__)"


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """Three versions of `tinypkg`, and two of `helper`, each for another range of them."""
    for version in ("1.0", "1.5", "2.0"):
        wheel(tmp_path / "wheels", version=version)
    wheel(tmp_path / "wheels", "helper", "1.0", requires="tinypkg<2")
    wheel(tmp_path / "wheels", "helper", "2.0", requires="tinypkg>=2")
    return tmp_path / "wheels"


def run(harness: RunnerHarness, wheels: Path, *requirements: str, **more: Any) -> Reports:
    return harness.run(
        "python", "-c", _SHOW,
        environment=packages(wheels, *requirements),
        required_packages=["helper"],
        **more,
    )  # fmt: skip


def test_a_missing_package_is_installed_once_in_a_version_that_fits_the_environment(
    harness: RunnerHarness, wheels: Path
) -> None:
    reports = run(harness, wheels, "tinypkg==1.0")
    helper, tinypkg, path = reports.stream().decode().split()
    assert (helper, tinypkg) == ("1.0", "1.0"), reports.stream("prepare").decode()
    assert path.startswith(f"{harness.root}/environments/")
    assert b"packages helper: installing" in reports.stream("prepare")
    assert list(harness.root.glob("packages/*/packages/helper.py"))
    assert not list(harness.root.glob("packages/*/packages/tinypkg*"))
    assert not list(harness.root.glob("environments/*/env/lib/*/site-packages/helper*"))
    again = run(harness, wheels, "tinypkg==1.0")
    assert again.stream() == reports.stream()
    assert again.stream("prepare") == b""


def test_what_the_environment_does_not_have_comes_with_it(
    harness: RunnerHarness, wheels: Path
) -> None:
    reports = run(harness, wheels)
    assert reports.stream().startswith(b"2.0 2.0 "), reports.stream("prepare").decode()


def test_a_package_of_the_environment_is_used_as_it_is(
    harness: RunnerHarness, wheels: Path
) -> None:
    reports = run(harness, wheels, "helper==1.0")
    assert reports.stream().startswith(b"1.0 1.5 ")
    assert b"installing" not in reports.stream("prepare")
    assert not (harness.root / "packages").exists()


def test_what_does_not_fit_the_environment_fails_the_job_with_a_sentence(
    harness: RunnerHarness, tmp_path: Path
) -> None:
    for version in ("1.0", "2.0"):
        wheel(tmp_path / "w", version=version)
    wheel(tmp_path / "w", "helper", "2.0", requires="tinypkg>=2")
    reports = run(harness, tmp_path / "w", "tinypkg==1.0")
    assert reports.finished["outcome"] == "failed"
    reason = reports.finished["reason"]
    assert reason.startswith("this job needs helper, which could not be installed without ")
    assert "only tinypkg<2 is available" in reason
    assert not list(harness.root.glob("packages/*/"))


def test_the_index_need_not_have_what_the_environment_has(
    harness: RunnerHarness, wheels: Path
) -> None:
    assert run(harness, wheels, "helper==1.0", "tinypkg==1.0").finished["outcome"] == "succeeded"
    for path in wheels.glob("tinypkg-*"):
        path.unlink()
    wheel(wheels, "other", "1.0", requires="tinypkg<1.5")
    reports = harness.run(
        "python", "-c", "import other, tinypkg; print(other.VERSION, tinypkg.VERSION)",
        environment=packages(wheels, "helper==1.0", "tinypkg==1.0"), required_packages=["other"],
    )  # fmt: skip
    assert reports.stream() == b"1.0 1.0\n", reports.stream("prepare").decode()


def test_the_job_itself_installs_over_it(harness: RunnerHarness, wheels: Path) -> None:
    sources = f"--no-index --find-links {wheels}"
    reports = harness.run(
        "sh", "-c", f"pip install -q {sources} tinypkg==1.5 helper==1.0 && python -c '{_SHOW}'",
        environment=packages(wheels), required_packages=["helper"],
    )  # fmt: skip
    assert reports.stream().splitlines()[-1].startswith(b"1.0 1.5 "), reports.stream()
    assert b"/layer/lib/" in reports.stream().splitlines()[-1]
    assert run(harness, wheels).stream().startswith(b"2.0 2.0 ")


def test_an_interpreter_that_pip_may_change_stays_as_it_is(
    harness: RunnerHarness, wheels: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    venv.create(tmp_path / "venv", symlinks=True)
    (tmp_path / "uv.toml").write_text(f'no-index = true\nfind-links = ["{wheels}"]\n')
    monkeypatch.setenv("UV_CONFIG_FILE", str(tmp_path / "uv.toml"))
    environment = {"kind": "user", "python": str(tmp_path / "venv/bin/python")}
    reports = harness.run(
        "python", "-c", _SHOW,
        environment=environment, allow_pip=True, required_packages=["helper"],
    )  # fmt: skip
    assert reports.stream().startswith(b"2.0 2.0 "), reports.stream("prepare").decode()
    assert not list(tmp_path.glob("venv/lib/*/site-packages/*"))
