"""Engines at ssh://…: a local socket that forwards each connection through OpenSSH.

The SSH support of the Docker SDK waits forever for a connection that has died.
"""

import asyncio
import os
import threading
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from urllib.parse import urlsplit

from retarget.core.links import Links
from retarget.drivers._event_loop import EventLoop
from retarget.drivers._tmpdir import user_tmpdir

_CHUNK_BYTES = 1 << 16


class DockerTunnels:
    """One local socket for each engine at ssh://…, with the last error of its ssh."""

    def __init__(self, links: Links) -> None:
        self._loop = links.get(EventLoop)
        self._paths: dict[str, Path] = {}  # of the sockets, by engine
        self._servers: list[asyncio.Server] = []
        self._errors: dict[str, str] = {}  # by engine
        self._lock = threading.Lock()

    def socket(self, engine: str) -> str:
        """Return the path of a local socket that leads to the engine."""
        with self._lock:
            if engine not in self._paths:
                path = _new_path()
                self._servers.append(self._loop.run(self._listen(engine, path)))
                self._paths[engine] = path
            return str(self._paths[engine])

    def last_error(self, engine: str) -> str:
        """Return the message of the last failed ssh to an engine; empty if there is none."""
        return self._errors.get(engine, "")

    def close(self) -> None:
        for server in self._servers:
            self._loop.call_soon(server.close)
        for path in self._paths.values():
            path.unlink(missing_ok=True)

    async def _listen(self, engine: str, path: Path) -> asyncio.Server:
        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._forward(engine, reader, writer)

        return await asyncio.start_unix_server(forward, str(path))

    async def _forward(
        self, engine: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Forward one connection in both directions until either end closes it."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *ssh_command(engine), stdin=pipe, stdout=pipe, stderr=pipe
        )
        try:
            received_bytes = await _carry(process, reader, writer)
            if received_bytes:
                self._errors.pop(engine, None)
            else:
                await self._note_error(engine, process)
        finally:
            writer.close()
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _note_error(self, engine: str, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        with suppress(TimeoutError):
            stderr = await asyncio.wait_for(process.stderr.read(4096), 5.0)
            self._errors[engine] = stderr.decode("utf-8", "replace").strip().partition("\n")[0]


def _new_path() -> Path:
    folder = user_tmpdir()
    for stale_socket in folder.glob("engine-*-*"):  # of servers that have exited
        if not Path("/proc", stale_socket.name.split("-")[1]).exists():
            stale_socket.unlink(missing_ok=True)
    return folder / f"engine-{os.getpid()}-{token_hex(4)}"


def ssh_command(engine: str) -> list[str]:
    """Return the command that connects to an engine over SSH.

    The docker command on the other side knows where its engine listens.
    """
    address = urlsplit(engine)
    options = ["-T", "-oBatchMode=yes", "-oServerAliveInterval=5", "-oConnectTimeout=30"]
    options += ["-p", str(address.port)] if address.port else []
    options += ["-l", address.username] if address.username else []
    return ["ssh", *options, "--", address.hostname or "", "docker", "system", "dial-stdio"]


async def _carry(
    process: asyncio.subprocess.Process,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> int:
    """Carry the bytes of a connection, and return how many came from the engine."""
    assert process.stdin is not None
    assert process.stdout is not None
    sending = asyncio.ensure_future(_send(reader, process.stdin))
    try:
        return await _pump(process.stdout, writer)
    finally:
        sending.cancel()


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
