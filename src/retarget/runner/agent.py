"""The driver's hand on a machine that is not its own: does what it is asked over its pipe.

It also keeps a door: a port on this machine's loopback that leads to the driver's server, for
runners and scripts. It ends when its pipe does, or says nothing for long; runners live on.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import sys
import time
from typing import Any

from retarget.runner.link import Channel, Link
from retarget.runner.loader import has_room
from retarget.runner.machine import Machine
from retarget.runner.snapshot import trim

_SILENCE = 60.0  # seconds without a word from the driver after which it is taken for gone
_LEAVES = 5.0  # seconds that an agent which is told to leave may take
_OLD = 30 * 86400.0  # seconds after which a runner that nobody uses is removed
_UV = "uv"


def serve(root: str) -> int:
    """Serve the driver at the other end of this process's input and output."""
    asyncio.run(_serve(root))
    return 0


async def _serve(root: str) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(0, "rb"))
    output = os.fdopen(os.dup(1), "wb")
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, output)
    # whatever is started from here must not speak to the driver
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)
    agent = Agent(root)
    link = Link(
        reader, asyncio.StreamWriter(transport, protocol, None, loop), agent.answer, _refuse
    )
    agent.link = link
    work = asyncio.ensure_future(link.run())
    while not work.done() and loop.time() - link.heard < _SILENCE:
        await asyncio.wait([work], timeout=5.0)
    os._exit(0)  # threads may hang on a dead disk: nobody waits for them


class Agent:
    link: Link

    def __init__(self, root: str) -> None:
        self._root = root
        self._machine = Machine(root, sys.argv[0])
        self._doors: dict[str, Any] = {}  # by name: who waits for it, if another agent has it
        self._kept: list[Any] = []  # the servers behind those that are ours
        self._turn = asyncio.Lock()

    async def answer(self, request: dict[str, Any], attached: bytes) -> Any:
        """Do one thing. The work itself is done in a thread: it may take a while."""
        what = dict(request)
        do = str(what.pop("do"))
        if do == "ping":
            return None
        if do == "door":
            return await self._open(what["name"])
        if do == "launch":
            what["door"] = await self._open(what["door"]) if what["door"] else None
        work = getattr(self, f"_do_{do}")
        if attached:
            what["content"] = attached
        return await asyncio.get_running_loop().run_in_executor(None, lambda: work(**what))

    # -- what can be asked

    def _do_facts(self) -> dict[str, Any]:
        _remove_old_runners()
        try:
            trim(os.path.join(self._root, "blobs"))
        except OSError:
            pass  # another agent was faster, or the disk is full: tomorrow
        if not has_room(self._root):
            raise OSError(f"the disk is full: {self._root}: No space left on device")
        self._machine.prepare()
        return dict(self._machine.facts(), address=_own_address(), uv=self._uv() is not None)

    def _do_launch(self, key: str, told: dict[str, Any], node: dict[str, Any], door: Any) -> None:
        if door is not None:
            told["contact"].update(url=door[0], door=door[1])
        told["node"] = dict(
            node,
            cache=self._root,
            blobs=[],
            runner=sys.argv[0],
            python=sys.executable,
            uv=self._uv(),
            conda=None,
        )
        self._machine.prepare()
        self._machine.launch(key, told)

    def _do_poll(self, keys: list[str]) -> list[dict[str, Any]]:
        return self._machine.poll(keys)

    def _do_cancel(self, key: str) -> None:
        self._machine.cancel(key)

    def _do_forget(self, key: str) -> None:
        self._machine.forget(key)

    def _do_diagnose(self, key: str) -> str:
        return self._machine.diagnose(key)

    def _do_environments(self) -> list[dict[str, Any]]:
        return self._machine.environments()

    def _do_remove_environment(self, digest: str) -> str:
        return self._machine.remove_environment(digest)

    def _do_put(self, name: str, whole: dict[str, Any], offset: int, content: bytes) -> int:
        """Take in a part of a program that was brought along. Return how much is there.

        It takes its place when it is `whole`, and what was sent. Each turn has a copy of its own.
        """
        place = os.path.join(self._root, "bin", os.path.basename(name))
        part = f"{place}.{os.path.basename(whole['turn'])}.part"
        os.makedirs(os.path.dirname(place), exist_ok=True)
        try:
            _add(part, offset, content)
            if offset + len(content) >= whole["size"]:
                _check(part, whole["digest"])
                os.rename(part, place)
        except OSError:
            _discard(part)
            raise
        return offset + len(content)

    def _uv(self) -> str | None:
        own = os.path.join(self._root, "bin", _UV)
        return own if os.path.exists(own) else shutil.which(_UV)

    # -- the door

    async def _open(self, name: str) -> tuple[str, str]:
        """Make sure that a door is open, and return its address and where that is written."""
        path = os.path.join(self._root, "doors", os.path.basename(name))
        async with self._turn:
            if name not in self._doors:
                os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
                lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                if await _take_or_find(lock, path):
                    await self._keep_door(lock, path)
                else:
                    self._doors[name] = asyncio.ensure_future(self._inherit(lock, path))
                self._doors.setdefault(name, None)
        return f"http://127.0.0.1:{_read_port(path)}", path

    async def _inherit(self, lock: int, path: str) -> None:
        """Wait until the agent leaves that has the door, and have it then."""
        while not _flock(lock):
            await asyncio.sleep(1.0)
        await self._keep_door(lock, path)

    async def _keep_door(self, lock: int, path: str) -> None:
        """Listen, where runners and scripts know it to be if that can be had."""
        try:
            server = await asyncio.start_server(self._connected, "127.0.0.1", _read_port(path))
        except OSError:  # another has that port by now
            server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        told = {"port": server.sockets[0].getsockname()[1], "pid": os.getpid()}
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps(told).encode(), 0)
        self._kept.append(server)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not _is_ours(writer):
            writer.close()
            return
        channel = await self.link.open()
        await channel.join(reader, writer)


