"""The locks that keep servers apart: one per server id, and one of the home and its database."""

import fcntl
import os
import time
from pathlib import Path

from sqlalchemy import make_url

from retarget.core.errors import Conflict, Invalid
from retarget.core.home import DEFAULT_SERVER, Home
from retarget.store.engine import is_sqlite

_PROBE_SECONDS = 0.2  # a client that looks whether a server runs holds the lock for a moment


def lock_home(home: Home, server_id: str, database: str | None) -> list[int]:
    """Lock this server's folder, and the home. Return the locks, which last until they are closed.

    On SQLite, a home and its database have one server. Raise Conflict if another one runs.
    """
    folder = home.server(server_id)
    is_shared = database is not None and not is_sqlite(database)
    try:
        home.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        home.root.chmod(0o700)
        for path in (home.servers, folder.root):  # `parents=True` would not make them private
            path.mkdir(exist_ok=True, mode=0o700)
        locks = [_open(folder.lock), _open(home.server_lock)]
        other_file = None if is_shared or database is None else make_url(database).database
        if other_file is not None:
            locks.append(_open(Path(f"{other_file}.lock")))
    except OSError as error:
        raise Invalid(
            f"cannot use {home.root}: {error.strerror}; set RETARGET_HOME to a folder you own"
        ) from error
    named = "" if server_id == DEFAULT_SERVER else f" with the id {server_id!r}"
    hint = "; `--id NAME` gives this one another id" if is_shared else ""
    _take(locks[0], fcntl.LOCK_EX, f"a server{named} is already running for {home.root}{hint}")
    others = "; several servers of one home need PostgreSQL"
    _take(
        locks[1],
        fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX,
        f"a server is already running for {home.root}{others}",
    )
    for lock in locks[2:]:
        _take(lock, fcntl.LOCK_EX, f"another server uses the database {other_file}{others}")
    folder.info.unlink(missing_ok=True)
    return locks


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _take(lock: int, kind: int, refusal: str) -> None:
    deadline = time.monotonic() + _PROBE_SECONDS
    while True:
        try:
            return fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise Conflict(refusal) from None
        time.sleep(0.01)
