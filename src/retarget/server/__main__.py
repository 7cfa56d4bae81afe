"""Serves: `python -m retarget.server`. One server a home, found through server.json."""

import fcntl
import gc
import json
import logging
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvicorn

from retarget import __version__
from retarget.core.addresses import parse_address
from retarget.core.errors import Conflict, Invalid, RetargetError
from retarget.core.home import Home, home_from
from retarget.server.app import Settings, make_app

_log = logging.getLogger("retarget")
_LONGEST_PORT = 5  # digits


def main() -> int:
    """Serve until told to stop. A failure to start is one sentence on the error output."""
    try:
        serve(os.environ)
    except RetargetError as error:
        sys.stderr.write(f"retarget server: {error}\n")
        return 1
    except OSError as error:
        where = error.filename or home_from(os.environ).root
        sys.stderr.write(f"retarget server: cannot use {where}: {error.strerror}\n")
        return 1
    return 0


def serve(environ: Mapping[str, str]) -> None:
    """Serve the home that the environment names, on loopback unless told otherwise."""
    os.umask(0o077)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    home = home_from(environ)
    every, public = _seconds(environ), environ.get("RETARGET_PUBLIC_URL")
    if public:
        parse_address(public)
    lock = _own(home)
    with _bind(home, environ) as listener:
        host, port = listener.getsockname()[:2]
        settings = Settings(
            home=home,
            url=public or f"http://{host}:{port}",
            token=_secret(home.token),
            secret=_secret(home.secret).encode(),
            database=environ.get("RETARGET_DATABASE") or None,
            every=every,
        )
        _serve(settings, listener)
    os.close(lock)


def _serve(settings: Settings, listener: socket.socket) -> None:
    home = settings.home

    def stop() -> None:
        server.should_exit = True

    app = make_app(settings, stop=stop)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=2,
        lifespan="on",
        proxy_headers=False,  # nothing here depends on who a proxy says is asking
        date_header=False,
        server_header=False,
    )
    server = uvicorn.Server(config)
    gc.collect()
    gc.set_threshold(20_000, 20, 50)  # a request makes thousands of objects, and no cycles
    gc.freeze()  # what is loaded by now stays; nobody need look through it again and again
    threading.Thread(target=_announce, args=(server, settings), daemon=True).start()
    try:
        server.run(sockets=[listener])
    finally:
        home.server_file.unlink(missing_ok=True)


def _announce(server: uvicorn.Server, settings: Settings) -> None:
    """Say where the server is once it is ready, and end it when its home is gone."""
    while not server.started:
        time.sleep(0.005)
    facts: dict[str, Any] = {"pid": os.getpid(), "url": settings.url, "version": __version__}
    facts["started"] = time.time()
    while not server.should_exit:
        if not _is_announced(settings.home):  # not yet, or no more: somebody has spoiled the file
            _write_facts(settings.home, facts)
        time.sleep(1.0)
        if not settings.home.server_lock.exists():
            _log.warning("%s is gone: stopping", settings.home.root)
            server.should_exit = True


def _is_announced(home: Home) -> bool:
    try:
        return json.loads(home.server_file.read_bytes())["pid"] == os.getpid()
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _write_facts(home: Home, facts: dict[str, Any]) -> None:
    """Write where the server is. While the disk is full this is tried again."""
    part = home.server_file.with_suffix(".part")
    try:
        part.write_text(json.dumps(facts))
        part.rename(home.server_file)
    except OSError as error:
        _log.error("cannot write %s: %s", home.server_file, error.strerror)
    else:
        _log.info("serving %s at %s", home.root, facts["url"])


def _seconds(environ: Mapping[str, str]) -> float:
    given = environ.get("RETARGET_POLL_SECONDS") or "1"
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= threading.TIMEOUT_MAX:  # what is not a number is neither
        raise Invalid(f"RETARGET_POLL_SECONDS: {given!r} is not a number of seconds above 0")
    return seconds


def _own(home: Home) -> int:
    """Make the home this process's own, or say that another server has it."""
    try:
        home.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        home.root.chmod(0o700)
        lock = os.open(home.server_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Invalid(
            f"cannot use {home.root}: {error.strerror}; set RETARGET_HOME to a folder of yours"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Conflict(f"a server is running for {home.root} already") from None
    home.server_file.unlink(missing_ok=True)
    return lock


def _bind(home: Home, environ: Mapping[str, str]) -> socket.socket:
    """Listen where told; else on loopback, at the port of the last server if it is free."""
    host = environ.get("RETARGET_HOST") or "127.0.0.1"
    asked = environ.get("RETARGET_PORT")
    if asked and not _is_number(asked):
        raise Invalid(f"RETARGET_PORT: {asked!r} is not a port number")
    remembered = home.root / "port"
    last = remembered.read_text(errors="replace") if remembered.exists() else ""
    ports = [int(asked)] if asked else [int(last) if _is_number(last) else 0, 0]
    failure: Exception | None = None
    for port in ports:
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except (OSError, OverflowError) as error:
            listener.close()
            failure = error
            continue
        with suppress(OSError):
            remembered.write_text(str(listener.getsockname()[1]))
        return listener
    raise Conflict(f"cannot listen on {host}:{ports[0]}: {failure}; choose another RETARGET_PORT")


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= _LONGEST_PORT


def _secret(path: Path) -> str:
    """Return the secret in this file, making one that only the owner can read."""
    if not path.exists():
        part = path.with_suffix(".part")  # there wholly or not at all, whenever we are killed
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32))
        part.rename(path)
    text = path.read_text(errors="replace").strip()
    if not text or not text.isascii():
        raise Invalid(f"{path} is not what was written there; remove it and start again")
    return text


if __name__ == "__main__":
    sys.exit(main())
