"""The agent: our process on a remote host, which serves one driver over a pipe.

It also listens on a relay port: a loopback port that leads to the driver's server, for runners.
The agent exits when the pipe closes or the driver falls silent. Runners continue.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import shutil
import signal
import sys
import time
from typing import Any

from retarget.runner.bootstrap import has_room
from retarget.runner.host import Host
from retarget.runner.link import AGENT, Channel, Link, Refused
from retarget.runner.peers import is_same_user
from retarget.runner.snapshot import distrust_young, trim
from retarget.runner.uv_settings import cache_variables

_SILENCE_SECONDS = 60.0  # a driver that sends nothing for this long is considered gone
_EXIT_SECONDS = 5.0  # how long a replaced agent may take to exit
_UNUSED_RUNNER_SECONDS = 30 * 86400.0  # a runner that nobody used for this long is removed
_PRIVATE_FOLDERS = ("bin", "blobs", "environments", "packages", "shims", "track")
_UV = "uv"


def serve(root: str) -> int:
    """Serve the driver at the other end of stdin and stdout."""
    asyncio.run(_serve(root))
    return 0


async def _serve(root: str) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(0, "rb"))
    output = os.fdopen(os.dup(1), "wb")
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, output)
    # child processes must not write into the driver's pipe
    devnull = os.open(os.devnull, os.O_RDWR)
    os.dup2(devnull, 1)
    os.environ.update(cache_variables(os.environ, root))
    agent = Agent(root)
    link = Link(
        reader,
        asyncio.StreamWriter(transport, protocol, None, loop),
        agent.answer,
        agent.serve_channel,
        AGENT,
    )
    agent.link = link
    work = asyncio.ensure_future(link.run())
    while not work.done() and loop.time() - link.last_seen_at < _SILENCE_SECONDS:
        await asyncio.wait([work], timeout=5.0)
    os._exit(0)  # threads may hang on a dead disk: do not wait for them


class Agent:
    link: Link

    def __init__(self, root: str) -> None:
        self._root = root
        self._host = Host(root, sys.argv[0])
        # by name; the task waits to take over a port that another agent holds
        self._relay_ports: dict[str, Any] = {}
        self._servers: list[Any] = []  # the listeners of the ports that this agent holds
        self._relay_lock = asyncio.Lock()

    async def answer(self, request: dict[str, Any], attached: bytes) -> Any:
        """Handle one request. The work runs in a thread, as it may take a while."""
        arguments = dict(request)
        do = str(arguments.pop("do"))
        if do == "ping":
            return None
        if do == "relay_port":
            return await self._open_relay_port(arguments["name"])
        if do == "launch":
            name = arguments.pop("relay_port")
            arguments["relay"] = await self._open_relay_port(name) if name else None
        handler = getattr(self, f"_do_{do}")
        if attached:
            arguments["content"] = attached
        return await asyncio.get_running_loop().run_in_executor(None, lambda: handler(**arguments))

    async def serve_channel(self, channel: Channel) -> None:
        """Connect a channel of the driver to its destination on this host."""
        destination = channel.destination
        if destination["to"] != "exec":
            raise Refused(f"unknown destination {destination['to']!r}")
        key, loop = str(destination.get("key")), asyncio.get_running_loop()
        connection = await loop.run_in_executor(None, self._host.open_exec, key)
        reader, writer = await asyncio.open_connection(sock=connection)
        await channel.accept()
        await channel.join(reader, writer)

    # -- requests

    def _do_inventory(self) -> dict[str, Any]:
        _remove_unused_runners()
        try:
            distrust_young(os.path.join(self._root, "blobs"))
            trim(os.path.join(self._root, "blobs"))
        except OSError:
            pass  # another agent was faster, or the disk is full: try again tomorrow
        if not has_room(self._root):
            raise OSError(f"the disk is full: {self._root}: No space left on device")
        self._host.prepare()
        _make_private(self._root)
        return dict(self._host.inventory(), address=_ssh_address(), uv=self._uv() is not None)

    def _do_launch(
        self,
        key: str,
        content: dict[str, Any],
        node: dict[str, Any],
        relay: tuple[str, str] | None,
        lease: dict[str, Any] | None = None,
    ) -> None:
        """Launch; `relay` is the URL of a relay port, and the file that its number is in."""
        if relay is not None:
            content["contact"].update(url=relay[0], relay_port=relay[1])
        content["node"] = dict(
            node,
            cache=self._root,
            blobs=[],
            runner=sys.argv[0],
            python=sys.executable,
            uv=self._uv(),
            conda=None,
        )
        self._host.prepare()
        self._host.launch(key, content, lease)

    def _do_poll(self, keys: list[str]) -> list[dict[str, Any]]:
        return self._host.poll(keys)

    def _do_cancel(self, key: str, lease: dict[str, Any] | None = None) -> None:
        self._host.cancel(key, lease)

    def _do_forget(self, key: str, lease: dict[str, Any] | None = None) -> None:
        self._host.forget(key, lease)

    def _do_diagnose(self, key: str) -> str:
        return self._host.diagnose(key)

    def _do_environments(self) -> list[dict[str, Any]]:
        return self._host.environments()

    def _do_remove_environment(self, digest: str) -> str:
        return self._host.remove_environment(digest)

    def _do_put(self, name: str, upload: dict[str, Any], offset: int, content: bytes) -> int:
        """Store a chunk of a program that the driver uploads. Return how many bytes are stored.

        The program is installed once it is complete and its digest matches. Uploads with
        different ids do not share a file.
        """
        path = os.path.join(self._root, "bin", os.path.basename(name))
        part = f"{path}.{os.path.basename(upload['id'])}.part"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            _write_chunk(part, offset, content)
            if offset + len(content) >= upload["size"]:
                _verify(part, upload["digest"])
                os.rename(part, path)
        except OSError:
            _discard(part)
            raise
        return offset + len(content)

    def _uv(self) -> str | None:
        uploaded = os.path.join(self._root, "bin", _UV)
        return uploaded if os.path.exists(uploaded) else shutil.which(_UV)

    # -- the relay port

    async def _open_relay_port(self, name: str) -> tuple[str, str]:
        """Make sure that a relay port is open. Return its URL and the file its number is in."""
        path = os.path.join(self._root, "relay_ports", os.path.basename(name))
        async with self._relay_lock:
            if name not in self._relay_ports:
                os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
                lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                if await _acquire_relay_port(lock, path):
                    await self._listen(lock, path)
                else:
                    self._relay_ports[name] = asyncio.ensure_future(self._take_over(lock, path))
                self._relay_ports.setdefault(name, None)
        return f"http://127.0.0.1:{_read_port(path)}", path

    async def _take_over(self, lock: int, path: str) -> None:
        """Wait until the agent that holds the relay port exits, then listen on it."""
        while not _flock(lock):
            await asyncio.sleep(1.0)
        await self._listen(lock, path)

    async def _listen(self, lock: int, path: str) -> None:
        """Listen on the port that runners and scripts already know, if it is still free."""
        try:
            server = await asyncio.start_server(self._connected, "127.0.0.1", _read_port(path))
        except OSError:  # another process uses that port by now
            server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        listener = {"port": server.sockets[0].getsockname()[1], "pid": os.getpid()}
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps(listener).encode(), 0)
        self._servers.append(server)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not is_same_user(*writer.get_extra_info("peername")[:2]):
            writer.close()
            return
        channel = await self.link.open({"to": "server"})
        await channel.join(reader, writer)


def _make_private(root: str) -> None:
    """Close folders that an earlier version left open to other users of the host."""
    for name in _PRIVATE_FOLDERS:
        try:
            os.chmod(os.path.join(root, name), 0o700)
        except OSError:
            pass  # it does not exist


def _write_chunk(path: str, offset: int, content: bytes) -> None:
    with open(path, "r+b" if offset else "wb") as file:
        file.seek(offset)
        file.write(content)


def _verify(path: str, digest: str) -> None:
    """Make a file executable and sync it to disk. OSError: its digest does not match."""
    with open(path, "rb") as file:
        actual = hashlib.blake2b()
        for block in iter(lambda: file.read(1 << 20), b""):
            actual.update(block)
        if actual.hexdigest() != digest:
            raise OSError(5, "the upload is damaged: its digest does not match", path)
        os.fchmod(file.fileno(), 0o755)
        os.fsync(file.fileno())


def _discard(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # it was never created


async def _acquire_relay_port(lock: int, path: str) -> bool:
    """Lock a relay port; False if another agent holds it and its port leads to the server.

    An agent whose link is dead may hold it as well. That one is killed.
    """
    deadline = time.monotonic() + _EXIT_SECONDS
    while not _flock(lock):
        if await _leads_to_server(_read_port(path)):
            return False
        if time.monotonic() > deadline:
            raise OSError(11, "another agent holds this relay port and does not exit", path)
        _kill_agent(path)
        await asyncio.sleep(0.05)
    return True


async def _leads_to_server(port: int) -> bool:
    """Return whether a server answers behind a relay port, with any answer."""
    try:
        return await asyncio.wait_for(_probe(port), 3.0)
    except (OSError, asyncio.TimeoutError):
        return False


async def _probe(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /api/attempts/nobody/blobs/nothing HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return (await reader.read(5)).startswith(b"HTTP")
    finally:
        writer.close()


def _flock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


def _kill_agent(path: str) -> None:
    """Kill the agent whose pid is in this file, if that pid still belongs to an agent."""
    pid = _read(path).get("pid", 0)
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if b"agent" in file.read().split(b"\0"):
                os.kill(pid, signal.SIGKILL)
    except (OSError, TypeError):
        pass


def _read_port(path: str) -> int:
    port = _read(path).get("port", 0)
    return port if isinstance(port, int) else 0


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            content: dict[str, Any] = json.load(file)
        return dict(content)
    except (OSError, ValueError, TypeError):
        return {}


def _remove_unused_runners() -> None:
    """Remove runners of other versions that no server has used for long. Each use is recorded."""
    folder = os.path.dirname(sys.argv[0])
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        try:
            age = time.time() - os.stat(path).st_mtime
            if name.startswith("runner-") and age > _UNUSED_RUNNER_SECONDS:
                os.unlink(path)
        except OSError:
            pass  # another agent was faster


def _ssh_address() -> str:
    """Return the address of this host by which the driver logged in."""
    fields = os.environ.get("SSH_CONNECTION", "").split()
    return fields[2] if len(fields) == 4 else ""
