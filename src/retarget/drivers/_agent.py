"""The client of an agent on a remote host: it connects, sends requests and reconnects.

Any transport that opens a pipe to an agent works: SSH, or an engine that runs containers. All
clients share one thread with one event loop; drivers call them from any other thread.
"""

import asyncio
import json
import logging
import re
import socket
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

from retarget.core.errors import Conflict, TargetUnreachable
from retarget.drivers._event_loop import EventLoop
from retarget.runner import bootstrap
from retarget.runner.durations import show_duration
from retarget.runner.link import DRIVER, Broken, Channel, Failed, Link, Refused

_log = logging.getLogger(__name__)
PYTHON = re.compile(r"/[A-Za-z0-9_./+-]+")
_PYTHON_NAMES = "python3 " + " ".join(f"python3.{minor}" for minor in range(20, 7, -1))
_PYTHON_PATHS = (
    "/usr/bin/python3 /usr/local/bin/python3 /opt/conda/bin/python3 /usr/libexec/platform-python"
)
_IS_NEW_ENOUGH = "import sys; sys.exit(sys.version_info < (3, 8))"
_INPUT_CONSUMED = (
    "a login script such as ~/.bashrc reads the input meant for the agent; "
    "make it read only in an interactive terminal"
)
# Reads the announced number of bytes and runs them. It must not read more: the rest of the input
# belongs to the code it runs.
_RECEIVE_AND_RUN = (
    'import os, sys; f = os.fdopen(os.dup(0), \\"rb\\", 0); n = f.read(8); s = b\\"\\"; '
    f'n.isdigit() or sys.exit(\\"{_INPUT_CONSUMED}\\"); n = int(n); '
    'exec(\\"while len(s) < n: s += f.read(n - len(s))\\"); exec(s)'
)
_NO_PYTHON_EXIT_CODE = 97
_GREETING_PREFIX = b"RETARGET "  # at the start of a line
_MAX_LOGIN_OUTPUT_BYTES = 1 << 20  # that a login may print before the agent greets
_YIELD_EVERY_BYTES = 1 << 12  # of login output after which other tasks get to run
_PING_SECONDS = 5.0  # between two pings
_SILENCE_SECONDS = 20.0  # without any message, after which the link is closed
_RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0)  # before each new attempt to connect


class Pipe(Protocol):
    """The input and output of a program on a host, and how to end it."""

    reader: Any
    writer: Any

    def close(self) -> None: ...

    async def read_stderr(self) -> str:
        """Return what the program wrote to stderr, once it has ended."""
        ...


@dataclass(frozen=True)
class AgentInstall:
    """Where the agent is installed, and from what."""

    root: str  # the folder on the host; may start with ~
    zipapp: Callable[[], Path]  # builds the file again if it was deleted


@dataclass
class RelayPorts:
    """Ports on a host that lead to the server, shared by all links to one folder on it."""

    names: set[str] = field(default_factory=set[str])
    server: tuple[str, int, bool] | None = None


def bootstrap_command(python: str | None) -> str:
    """Return a command, for any shell, that finds a Python and runs the code sent to it."""
    names = python or f"{_PYTHON_NAMES} {_PYTHON_PATHS}"
    problem = f"is at {python}" if python else "was found"
    script = (
        f'for p in {names}; do if "$p" -c "{_IS_NEW_ENOUGH}" 2>/dev/null; '
        f'then exec "$p" -I -S -c "{_RECEIVE_AND_RUN}"; fi; done; '
        f"echo no Python 3.8 or newer {problem} >&2; exit {_NO_PYTHON_EXIT_CODE}"
    )
    return f"exec /bin/sh -c '{script}'"


