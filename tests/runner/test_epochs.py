"""Epochs: a host refuses a server whose lease another one has taken over."""

import errno
import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retarget.runner import epochs
from retarget.runner.epochs import Epochs
from retarget.runner.host import Host


def lease(epoch: int, name: str = "abc") -> dict[str, Any]:
    return {"name": name, "epoch": epoch}


def refused(host: Host, epoch: int) -> bool:
    """Check all that a server may ask for. All is refused, or nothing is."""
    refusals = [
        _error(lambda: host.cancel("key", lease(epoch))),
        _error(lambda: host.forget("key", lease(epoch))),
    ]
    assert set(refusals) in ({None}, {(errno.ESTALE, _REFUSAL)})
    return refusals[0] is not None


_REFUSAL = "another server looks after this target now"


def _error(action: Callable[[], None]) -> tuple[int | None, str | None] | None:
    try:
        action()
    except OSError as error:
        return error.errno, error.strerror
    return None


def test_an_older_epoch_is_refused_and_a_newer_one_is_remembered(tmp_path: Path) -> None:
    host = Host(str(tmp_path), "runner.pyz")
    assert not refused(host, 5)
    assert not refused(host, 5)
    assert refused(host, 4)
    assert not refused(host, 6)
    assert refused(host, 5)
    assert refused(Host(str(tmp_path), "runner.pyz"), 5)  # another process on this host
    host.forget("key", lease(1, "def"))  # the lease of another target, or of another database
    host.forget("key")  # a user asked for it


def test_a_refused_launch_leaves_no_trace(tmp_path: Path) -> None:
    host = Host(str(tmp_path), "runner.pyz")
    host.forget("key", lease(6))
    with pytest.raises(OSError, match="another server"):
        host.launch("key", {"launch": {}}, lease(5))
    assert not (tmp_path / "launches").exists()


def test_of_two_servers_at_once_the_newer_epoch_stays(tmp_path: Path) -> None:
    def pass_all(epochs: range) -> None:
        guard = Epochs(str(tmp_path))
        for epoch in epochs:
            try:
                guard.check(lease(epoch))
            except OSError:
                continue

    threads = [threading.Thread(target=pass_all, args=(range(n, 200, 4),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "epochs/abc").read_text() == "199"


def test_a_launch_that_another_server_is_working_on_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # it was paused after it had passed: only when it continues, or dies, may others continue
    monkeypatch.setattr(epochs, "_WAIT_SECONDS", 0.05)
    guard = Epochs(str(tmp_path))
    with guard.passing("key", lease(5)):
        with pytest.raises(OSError, match="working on this launch") as raised:
            Host(str(tmp_path), "runner.pyz").forget("key", lease(6))
        assert raised.value.errno == errno.EAGAIN
    Host(str(tmp_path), "runner.pyz").forget("key", lease(6))


def test_a_damaged_epoch_counts_as_none(tmp_path: Path) -> None:
    guard = Epochs(str(tmp_path))
    guard.check(lease(5))
    (tmp_path / "epochs/abc").write_text("\0\0")
    guard.check(lease(4))
    guard.check(lease(6))
    with pytest.raises(OSError, match="another server"):
        guard.check(lease(5))


def test_the_name_of_a_lease_is_never_a_path(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="invalid lease"):
        Epochs(str(tmp_path)).check(lease(5, "../launches"))


def test_nothing_keeps_the_lock_of_a_launch(tmp_path: Path) -> None:
    guard = Epochs(str(tmp_path))
    with guard.passing("key", None):
        pass
    (lock,) = (tmp_path / "epochs").iterdir()
    descriptor = os.open(lock, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)
