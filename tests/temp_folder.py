"""One temp folder per test run, removed at its end. What a test leaves in it fails the run."""

import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

_NAME = "left in the temp folder"
_temp_folder = pytest.StashKey[Path]()
_first_seen = pytest.StashKey[dict[str, str]]()
_leftovers = pytest.StashKey[dict[str, str]]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give this process its own temp folder. `--basetemp` keeps the files of the tests."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    run_folder = Path(tempfile.gettempdir()).parent if worker else Path(tempfile.mkdtemp("", "rt"))
    run_folder.chmod(0o711)  # some tests run programs as other users
    if config.option.basetemp is None:
        config.option.basetemp = run_folder / "t"  # short, for the sake of sockets
    config.stash[_temp_folder] = run_folder / (worker or "tmp")
    config.stash[_first_seen], config.stash[_leftovers] = {}, {}
    _use(config.stash[_temp_folder])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    handled = yield
    for name in _entries(item.config):
        item.config.stash[_first_seen].setdefault(name, item.nodeid)
    return handled


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[_leftovers].update(getattr(node, "workeroutput", {}).get(_NAME, {}))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    remaining = leftovers(config)
    remaining |= {name: config.stash[_first_seen].get(name, "?") for name in _entries(config)}
    worker_output: dict[str, object] | None = getattr(config, "workeroutput", None)
    if worker_output is not None:
        worker_output[_NAME] = remaining
    elif remaining and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if config.stash[_leftovers]:
        terminalreporter.section(_NAME, red=True)
    for name, test in config.stash[_leftovers].items():
        terminalreporter.write_line(f"{name}: first seen after {test}")


def leftovers(config: pytest.Config) -> dict[str, str]:
    """Return what the tests left, each with the test after which it was first seen."""
    nothing: dict[str, str] = {}
    return config.stash.get(_leftovers, nothing)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    temp_folder = config.stash.get(_temp_folder, None)
    if temp_folder is None or "PYTEST_XDIST_WORKER" in os.environ:
        return
    tempfile.tempdir = None
    run_folder = temp_folder.parent
    if not _has_mounts(run_folder):  # else we would delete what is mounted there
        shutil.rmtree(run_folder, ignore_errors=True)


def _use(temp_folder: Path) -> None:
    """Let this process, and whatever it starts, use this temp folder."""
    temp_folder.mkdir()
    temp_folder.chmod(0o1777)
    os.environ["TMPDIR"] = tempfile.tempdir = str(temp_folder)


def _entries(config: pytest.Config) -> list[str]:
    """Return what is in the temp folder, except what our server and Podman keep there per user."""
    kept = {f"{name}-{os.getuid()}" for name in ("retarget", "podman-run", "containers-user")}
    return sorted({*os.listdir(config.stash[_temp_folder])} - kept)


def _has_mounts(folder: Path) -> bool:
    return f" {folder}/" in Path("/proc/self/mountinfo").read_text()