def _add(path: str, offset: int, content: bytes) -> None:
    with open(path, "r+b" if offset else "wb") as file:
        file.seek(offset)
        file.write(content)


def _check(path: str, digest: str) -> None:
    """Make a file a program that is there for good, or raise OSError if it is not the right one."""
    with open(path, "rb") as file:
        found = hashlib.blake2b()
        for block in iter(lambda: file.read(1 << 20), b""):
            found.update(block)
        if found.hexdigest() != digest:
            raise OSError(5, "it did not arrive as it was sent", path)
        os.fchmod(file.fileno(), 0o755)
        os.fsync(file.fileno())


def _discard(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # it was never there


async def _refuse(channel: Channel) -> None:
    """Nothing is opened from the driver's side."""
    await channel.end()


async def _take_or_find(lock: int, path: str) -> bool:
    """Lock a door; False when another agent has it that leads to the server.

    One whose link is dead may hold it, too: that one has to leave.
    """
    deadline = time.monotonic() + _LEAVES
    while not _flock(lock):
        if await _leads_on(_read_port(path)):
            return False
        if time.monotonic() > deadline:
            raise OSError(11, "another agent holds it and does not leave", path)
        _dismiss(path)
        await asyncio.sleep(0.05)
    return True


async def _leads_on(port: int) -> bool:
    """Tell whether a server answers at a door, whatever it says."""
    try:
        return await asyncio.wait_for(_ask_for_anything(port), 3.0)
    except (OSError, asyncio.TimeoutError):
        return False


async def _ask_for_anything(port: int) -> bool:
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


def _dismiss(path: str) -> None:
    """Have the agent leave that has written its pid here, if it is still an agent's."""
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
            found: dict[str, Any] = json.load(file)
        return dict(found)
    except (OSError, ValueError, TypeError):
        return {}


def _is_ours(writer: asyncio.StreamWriter) -> bool:
    """Tell whether whoever has connected is of the same user; others have no business here."""
    address, port = writer.get_extra_info("peername")[:2]
    mark = f"{int.from_bytes(socket.inet_aton(address), sys.byteorder):08X}:{port:04X}"
    try:
        with open("/proc/net/tcp", encoding="ascii") as table:
            for line in table:
                fields = line.split()
                if fields[1] == mark:
                    return int(fields[7]) in (os.getuid(), 0)
    except (OSError, IndexError):
        return True  # not Linux
    return False


def _remove_old_runners() -> None:
    """Remove runners of other versions that no server has used for long; each use is noted."""
    here = os.path.dirname(sys.argv[0])
    for name in os.listdir(here):
        path = os.path.join(here, name)
        try:
            if name.startswith("runner-") and time.time() - os.stat(path).st_mtime > _OLD:
                os.unlink(path)
        except OSError:
            pass  # another agent was faster


def _own_address() -> str:
    """Return the address at which the driver has reached this machine."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    return words[2] if len(words) == 4 else ""
