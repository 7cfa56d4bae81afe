"""Engines at ssh://…: a local socket that forwards each connection through OpenSSH.

The SSH support of the Docker SDK waits forever for a connection that has died.
"""

import asyncio
import atexit
import os
import threading
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from retarget.drivers._agent import run_all
from retarget.drivers._tmpdir import user_tmpdir

_CHUNK_BYTES = 1 << 16
_sockets: dict[tuple[int, str], str] = {}  # the path of the socket, by process and engine
_errors: dict[str, str] = {}
_lock = threading.Lock()


def tunnel_socket(engine: str) -> str:
    """Return the path of a local socket that leads to the engine."""
    identity = os.getpid(), engine
    with _lock:
        if identity not in _sockets:
            folder = user_tmpdir()
            for stale_socket in folder.glob("engine-*-*"):  # of servers that have exited
                if not Path("/proc", stale_socket.name.split("-")[1]).exists():
                    stale_socket.unlink(missing_ok=True)
            path = folder / f"engine-{os.getpid()}-{len(_sockets)}"
            path.unlink(missing_ok=True)
            run_all([_listen(engine, str(path))])
            _sockets[identity] = str(path)
            atexit.register(path.unlink, missing_ok=True)
        return _sockets[identity]


def last_error(engine: str) -> str:
    """Return the message of the last failed ssh to an engine; empty if there is none."""
    return _errors.get(engine, "")


def ssh_command(engine: str) -> list[str]:
    """Return the command that connects to an engine over SSH.

    The docker command on the other side knows where its engine listens.
    """
    address = urlsplit(engine)
    options = ["-T", "-oBatchMode=yes", "-oServerAliveInterval=5", "-oConnectTimeout=30"]
    options += ["-p", str(address.port)] if address.port else []
    options += ["-l", address.username] if address.username else []
    return ["ssh", *options, "--", address.hostname or "", "docker", "system", "dial-stdio"]


async def _listen(engine: str, path: str) -> None:
    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _forward(engine, reader, writer)

    await asyncio.start_unix_server(forward, path)


async def _forward(engine: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward one connection in both directions until either end closes it."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *ssh_command(engine), stdin=pipe, stdout=pipe, stderr=pipe
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    sending = asyncio.ensure_future(_send(reader, process.stdin))
    received_bytes = await _pump(process.stdout, writer)
    sending.cancel()
    if received_bytes:
        _errors.pop(engine, None)
    else:
        with suppress(TimeoutError):
            stderr = await asyncio.wait_for(process.stderr.read(4096), 5.0)
            _errors[engine] = stderr.decode("utf-8", "replace").strip().partition("\n")[0]
    writer.close()
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()


async def _send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _pump(reader, writer)
    writer.close()  # so that the other end sees the end as well


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    """Copy everything in one direction and return the number of bytes."""
    count = 0
    with suppress(ConnectionError):
        while chunk := await reader.read(_CHUNK_BYTES):
            count += len(chunk)
            writer.write(chunk)
            await writer.drain()
    return count
