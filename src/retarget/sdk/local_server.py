"""Finds the server of this machine, and starts it when a command first needs it."""

import fcntl
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from retarget import __version__
from retarget.core.errors import Conflict, ServerUnreachable
from retarget.core.home import DEFAULT_SERVER, Home, ServerFolder
from retarget.sdk.http import Address, Connection, RemoteServer
from retarget.sdk.interpreter import own_interpreter

_START_SECONDS = 30.0  # how long a server may take to get ready
_POLL_SECONDS = 0.02
_HEALTH_SECONDS = 2.0
_SHOWN_LOG_LINES = 15  # of server.log, after a failed start
_SHOWN_LOG_BYTES = 16_000


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server writes to server.json when it is ready."""

    pid: int
    url: str
    version: str
    started_at: float
    listen: str = ""  # host:port
    host: str = ""  # the name of its machine
    id: str = DEFAULT_SERVER

    @property
    def is_here(self) -> bool:
        """Whether it runs on this machine: a home may be shared by several."""
        return self.host in ("", os.uname().nodename)


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A server of one home on this machine: any that runs. If none does, it is started."""

    home: Home
    variables: Mapping[str, str] = field(default_factory=dict[str, str])  # of a server to start
    id: str | None = None  # only the server with this id

    @property
    def label(self) -> str:
        return f"this machine ({self.home.root})"

    def find(self) -> Address:
        """Return the address. If the server runs, this takes two small reads and no lock.

        If the server was killed, another process may own its port by now. The token is never sent
        to that process: the pid is checked first.
        """
        for server_id in self._ids():
            info = read_server(self.home, server_id)
            if info is not None and info.is_here and is_server(info.pid):
                return self._address(info)
        return self.revive()

    def revive(self) -> Address:
        """Make sure that a server answers, whatever state the last one is in."""
        deadline = time.monotonic() + _START_SECONDS
        with _start_lock(self.home, deadline):
            info = _wait_for_live_server(self.home, self._ids, deadline)
            if info is None:
                folder = self.home.server(self.id or DEFAULT_SERVER)
                info = _start(self.home, folder, self.variables, deadline)
        return self._address(info)

    def _ids(self) -> Iterator[str]:
        return server_ids(self.home) if self.id is None else iter((self.id,))

    def _address(self, info: ServerInfo) -> Address:
        if info.version != __version__:
            raise Conflict(
                f"the server of {self.home.root} is retarget {info.version}, this is "
                f"{__version__}; stop it with `retarget server stop` (running jobs continue), and "
                "the next command starts a server of this version"
            )
        return Address(info.url, read_token(self.home))


def server_ids(home: Home) -> Iterator[str]:
    """Yield the ids of the servers that have run in this home, the default one first."""
    yield DEFAULT_SERVER
    try:
        names = sorted(os.listdir(home.servers))
    except OSError:
        names = []
    yield from (name for name in names if name != DEFAULT_SERVER)


def read_server(home: Home, server_id: str = DEFAULT_SERVER) -> ServerInfo | None:
    """Return what the last server with this id wrote, unless it has stopped cleanly since."""
    try:
        raw = json.loads(home.server(server_id).info.read_bytes())
        return ServerInfo(
            int(raw["pid"]),
            str(raw["url"]),
            str(raw["version"]),
            float(raw["started_at"]),
            str(raw.get("listen", "")),
            str(raw.get("host", "")),
            server_id,
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None  # an incomplete file proves nothing: the lock decides
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
    """Whether a living process holds a lock on `path`. This takes no lasting lock itself."""
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


def running_servers(home: Home, server_id: str | None = None) -> list[ServerInfo]:
    """Return the running servers of `home` on this machine. This starts none."""
    running: list[ServerInfo] = []
    for name in server_ids(home) if server_id is None else (server_id,):
        info = read_server(home, name)
        if info is not None and info.is_here and is_locked(home.server(name).lock):
            running.append(info)
    return running


def running_server(home: Home) -> ServerInfo | None:
    """Return a running server of `home` on this machine, or None. This starts none."""
    return next(iter(running_servers(home)), None)


def is_server(pid: int) -> bool:
    """Whether this process is a server of this user, and not another process with its old pid."""
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.getuid():
            return False
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"retarget.server" in arguments


def wait_until_stopped(folder: ServerFolder, info: ServerInfo | None, *, timeout: float) -> bool:
    """Wait until a server and its process have ended; return False after `timeout`."""
    deadline = time.monotonic() + timeout
    while is_locked(folder.lock) or (info is not None and _is_alive(info.pid)):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def is_healthy(address: Address) -> bool:
    """Whether the server at `address` reports that it is healthy."""
    connection = Connection(RemoteServer(address), timeout=_HEALTH_SECONDS)
    try:
        return connection.get("/health")["status"] == "ok"
    except (ServerUnreachable, KeyError, TypeError):
        return False
    finally:
        connection.close()


@contextmanager
def _start_lock(home: Home, deadline: float) -> Generator[None]:
    # of ten commands at once, one starts the server; the others wait here and then find it ready
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
                    f"{_START_SECONDS:.0f} s; see `retarget server logs`"
                ) from None
            time.sleep(_POLL_SECONDS)


