"""Runs the server: `python -m retarget.server`. Clients find it by its server.json."""

import asyncio
import fcntl
import gc
import json
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import uvicorn

from retarget import __version__
from retarget.blobs.disk import sync_files
from retarget.core.addresses import exposure_warning, format_listener
from retarget.core.config import parse_size
from retarget.core.errors import Conflict, Invalid, RetargetError
from retarget.core.home import DEFAULT_SERVER, Home, ServerFolder, home_from
from retarget.core.names import check_name
from retarget.server.app import Settings, make_app
from retarget.server.config import read_settings
from retarget.server.connections import Connections, GuardedProtocol, raise_descriptor_limit
from retarget.server.event_bus import EventBus
from retarget.server.home_locks import lock_home
from retarget.server.log_file import rotate_log
from retarget.server.served_database import check_database, record_database
from retarget.server.websockets import MAX_MESSAGE_BYTES, websocket_protocol

_log = logging.getLogger("retarget")
_MAX_PORT_DIGITS = 5


_HELP = """usage: python -m retarget.server

Run the server of RETARGET_HOME in the foreground until it is asked to stop. It takes no arguments:
`retarget server run --help` lists the options, and docs/reference/environment-variables.md the
variables that it reads.
"""


def main() -> int:
    """Serve until asked to stop. If the server cannot start, write one line to stderr."""
    if sys.argv[1:]:
        return _explain_usage(sys.argv[1:])
    try:
        serve(os.environ)
    except RetargetError as error:
        sys.stderr.write(f"retarget server: {error}\n")
        return 1
    except OSError as error:
        path = error.filename or home_from(os.environ).root
        sys.stderr.write(f"retarget server: cannot use {path}: {error.strerror}\n")
        return 1
    return 0


def _explain_usage(arguments: Sequence[str]) -> int:
    if set(arguments) & {"--help", "-h"}:
        sys.stdout.write(_HELP)
        return 0
    sys.stderr.write(f"retarget server: unexpected argument {arguments[0]!r}; see --help\n")
    return 2


def serve(environ: Mapping[str, str]) -> None:
    """Serve the home that the environment names, with the settings of its config.toml."""
    os.umask(0o077)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    home = home_from(environ)
    values = read_settings(home, environ)
    server_id = check_name(environ.get("RETARGET_SERVER_ID") or DEFAULT_SERVER, field="id")
    database = values["database"]
    locks = lock_home(home, server_id, database)
    check_database(home, database)
    with _bind(home.server(server_id), values["host"], values["port"]) as listener:
        listen = format_listener(*listener.getsockname()[:2])
        settings = Settings(
            home=home,
            server_id=server_id,
            url=values["public_url"] or f"http://{listen}",
            token=_read_or_create_secret(home.token),
            secret=_read_or_create_secret(home.secret).encode(),
            database=database,
            poll_seconds=values["poll_seconds"],
            conda=values["conda"],
            keep_limit=parse_size(values["keep_limit"]),
        )
        warning = exposure_warning(listen, settings.url)
        if warning:
            _log.warning(warning)
        _serve(settings, listener)
    for lock in locks:
        os.close(lock)


def _serve(settings: Settings, listener: socket.socket) -> None:
    home, folder = settings.home, settings.home.server(settings.server_id)
    listen = format_listener(*listener.getsockname()[:2])

    def stop(*_: object) -> None:
        server.should_exit = True

    connections = Connections(raise_descriptor_limit())
    bus = EventBus()
    app = make_app(settings, bus=bus, stop=stop)
    record_database(home, settings.database)
    config = uvicorn.Config(
        app,
        http=cast("type[asyncio.Protocol]", partial(GuardedProtocol, connections)),
        ws=cast("type[asyncio.Protocol]", websocket_protocol),
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_per_message_deflate=False,
        log_level="error",  # its warnings are about requests that anybody can send
        access_log=False,
        timeout_graceful_shutdown=2,
        lifespan="on",
        proxy_headers=False,  # nothing here depends on the client address
        date_header=False,
        server_header=False,
    )
    server = _Server(config, bus)
    gc.collect()
    gc.set_threshold(20_000, 20, 50)  # a request creates thousands of objects but no cycles
    gc.freeze()  # modules loaded by now stay, so no collection needs to scan them
    threading.Thread(target=_announce, args=(server, settings, listen), daemon=True).start()
    # uvicorn raises it again at the end, which would end the process before the next lines
    signal.signal(signal.SIGTERM, stop)
    try:
        server.run(sockets=[listener])
    finally:
        folder.info.unlink(missing_ok=True)


