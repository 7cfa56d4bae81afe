# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false
"""A pytest plugin that runs MLflow's own tests on Retarget's server.

The pytest of an environment with MLflow loads it, in a copy of MLflow's tests. The tests are not
changed; the plugin replaces the three ways in which they start a server.
"""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from mlflow.tracking import get_tracking_uri, set_tracking_uri
from mlflow.tracking._tracking_service import utils
from tests.tracking import integration_test_utils

TOKEN = "for-tests-on-loopback"
_reached: set[str] = set()  # how the current test used a server
_key = pytest.StashKey[dict[str, dict[str, str]]]()


@contextmanager
def serving(port: int = 0) -> Generator[str]:
    """Run a Retarget server with an empty home until the end of the block."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        home.joinpath("token").write_text(TOKEN)
        environ = {**os.environ, "RETARGET_HOME": folder, "RETARGET_PORT": str(port or "")}
        command = [os.environ["RETARGET_SERVER_PYTHON"], "-m", "retarget.server"]
        with subprocess.Popen(command, env=environ) as process:
            try:
                while not home.joinpath("servers/main/server.json").exists():
                    assert process.poll() is None, "the server did not start"
                    time.sleep(0.02)
                _reached.add("started a server")
                yield json.loads(home.joinpath("servers/main/server.json").read_text())["url"]
            finally:
                process.terminate()


class RetargetServerThread:
    """Replaces MLflow's ServerThread."""

    def __init__(self, app: Any, port: int) -> None:
        self._serving = serving(port)

    def __enter__(self) -> str:
        return self._serving.__enter__()

    def __exit__(self, *raised: Any) -> bool | None:
        return self._serving.__exit__(*raised)


@contextmanager
def init_server(*_: Any, **__: Any) -> Generator[str]:
    """Replace MLflow's _init_server, for any store."""
    with serving() as url:
        yield url


@contextmanager
def use_tracking_uri(_: str) -> Generator[None]:
    """Replace the file store that MLflow's tests of its fluent API use."""
    with serving() as url:
        before = get_tracking_uri()
        set_tracking_uri(url)
        yield
        set_tracking_uri(before)


def pytest_load_initial_conftests() -> None:
    # before MLflow's conftest.py has imported them by name
    os.environ["MLFLOW_TRACKING_TOKEN"] = TOKEN
    integration_test_utils.ServerThread = RetargetServerThread
    integration_test_utils._init_server = init_server
    if os.environ.get("RETARGET_REPLACES_STORE"):
        utils._use_tracking_uri = use_tracking_uri
    _send_token_to_loopback()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_key] = {}


def pytest_runtest_setup(item: pytest.Item) -> None:
    _reached.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    report.reached = bool(_reached)
    return report


def pytest_runtest_logreport(report: Any) -> None:
    if (config := _config()) is None or (report.when != "call" and report.passed):
        return
    name = report.nodeid.replace("sqlalchemy-", "").replace("[sqlalchemy]", "")
    if "[file" in name:  # MLflow skips these itself
        return
    why = str(getattr(report.longrepr, "reprcrash", None) or report.longrepr or "")
    outcome = report.outcome if report.reached else "no server"
    config.stash[_key][name] = {"outcome": outcome, "why": why[:2000]}


def pytest_sessionstart(session: pytest.Session) -> None:
    global _session
    _session = session


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        results = Path(os.environ["RETARGET_RESULTS"])
        results.write_text(json.dumps(session.config.stash[_key], indent=1))


_session: pytest.Session | None = None


def _config() -> pytest.Config | None:
    if _session is None or hasattr(_session.config, "workerinput"):
        return None
    return _session.config


def _send_token_to_loopback() -> None:
    """Add the token to plain requests of the tests, because MLflow's server needs none."""
    original = requests.Session.request

    def request(self: requests.Session, method: str, url: str, **more: Any) -> Any:
        if urlsplit(url).hostname in ("127.0.0.1", "localhost"):
            _reached.add("sent a request")
            more["headers"] = {"Authorization": f"Bearer {TOKEN}", **(more.get("headers") or {})}
        return original(self, method, url, **more)

    requests.Session.request = request  # pyright: ignore[reportAttributeAccessIssue]