def _wait_for_live_server(
    home: Home, ids: Callable[[], Iterable[str]], deadline: float
) -> ServerInfo | None:
    """Return a server that answers, or None once it is certain that none of these runs here."""
    while locked := [name for name in ids() if _may_run_here(home, name)]:
        for name in locked:  # it may be starting, or stopping
            info = read_server(home, name)
            if info is not None and is_healthy(Address(info.url)):
                return info
        if time.monotonic() > deadline:
            folder = home.server(locked[0])
            raise ServerUnreachable(
                f"a server holds {folder.lock} but does not answer; stop it with "
                f"`retarget server stop`{_log_tail(folder, 0)}"
            )
        time.sleep(_POLL_SECONDS)
    return None


def _may_run_here(home: Home, server_id: str) -> bool:
    info = read_server(home, server_id)
    return (info is None or info.is_here) and is_locked(home.server(server_id).lock)


def _start(
    home: Home, folder: ServerFolder, variables: Mapping[str, str], deadline: float
) -> ServerInfo:
    try:
        for path in (home.servers, folder.root):  # `parents=True` would not make them private
            path.mkdir(mode=0o700, exist_ok=True)
        if not is_locked(folder.lock):  # else it runs on another machine
            folder.info.unlink(missing_ok=True)  # from a server that was killed
        with open(folder.log, "ab", buffering=0, opener=_open_private) as log:
            # if the disk is full, this fails; else there is room for the error of a failed start
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} starting a server\n".encode())
            start = log.tell()
            own = {**variables, "RETARGET_SERVER_ID": folder.id}
            child = _spawn(home, own, log.fileno())
    except OSError as error:
        raise _unusable(home, error) from error
    while (info := read_server(home, folder.id)) is None or not info.is_here:
        has_ended = child.poll() is not None
        if has_ended and not (info is None and is_locked(folder.lock)):
            raise ServerUnreachable(f"the server did not start{_log_tail(folder, start)}")
        if time.monotonic() > deadline:
            raise ServerUnreachable(
                f"the server was not ready after {_START_SECONDS:.0f} s{_log_tail(folder, start)}"
            )
        time.sleep(_POLL_SECONDS)
    # only this process can reap its child, and a zombie would look alive
    threading.Thread(target=child.wait, daemon=True, name="retarget-server-reaper").start()
    return info


def _spawn(home: Home, variables: Mapping[str, str], log: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [own_interpreter(), "-m", "retarget.server"],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        # not the user's folder: the server must neither keep it busy nor import from it
        cwd=home.root,
        env={**os.environ, **variables, "RETARGET_HOME": str(home.root)},
        start_new_session=True,
    )


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _log_tail(folder: ServerFolder, start: int) -> str:
    try:
        with folder.log.open("rb") as log:
            log.seek(max(start, log.seek(0, os.SEEK_END) - _SHOWN_LOG_BYTES))
            lines = log.read().decode(errors="replace").splitlines()[-_SHOWN_LOG_LINES:]
    except OSError:
        lines = []
    if not lines:
        return f"; {folder.log} is empty"
    return "".join([f"; the end of {folder.log}:", *(f"\n  {line}" for line in lines)])


def _is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0] != b"Z"  # a zombie has ended


def _unusable(home: Home, error: OSError) -> ServerUnreachable:
    return ServerUnreachable(
        f"the home {home.root} cannot be used ({error.strerror}); "
        "set RETARGET_HOME to a writable folder"
    )