class AgentClient:
    """Keeps a link to the agent on one host, from the first request until it is released."""

    def __init__(
        self,
        loop: EventLoop,
        name: str,
        open_pipe: Callable[[], Awaitable[Pipe]],
        install: AgentInstall | None,
        relay_ports: RelayPorts | None = None,
    ) -> None:
        self.name = name
        self.inventory: dict[str, Any] | None = None  # the last answer to that request
        self.connect_timeout = 30.0  # seconds from the first step until the agent must run
        self.upload_lock = threading.Lock()  # held while a program is uploaded to the host
        self._loop = loop
        self._open_pipe = open_pipe
        self._install = install
        self._relay_ports = relay_ports or RelayPorts()
        self._link: Link | None = None
        self._last_error = "not connected yet"
        self._connection_task: asyncio.Task[None] | None = None
        # done when the current attempt to connect has ended
        self._connecting: asyncio.Future[None] | None = None
        self._retry_now = asyncio.Event()
        self._pending_requests = 0
        self._joining: set[asyncio.Future[None]] = set()
        self._is_released = False

    def request(self, action: str, *, timeout: float = 30.0, **arguments: Any) -> Any:
        """Send a request to the agent. Raise TargetUnreachable, with the reason, if it fails."""
        return self._loop.run(self.request_async(action, timeout=timeout, **arguments))

    def open_channel(self, destination: dict[str, Any], *, timeout: float = 30.0) -> socket.socket:
        """Connect to a destination on the host. Raise Conflict, with the reason, if it refuses."""
        return self._loop.run(self._open_channel(destination, timeout))

    def relay_to(self, url: str, relay_port: str) -> None:
        """Let a relay port on the host lead to a server, now and after every reconnect."""
        self._relay_ports.names.add(relay_port)
        address = urlsplit(url)
        secure = address.scheme == "https"
        port = address.port or (443 if secure else 80)
        self._relay_ports.server = (address.hostname or "", port, secure)

    def release(self) -> None:
        """Close the link as soon as no request is pending."""
        self._loop.call_soon(self._release_when_idle)

    async def request_async(
        self, action: str, *, timeout: float = 30.0, attached: bytes = b"", **arguments: Any
    ) -> Any:
        """Send a request from the loop's own thread."""
        self._pending_requests += 1
        try:
            return await self._request(action, timeout, attached, arguments)
        finally:
            self._finish_request()

    async def _request(
        self, action: str, timeout: float, attached: bytes, arguments: dict[str, Any]
    ) -> Any:
        link = await self._wait_for_link(timeout, retry_now=action == "inventory")
        answering = link.ask({"do": action, **arguments}, attached)
        answer = await _errors_of(self.name, timeout, answering)
        if action == "inventory":
            self.inventory = answer
        return answer

    async def _open_channel(self, destination: dict[str, Any], timeout: float) -> socket.socket:
        link = await self._wait_for_link(timeout, retry_now=False)
        channel = await _errors_of(self.name, timeout, link.open(destination))
        try:
            await _errors_of(self.name, timeout, channel.accepted())
            channel_end, callers_end = socket.socketpair()
        except BaseException:
            await channel.end()
            raise
        joining = asyncio.ensure_future(self._join(channel, channel_end))
        self._joining.add(joining)
        joining.add_done_callback(self._joining.discard)
        return callers_end

    async def _join(self, channel: Channel, connection: socket.socket) -> None:
        """Carry the bytes of a channel. The link is not released meanwhile."""
        self._pending_requests += 1
        try:
            await channel.join(*await asyncio.open_connection(sock=connection))
        finally:
            self._finish_request()

    def _finish_request(self) -> None:
        self._pending_requests -= 1
        if self._is_released:
            self._release_when_idle()

    async def _wait_for_link(self, timeout: float, *, retry_now: bool) -> Link:
        if self._link is not None:
            return self._link
        if self._connection_task is None:
            self._connecting = asyncio.get_running_loop().create_future()
            self._connection_task = asyncio.get_running_loop().create_task(self._stay_connected())
        elif retry_now and self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_future()
            self._retry_now.set()
        if self._connecting is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._connecting), timeout)
        if self._link is None:
            raise TargetUnreachable(self._last_error)
        return self._link

    async def _stay_connected(self) -> None:
        """Connect, and reconnect whenever the link is lost."""
        failures = 0
        while True:
            if self._connecting is None:
                self._connecting = asyncio.get_running_loop().create_future()
            try:
                pipe = await self._connect()
                failures = 0
                await self._serve_link(pipe)
                self._last_error = f"the connection to {self.name} was lost"
            except TargetUnreachable as error:
                self._last_error = str(error)
            except Exception as error:  # noqa: BLE001 - the edge of the task: it must continue
                _log.exception("connection to %s failed", self.name)
                self._last_error = f"{self.name}: {error}"
            self._finish_connecting()
            self._retry_now.clear()
            pause = _RETRY_SECONDS[min(failures, len(_RETRY_SECONDS) - 1)]
            failures += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(self._retry_now.wait(), pause)

    def _finish_connecting(self) -> None:
        """Wake those who wait for the current attempt to connect."""
        if self._connecting is not None and not self._connecting.done():
            self._connecting.set_result(None)
        self._connecting = None

    async def _serve_link(self, pipe: Pipe) -> None:
        link = Link(pipe.reader, pipe.writer, _ignore_request, self._serve_channel, DRIVER)
        self._link, self._last_error = link, ""
        self._finish_connecting()
        work = asyncio.ensure_future(link.run())
        requests = [{"do": "relay_port", "name": name} for name in list(self._relay_ports.names)]
        opening = asyncio.gather(*map(link.ask, requests), return_exceptions=True)
        try:
            while not work.done() and _now() - link.last_seen_at < _SILENCE_SECONDS:
                ping = asyncio.ensure_future(_suppress_link_errors(link.ask({"do": "ping"})))
                await asyncio.wait([work], timeout=_PING_SECONDS)
                ping.cancel()
        finally:
            self._link = None
            opening.cancel()
            pipe.close()
            work.cancel()
        if work.done() and (error := work.exception()) is not None:
            raise TargetUnreachable(f"the connection to {self.name} was closed: it sent {error}")

    async def _connect(self) -> Pipe:
        """Open the transport and start an agent at its other end."""
        deadline = _now() + self.connect_timeout
        pipe = await self._open_pipe()
        if self._install is None:
            return pipe  # the other end already is an agent
        try:
            async with asyncio.timeout_at(deadline):
                await self._start_agent(pipe, self._install)
        except TimeoutError:
            pipe.close()
            raise TargetUnreachable(
                f"{self.name}: logged in, but the agent did not start within "
                f"{show_duration(self.connect_timeout)} (timeout); check whether ~/.bashrc waits "
                "for something"
            ) from None
        except (asyncio.IncompleteReadError, OSError) as error:
            pipe.close()
            stderr = (await pipe.read_stderr()).strip()[-500:]
            problem = stderr or f"the program ended at once ({error})"
            if not problem.startswith("no Python"):
                problem = f"logged in, but the agent could not be started: {problem}"
            raise TargetUnreachable(f"{self.name}: {problem}") from None
        except BaseException:
            pipe.close()
            raise
        return pipe

    async def _start_agent(self, pipe: Pipe, install: AgentInstall) -> None:
        source, zipapp = _bootstrap_source(), await asyncio.to_thread(install.zipapp)
        size = zipapp.stat().st_size
        setup = {"root": install.root, "runner": zipapp.name, "size": size}
        text = json.dumps(setup).encode()
        pipe.writer.write(b"%08d%b%08d%b" % (len(source), source, len(text), text))
        answer = await self._read_greeting(pipe.reader)
        if "error" in answer:
            raise TargetUnreachable(f"{self.name}: {_describe_error(answer)}")
        if not answer["has_runner"]:
            pipe.writer.write(await asyncio.to_thread(zipapp.read_bytes))
            await pipe.writer.drain()

    async def _read_greeting(self, reader: Any) -> dict[str, Any]:
        """Return the greeting of the bootstrap code. A login may print before it, up to a limit."""
        skipped_bytes = 0
        while skipped_bytes <= _MAX_LOGIN_OUTPUT_BYTES:
            try:
                line = await reader.readuntil(b"\n")  # must not consume what follows
            except asyncio.IncompleteReadError as error:
                if skipped_bytes + len(error.partial) <= _MAX_LOGIN_OUTPUT_BYTES:
                    raise
                break
            if (greeting := _parse_greeting(line)) is not None:
                return greeting
            if skipped_bytes % _YIELD_EVERY_BYTES + len(line) >= _YIELD_EVERY_BYTES:
                await asyncio.sleep(0)  # reading buffered data does not yield by itself
            skipped_bytes += len(line)
        raise TargetUnreachable(
            f"{self.name}: the login prints too much before the agent starts; check whether "
            "~/.bashrc prints endlessly"
        )

    async def _serve_channel(self, channel: Channel) -> None:
        """Forward a connection at a relay port of the host to the server."""
        if channel.destination["to"] != "server":
            raise Refused(f"unknown destination {channel.destination['to']!r}")
        if self._relay_ports.server is None:
            raise Refused("no relay port of this host is in use")
        host, port, secure = self._relay_ports.server
        reader, writer = await asyncio.open_connection(host, port, ssl=secure or None)
        await channel.accept()
        await channel.join(reader, writer)

    def _release_when_idle(self) -> None:
        self._is_released = True
        if self._pending_requests == 0:
            self._stop()

    def _stop(self) -> None:
        if self._connection_task is not None:
            self._connection_task.cancel()
        self._connection_task, self._link = None, None
        self._last_error = f"{self.name} is no longer used"
        self._finish_connecting()


