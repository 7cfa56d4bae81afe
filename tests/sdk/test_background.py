"""Finding and starting the server of a home."""

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
from retarget.sdk import background
from retarget.sdk.background import (
    Background,
    answers,
    is_locked,
    is_server,
    read_server,
    running,
)
from retarget.sdk.http import Address

ASK = "from retarget import Workspace; print(Workspace().url, flush=True)"


def test_ten_at_once_start_one(home: Path) -> None:
    children = [
        subprocess.Popen([sys.executable, "-c", ASK], stdout=subprocess.PIPE, text=True)
        for _ in range(10)
    ]
    urls = {child.communicate(timeout=90)[0] for child in children}
    assert len(urls) == 1
    assert [child.returncode for child in children] == [0] * 10
    log = (home / "server.log").read_text()
    assert log.count(" serving ") == 1


def test_threads_share_one_too(home: Path) -> None:
    found: list[Address] = []
    threads = [
        threading.Thread(target=lambda: found.append(Background(Home(home)).find()))
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(found) == 5
    assert len(set(found)) == 1


def test_a_warm_server_is_found_without_a_lock(home: Path) -> None:
    address = Background(Home(home)).find()
    (home / "start.lock").unlink()
    assert Background(Home(home)).find() == address
    assert not (home / "start.lock").exists()


def test_a_killed_server_is_replaced(home: Path) -> None:
    first = Background(Home(home)).find()
    found = read_server(Home(home))
    assert found is not None
    os.kill(found.pid, 9)
    _wait_for(lambda: not is_locked(home / "server.lock"))
    assert running(Home(home)) is None
    second = Background(Home(home)).find()
    assert answers(second)
    assert second.token == first.token


def test_what_a_dead_server_wrote_is_not_believed(home: Path) -> None:
    # its pid now belongs to somebody else, who is alive
    home.mkdir()
    stale = {"pid": os.getpid(), "url": "http://127.0.0.1:1", "version": "0.1.0", "started": 1.0}
    (home / "server.json").write_text(json.dumps(stale))
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
    with pytest.raises(ServerUnreachable, match=rf"(?s)did not start.*{value}") as told:
        Background(Home(home)).find()
    assert "Traceback" not in str(told.value)


def test_a_server_that_holds_its_lock_and_is_silent_is_told(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_PATIENCE", 0.5)
    home.mkdir()
    with (home / "server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ServerUnreachable, match="does not answer"):
            Background(Home(home)).find()
    with (home / "start.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ServerUnreachable, match="another command"):
            Background(Home(home)).find()


def test_another_version_is_refused_with_what_to_do(home: Path) -> None:
    home.mkdir()
    theirs = [sys.executable, "-c", "input()", "retarget.server"]  # how a server looks
    with subprocess.Popen(theirs, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        _wait_for(lambda: is_server(server.pid))
        other = {"pid": server.pid, "url": "http://127.0.0.1:1", "version": "9", "started": 1.0}
        (home / "server.json").write_text(json.dumps(other))
        with pytest.raises(Conflict, match="retarget server stop"):
            Background(Home(home)).find()


@pytest.mark.parametrize("root", ["/proc/nowhere", "/dev/null/x"])
def test_a_home_that_cannot_be_is_one_sentence(root: str) -> None:
    with pytest.raises(ServerUnreachable, match="RETARGET_HOME"):
        Background(Home(Path(root))).find()


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
