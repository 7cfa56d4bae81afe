"""Finds and starts the server of a home."""

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from retarget.core.errors import Conflict, ServerUnreachable
from retarget.core.home import Home
from retarget.sdk import local_server
from retarget.sdk.http import Address
from retarget.sdk.local_server import (
    LocalServer,
    is_healthy,
    is_locked,
    is_server,
    read_server,
    running_server,
)

SHOW_URL = "from retarget import Workspace; print(Workspace().url, flush=True)"


def test_ten_commands_at_once_start_one_server(home: Path) -> None:
    children = [
        subprocess.Popen([sys.executable, "-c", SHOW_URL], stdout=subprocess.PIPE, text=True)
        for _ in range(10)
    ]
    urls = {child.communicate(timeout=200)[0] for child in children}
    assert len(urls) == 1
    assert [child.returncode for child in children] == [0] * 10
    log = (home / "servers/main/server.log").read_text()
    assert log.count(" serving ") == 1


def test_threads_share_one_server(home: Path) -> None:
    addresses: list[Address] = []
    threads = [
        threading.Thread(target=lambda: addresses.append(LocalServer(Home(home)).find()))
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=200)
    assert len(addresses) == 5
    assert len(set(addresses)) == 1


def test_a_running_server_needs_no_lock(home: Path) -> None:
    address = LocalServer(Home(home)).find()
    (home / "start.lock").unlink()
    assert LocalServer(Home(home)).find() == address
    assert not (home / "start.lock").exists()


def test_a_killed_server_is_replaced(home: Path) -> None:
    first = LocalServer(Home(home)).find()
    server = read_server(Home(home))
    assert server is not None
    os.kill(server.pid, 9)
    _wait_for(lambda: not is_locked(home / "servers/main/lock"))
    assert running_server(Home(home)) is None
    second = LocalServer(Home(home)).find()
    assert is_healthy(second)
    assert second.token == first.token


def test_the_file_of_a_dead_server_is_not_trusted(home: Path) -> None:
    # its pid now belongs to another live process
    (home / "servers/main").mkdir(parents=True)
    stale = {"pid": os.getpid(), "url": "http://127.0.0.1:1", "version": "0.1.0", "started_at": 1.0}
    (home / "servers/main/server.json").write_text(json.dumps(stale))
    (home / "token").write_text("a-token")
    from retarget import Workspace

    assert [target.name for target in Workspace().targets] == ["local"]


@pytest.mark.parametrize(
    ("variable", "value"),
    [("RETARGET_PORT", "nonsense"), ("RETARGET_PORT", "²"), ("RETARGET_POLL_SECONDS", "often")],
)
def test_a_failed_start_shows_the_end_of_the_log(
    home: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ServerUnreachable, match=rf"(?s)did not start.*{value}") as raised:
        LocalServer(Home(home)).find()
    assert "Traceback" not in str(raised.value)


def test_a_server_that_holds_its_lock_but_is_silent_is_an_error(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_server, "_START_SECONDS", 0.5)
    (home / "servers/main").mkdir(parents=True)
    with (home / "servers/main/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ServerUnreachable, match="does not answer"):
            LocalServer(Home(home)).find()
    with (home / "start.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ServerUnreachable, match="another command"):
            LocalServer(Home(home)).find()


def test_another_version_is_refused_with_advice(home: Path) -> None:
    (home / "servers/main").mkdir(parents=True)
    command = [sys.executable, "-c", "input()", "retarget.server"]  # looks like a server
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        _wait_for(lambda: is_server(server.pid))
        other = {"pid": server.pid, "url": "http://127.0.0.1:1", "version": "9", "started_at": 1.0}
        (home / "servers/main/server.json").write_text(json.dumps(other))
        with pytest.raises(Conflict, match="retarget server stop"):
            LocalServer(Home(home)).find()


@pytest.mark.parametrize("root", ["/proc/nowhere", "/dev/null/x"])
def test_an_unusable_home_is_an_error(root: str) -> None:
    with pytest.raises(ServerUnreachable, match="RETARGET_HOME"):
        LocalServer(Home(Path(root))).find()


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