class _Server(uvicorn.Server):
    """Ends the responses that would go on for ever before it waits for the end of all others."""

    def __init__(self, config: uvicorn.Config, bus: EventBus) -> None:
        super().__init__(config)
        self._bus = bus

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._bus.close()
        await super().shutdown(sockets)


def _announce(server: uvicorn.Server, settings: Settings, listen: str) -> None:
    """Write server.json once the server is ready; rotate the log; stop if the home is deleted."""
    home, folder = settings.home, settings.home.server(settings.server_id)
    while not server.started:
        time.sleep(0.005)
    server_info: dict[str, Any] = {"pid": os.getpid(), "url": settings.url, "version": __version__}
    server_info |= {"listen": listen, "started_at": time.time(), "host": os.uname().nodename}
    while not server.should_exit:
        if not _is_announced(folder):  # not written yet, or somebody damaged the file
            _write_server_file(folder, server_info, home)
        time.sleep(1.0)
        rotate_log(folder)
        if not (home.server_lock.exists() and folder.lock.exists()):
            _log.warning("%s was deleted: stopping", home.root)
            server.should_exit = True


def _is_announced(folder: ServerFolder) -> bool:
    try:
        return json.loads(folder.info.read_bytes())["pid"] == os.getpid()
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _write_server_file(folder: ServerFolder, server_info: dict[str, Any], home: Home) -> None:
    """Write server.json. On failure, such as a full disk, the caller tries again."""
    part = folder.info.with_suffix(".part")
    try:
        part.write_text(json.dumps(server_info))
        part.rename(folder.info)
    except OSError as error:
        _log.error("cannot write %s: %s", folder.info, error.strerror)
    else:
        _log.info("serving %s at %s", home.root, server_info["url"])


def _bind(folder: ServerFolder, host: str, chosen: int | None) -> socket.socket:
    """Listen on this host and port; by default, on the previous server's port if it is free."""
    port_file = folder.port
    previous = port_file.read_text(errors="replace") if port_file.exists() else ""
    last = int(previous) if _is_port(previous) else 0
    ports = [last, 0] if chosen is None else [chosen]
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
            port_file.write_text(str(listener.getsockname()[1]))
        return listener
    raise Conflict(
        f"cannot listen on {host}:{ports[0]}: {failure}; choose another address (--host, --port, "
        "RETARGET_HOST, RETARGET_PORT, or `retarget config set port N`)"
    )


def _is_port(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MAX_PORT_DIGITS


def _read_or_create_secret(path: Path) -> str:
    """Return the secret in this file. Create the file, readable by its owner only, if missing."""
    if not path.exists():
        _create_secret(path)
    text = path.read_text(errors="replace").strip()
    if not text or not text.isascii():
        raise Invalid(f"{path} is damaged; delete it and start the server again")
    return text


def _create_secret(path: Path) -> None:
    """Create the file, unless another server of this home is faster."""
    part = path.with_suffix(".part")  # a kill leaves no half of it
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if path.exists():
            part.unlink(missing_ok=True)
            return
        file.truncate()
        file.write(secrets.token_urlsafe(32))
        file.flush()
        sync_files([part], path.parent)  # nothing can be done without it after a power cut
        part.rename(path)
    sync_files([path.parent], path.parent)


if __name__ == "__main__":
    sys.exit(main())