async def _errors_of(name: str, timeout: float, work: Awaitable[Any]) -> Any:
    """Await something of a link to this host, and raise its errors as those of a target."""
    try:
        return await asyncio.wait_for(work, timeout)
    except TimeoutError:
        message = f"{name} did not answer within {show_duration(timeout)}"
        raise TargetUnreachable(message) from None
    except Broken:
        raise TargetUnreachable(f"the connection to {name} was lost") from None
    except Failed as error:
        raise TargetUnreachable(f"{name}: {error}") from None
    except Refused as error:
        raise Conflict(str(error)) from None


def _describe_error(answer: dict[str, Any]) -> str:
    """Say why the agent's folder cannot be used."""
    match answer["errno"]:
        case 13 | 30:
            return f"{answer['path']} is not writable: {answer['error']}"
        case 28 | 122:
            return f"the disk is full: {answer['path']}: {answer['error']}"
        case _:
            return f"{answer['path']}: {answer['error']}"


def _parse_greeting(line: bytes) -> dict[str, Any] | None:
    """Return the greeting in a line of output; None if the line is something else."""
    try:
        content: Any = (
            json.loads(line.removeprefix(_GREETING_PREFIX))
            if line.startswith(_GREETING_PREFIX)
            else None
        )
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    greeting = cast("dict[str, Any]", content)
    return (
        greeting
        if "has_runner" in greeting or {"error", "errno", "path"} <= greeting.keys()
        else None
    )


async def _ignore_request(_: dict[str, Any], _attached: bytes) -> None:
    """Ignore the request: agents send none."""


async def _suppress_link_errors(work: Awaitable[Any]) -> None:
    with suppress(Broken, Failed, OSError):
        await work


def _now() -> float:
    return asyncio.get_running_loop().time()


@cache
def _bootstrap_source() -> bytes:
    return Path(bootstrap.__file__).read_bytes()
