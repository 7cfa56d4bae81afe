"""Engines at ssh://…: a socket of this machine from which each connection goes there by OpenSSH.

The Docker SDK's own way waits without end for a connection that has died.
"""

import asyncio
import atexit
import os
import threading
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from retarget.drivers._host import together
from retarget.drivers._scratch import scratch

_CHUNK = 1 << 16
_open: dict[tuple[int, str], str] = {}  # by process and engine: the socket
_said: dict[str, str] = {}
_turn = threading.Lock()


def tunnel(engine: str) -> str:
    """Return the path of a socket that leads to the engine."""
    identity = os.getpid(), engine
    with _turn:
        if identity not in _open:
            folder = scratch()
            for left in folder.glob("engine-*-*"):  # by servers that have ended
                if not Path("/proc", left.name.split("-")[1]).exists():
                    left.unlink(missing_ok=True)
            path = folder / f"engine-{os.getpid()}-{len(_open)}"
            path.unlink(missing_ok=True)
            together([_listen(engine, str(path))])
            _open[identity] = str(path)
            atexit.register(path.unlink, missing_ok=True)
        return _open[identity]


def last_words(engine: str) -> str:
    """Return what ssh said when it last failed to get there; empty where there is nothing."""
    return _said.get(engine, "")


def command(engine: str) -> list[str]:
    """Return what connects to an engine over SSH; Docker's own command there knows where it is."""
    place = urlsplit(engine)
    options = ["-T", "-oBatchMode=yes", "-oServerAliveInterval=5", "-oConnectTimeout=30"]
    options += ["-p", str(place.port)] if place.port else []
    options += ["-l", place.username] if place.username else []
    return ["ssh", *options, "--", place.hostname or "", "docker", "system", "dial-stdio"]


async def _listen(engine: str, path: str) -> None:
    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _carry(engine, reader, writer)

    await asyncio.start_unix_server(carry, path)


async def _carry(engine: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Have one connection go both ways, until either end closes it."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command(engine), stdin=pipe, stdout=pipe, stderr=pipe
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    there = asyncio.ensure_future(_send(reader, process.stdin))
    heard = await _pump(process.stdout, writer)
    there.cancel()
    if heard:
        _said.pop(engine, None)
    else:
        with suppress(TimeoutError):
            words = await asyncio.wait_for(process.stderr.read(4096), 5.0)
            _said[engine] = words.decode("utf-8", "replace").strip().partition("\n")[0]
    writer.close()
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()


async def _send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _pump(reader, writer)
    writer.close()  # so that it ends at the other end as well


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    """Carry all there is one way, and return how much that was."""
    count = 0
    with suppress(ConnectionError):
        while part := await reader.read(_CHUNK):
            count += len(part)
            writer.write(part)
            await writer.drain()
    return count
