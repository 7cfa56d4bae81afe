"""The server of this machine: found through its home, and started by the first who needs it."""

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from retarget import __version__
from retarget.core.errors import Conflict, ServerUnreachable
from retarget.core.home import Home
from retarget.sdk.http import Address, Connection, Elsewhere

_PATIENCE = 30.0  # seconds a server may take to get ready
_TICK = 0.02
_TAIL = 15  # lines of server.log that a failed start shows


@dataclass(frozen=True, slots=True)
class Found:
    """What a ready server wrote about itself."""

    pid: int
    url: str
    version: str
    started: float


@dataclass(frozen=True, slots=True)
class Background:
    """The server of one home, started when it is not there."""

    home: Home

    def find(self) -> Address:
        """Return where it listens. A warm server costs two small reads and no lock.

        Its port may be a stranger's by now, if it was killed: no token goes there.
        """
        found = read_server(self.home)
        if found is None or not is_server(found.pid):
            return self.revive()
        return self._address(found)

    def revive(self) -> Address:
        """Make sure that a server answers, whatever state the last one was left in."""
        deadline = time.monotonic() + _PATIENCE
        with _starting(self.home, deadline):
            found = _wait_for_a_live_one(self.home, deadline) or _start(self.home, deadline)
        return self._address(found)

    def _address(self, found: Found) -> Address:
        if found.version != __version__:
            raise Conflict(
                f"the server of {self.home.root} is retarget {found.version} and this is "
                f"{__version__}; end it with `retarget server stop` (its jobs go on) and the next "
                "command starts one of this version"
            )
        return Address(found.url, read_token(self.home))


def read_server(home: Home) -> Found | None:
    """Return what the last ready server of `home` wrote, if it did not stop cleanly since."""
    try:
        raw = json.loads(home.server_file.read_bytes())
        known = int(raw["pid"]), str(raw["url"]), str(raw["version"]), float(raw["started"])
        return Found(*known)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None  # half a file is no server: the lock decides
    except OSError as error:
        raise _unusable(home, error) from error


def read_token(home: Home) -> str:
    try:
        return home.token.read_text("utf-8", "replace").strip()
    except OSError as error:
        raise ServerUnreachable(
            f"the server's token {home.token} cannot be read: {error.strerror}"
        ) from error


def is_locked(path: Path) -> bool:
    """Tell whether a living process holds `path`; the look itself is over at once."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def running(home: Home) -> Found | None:
    """Return the live server of `home`, and start none."""
    found = read_server(home)
    return found if found is not None and is_locked(home.server_lock) else None


def is_server(pid: int) -> bool:
    """Tell whether this process is a server of this user, and not a later owner of its number."""
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.getuid():
            return False
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"retarget.server" in words


def wait_until_stopped(home: Home, found: Found | None, *, timeout: float) -> bool:
    """Wait for the server of `home` to be gone, its process too; False if it still is there."""
    deadline = time.monotonic() + timeout
    while is_locked(home.server_lock) or (found is not None and _is_alive(found.pid)):
        if time.monotonic() > deadline:
            return False
        time.sleep(_TICK)
    return True


def answers(address: Address) -> bool:
    """Tell whether a server at `address` says that it is well."""
    connection = Connection(Elsewhere(address), timeout=2)
    try:
        return connection.get("/health")["status"] == "ok"
    except (ServerUnreachable, KeyError, TypeError):
        return False
    finally:
        connection.close()


@contextmanager
def _starting(home: Home, deadline: float) -> Generator[None]:
    # ten commands at once: one starts the server, nine wait here and find it ready
    try:
        home.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(home.start_lock, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise _unusable(home, error) from error
    try:
        _lock(descriptor, home, deadline)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, home: Home, deadline: float) -> None:
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ServerUnreachable(
                    f"another command has been starting the server of {home.root} for "
                    f"{_PATIENCE:.0f} s; see `retarget server logs`"
                ) from None
            time.sleep(_TICK)


def _wait_for_a_live_one(home: Home, deadline: float) -> Found | None:
    """Return a server that answers, or None once it is certain that there is none."""
    while is_locked(home.server_lock):  # it may be getting ready, or be on its way out
        found = read_server(home)
        if found is not None and answers(Address(found.url)):
            return found
        if time.monotonic() > deadline:
            raise ServerUnreachable(
                f"a server holds {home.server_lock} and does not answer; end it with "
                f"`retarget server stop`{_tail(home, 0)}"
            )
        time.sleep(_TICK)
    return None


def _start(home: Home, deadline: float) -> Found:
    try:
        home.server_file.unlink(missing_ok=True)  # of one that was killed
        with open(home.server_log, "ab", buffering=0, opener=_private) as log:
            # a full disk is noticed here; else there is room for the sentence of a failed start
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} starting a server\n".encode())
            begin = log.tell()
            child = _spawn(home, log.fileno())
    except OSError as error:
        raise _unusable(home, error) from error
    while (found := read_server(home)) is None:
        if child.poll() is not None and not is_locked(home.server_lock):
            raise ServerUnreachable(f"the server did not start{_tail(home, begin)}")
        if time.monotonic() > deadline:
            raise ServerUnreachable(
                f"the server was not ready after {_PATIENCE:.0f} s{_tail(home, begin)}"
            )
        time.sleep(_TICK)
    # nobody else can reap our child, and a zombie would look alive
    threading.Thread(target=child.wait, daemon=True, name="retarget-server-reaper").start()
    return found


def _spawn(home: Home, log: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "retarget.server"],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd=home.root,  # not the user's folder: it must not be held, nor be imported from
        env=os.environ | {"RETARGET_HOME": str(home.root)},
        start_new_session=True,
    )


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _tail(home: Home, begin: int) -> str:
    try:
        with home.server_log.open("rb") as log:
            log.seek(max(begin, log.seek(0, os.SEEK_END) - 16_000))
            lines = log.read().decode(errors="replace").splitlines()[-_TAIL:]
    except OSError:
        lines = []
    if not lines:
        return f"; {home.server_log} says nothing"
    return "".join([f"; the end of {home.server_log}:", *(f"\n  {line}" for line in lines)])


def _is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0] != b"Z"  # a zombie only waits to be counted


def _unusable(home: Home, error: OSError) -> ServerUnreachable:
    return ServerUnreachable(
        f"the home {home.root} cannot be used ({error.strerror}); "
        "set RETARGET_HOME to a folder that you can write"
    )
