"""One machine that is not this one, through an agent on it: asked, kept, and lost and found again.

Whatever opens a pipe to an agent can be a host's way: SSH, or an engine that runs containers. All
of them live in one thread with one event loop; drivers ask from any other.
"""

import asyncio
import json
import logging
import os
import re
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

from retarget.core.errors import TargetUnreachable
from retarget.runner import loader
from retarget.runner.link import Broken, Channel, Failed, Link

_log = logging.getLogger(__name__)
PYTHON = re.compile(r"/[A-Za-z0-9_./+-]+")
_NAMES = "python3 " + " ".join(f"python3.{minor}" for minor in range(20, 7, -1))
_ELSEWHERE = (
    "/usr/bin/python3 /usr/local/bin/python3 /opt/conda/bin/python3 /usr/libexec/platform-python"
)
_IS_NEW_ENOUGH = "import sys; sys.exit(sys.version_info < (3, 8))"
_EATEN = (
    "something of the login, such as ~/.bashrc, reads the input that is for the agent: "
    "let it do so only in a terminal"
)
# Reads so many bytes and runs them: nothing may be read beyond them, that is for what comes then.
_LOAD = (
    'import os, sys; f = os.fdopen(os.dup(0), \\"rb\\", 0); n = f.read(8); s = b\\"\\"; '
    f'n.isdigit() or sys.exit(\\"{_EATEN}\\"); n = int(n); '
    'exec(\\"while len(s) < n: s += f.read(n - len(s))\\"); exec(s)'
)
_NO_PYTHON = 97
_MARK = b"RETARGET "  # at the beginning of a line
_NOISE = 1 << 20  # bytes that a login may say before the agent does
_TURN = 1 << 12  # bytes of them after which others have their turn
_PING = 5.0  # seconds between two signs of life
_SILENCE = 20.0  # seconds without one after which the link is given up
_PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0)  # seconds before trying again


class Pipe(Protocol):
    """A way to a program on the machine: its input and output, and the end of it."""

    reader: Any
    writer: Any

    def close(self) -> None: ...

    async def said(self) -> str:
        """Return what the program has said apart from its output, when it has ended."""
        ...


@dataclass(frozen=True)
class Bringing:
    """What the agent is made of."""

    root: str  # the folder on the machine, perhaps below ~
    zipapp: Callable[[], Path]  # made again when it is gone


@dataclass
class Doors:
    """Ports on a machine that lead to the server: the same for all links to one folder of it."""

    names: set[str] = field(default_factory=set[str])
    server: tuple[str, int, bool] | None = None


def find_python(given: str | None) -> str:
    """Return a command for any shell that finds a Python and has it run what it is sent."""
    names = given or f"{_NAMES} {_ELSEWHERE}"
    where = f"is at {given}" if given else "was found"
    script = (
        f'for p in {names}; do if "$p" -c "{_IS_NEW_ENOUGH}" 2>/dev/null; '
        f'then exec "$p" -I -S -c "{_LOAD}"; fi; done; '
        f"echo no Python 3.8 or newer {where} >&2; exit {_NO_PYTHON}"
    )
    return f"exec /bin/sh -c '{script}'"


class Host:
    """Keeps a link to one machine, from when it is first asked until it is released."""

    def __init__(
        self,
        name: str,
        enter: Callable[[], Awaitable[Pipe]],
        brings: Bringing | None,
        doors: Doors | None = None,
    ) -> None:
        self.name = name
        self.facts: dict[str, Any] | None = None  # what it said of itself when it was last asked
        self.patience = 30.0  # seconds until there must be an agent, from the first step on
        self.bringing = threading.Lock()  # held by whoever brings a program to it
        self._enter = enter
        self._brings = brings
        self._doors = doors or Doors()
        self._link: Link | None = None
        self._reason = "it was never asked"
        self._keeper: asyncio.Task[None] | None = None
        self._tried: asyncio.Future[None] | None = None  # done when the present try has ended
        self._hurry = asyncio.Event()
        self._asked = 0  # what is under way
        self._is_released = False

    def ask(self, do: str, *, patience: float = 30.0, **what: Any) -> Any:
        """Have the agent do something. TargetUnreachable, with the reason, when it cannot be."""
        return together([self.asking(do, patience=patience, **what)])[0]

    def lead_to(self, url: str, door: str) -> None:
        """Have a door on the machine that leads to a server, now and whenever there is a link."""
        self._doors.names.add(door)
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        self._doors.server = (parts.hostname or "", port, secure)

    def release(self) -> None:
        """Let the link go, as soon as nothing is under way that somebody has asked."""
        _loop().call_soon_threadsafe(self._leave)

    async def asking(
        self, do: str, *, patience: float = 30.0, attached: bytes = b"", **what: Any
    ) -> Any:
        """Ask, in the loop's own thread."""
        self._asked += 1
        try:
            return await self._ask(do, patience, attached, what)
        finally:
            self._asked -= 1
            if self._is_released:
                self._leave()

    async def _ask(self, do: str, patience: float, attached: bytes, what: dict[str, Any]) -> Any:
        link = await self._linked(patience, hurry=do == "facts")
        try:
            answer = await asyncio.wait_for(link.ask({"do": do, **what}, attached), patience)
            if do == "facts":
                self.facts = answer
            return answer
        except TimeoutError:
            message = f"{self.name} does not answer: nothing came back for {patience:g} s"
            raise TargetUnreachable(message) from None
        except Broken:
            raise TargetUnreachable(f"the connection to {self.name} was lost") from None
        except Failed as error:
            raise TargetUnreachable(f"{self.name}: {error}") from None

    async def _linked(self, patience: float, *, hurry: bool) -> Link:
        if self._link is not None:
            return self._link
        if self._keeper is None:
            self._tried = asyncio.get_running_loop().create_future()
            self._keeper = asyncio.get_running_loop().create_task(self._keep())
        elif hurry and self._tried is None:
            self._tried = asyncio.get_running_loop().create_future()
            self._hurry.set()
        if self._tried is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._tried), patience)
        if self._link is None:
            raise TargetUnreachable(self._reason)
        return self._link

    async def _keep(self) -> None:
        """Be connected, and connect again whenever it is not so any more."""
        failures = 0
        while True:
            if self._tried is None:
                self._tried = asyncio.get_running_loop().create_future()
            try:
                pipe = await self._connect()
                failures = 0
                await self._live(pipe)
                self._reason = f"the connection to {self.name} was lost"
            except TargetUnreachable as error:
                self._reason = str(error)
            except Exception as error:  # noqa: BLE001 - the edge of the task: it must go on
                _log.exception("the way to %s", self.name)
                self._reason = f"{self.name}: {error}"
            self._settle()
            self._hurry.clear()
            pause = _PAUSES[min(failures, len(_PAUSES) - 1)]
            failures += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), pause)

    def _settle(self) -> None:
        """Tell those who wait that this try has ended."""
        if self._tried is not None and not self._tried.done():
            self._tried.set_result(None)
        self._tried = None

    async def _live(self, pipe: Pipe) -> None:
        link = Link(pipe.reader, pipe.writer, _nothing, self._opened)
        self._link, self._reason = link, ""
        self._settle()
        work = asyncio.ensure_future(link.run())
        doors = [{"do": "door", "name": door} for door in list(self._doors.names)]
        opening = asyncio.gather(*map(link.ask, doors), return_exceptions=True)
        try:
            while not work.done() and _now() - link.heard < _SILENCE:
                ping = asyncio.ensure_future(_quietly(link.ask({"do": "ping"})))
                await asyncio.wait([work], timeout=_PING)
                ping.cancel()
        finally:
            self._link = None
            opening.cancel()
            pipe.close()
            work.cancel()

    async def _connect(self) -> Pipe:
        """Open the way, and have an agent at its end."""
        deadline = _now() + self.patience
        pipe = await self._enter()
        if self._brings is None:
            return pipe  # what it leads to is an agent already
        try:
            async with asyncio.timeout_at(deadline):
                await self._load(pipe, self._brings)
        except TimeoutError:
            pipe.close()
            raise TargetUnreachable(
                f"{self.name}: logged in, and no agent has spoken within {self.patience:g} s "
                "(timeout): does ~/.bashrc wait for something?"
            ) from None
        except (asyncio.IncompleteReadError, OSError) as error:
            pipe.close()
            said = (await pipe.said()).strip()[-500:]
            what = said or f"it ended before it began ({error})"
            if not what.startswith("no Python"):
                what = f"logged in, and what runs jobs could not be started: {what}"
            raise TargetUnreachable(f"{self.name}: {what}") from None
        except BaseException:
            pipe.close()
            raise
        return pipe

    async def _load(self, pipe: Pipe, brings: Bringing) -> None:
        source, zipapp = _source(), await asyncio.to_thread(brings.zipapp)
        size = zipapp.stat().st_size
        told = {"root": brings.root, "runner": zipapp.name, "size": size}
        text = json.dumps(told).encode()
        pipe.writer.write(b"%08d%b%08d%b" % (len(source), source, len(text), text))
        answer = await self._hear(pipe.reader)
        if "error" in answer:
            raise TargetUnreachable(f"{self.name}: {_trouble(answer)}")
        if not answer["have"]:
            pipe.writer.write(await asyncio.to_thread(zipapp.read_bytes))
            await pipe.writer.drain()

    async def _hear(self, reader: Any) -> dict[str, Any]:
        """Return the loader's first words. A login may say anything before, but not endlessly."""
        noise = 0
        while noise <= _NOISE:
            try:
                line = await reader.readuntil(b"\n")  # nothing of what comes then may be taken
            except asyncio.IncompleteReadError as error:
                if noise + len(error.partial) <= _NOISE:
                    raise
                break
            if (words := _read_words(line)) is not None:
                return words
            if noise % _TURN + len(line) >= _TURN:
                await asyncio.sleep(0)  # reading what is there already is no pause
            noise += len(line)
        raise TargetUnreachable(
            f"{self.name}: the login prints too much before the agent can speak: does ~/.bashrc "
            "print without end?"
        )

    async def _opened(self, channel: Channel) -> None:
        """Carry a connection at a door of the machine to the server."""
        if self._doors.server is None:
            await channel.end()
            return
        host, port, secure = self._doors.server
        try:
            reader, writer = await asyncio.open_connection(host, port, ssl=secure or None)
        except OSError:
            await channel.end()
            return
        await channel.join(reader, writer)

    def _leave(self) -> None:
        self._is_released = True
        if self._asked == 0:
            self._stop()

    def _stop(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
        self._keeper, self._link, self._reason = None, None, f"{self.name} is no longer used"
        self._settle()


def together(asked: Sequence[Coroutine[Any, Any, Any]], *, all_: bool = True) -> list[Any]:
    """Run these in the loop's thread at once. The first trouble is raised, or each is returned."""

    async def gather() -> list[Any]:
        return await asyncio.gather(*asked, return_exceptions=True)

    answers = asyncio.run_coroutine_threadsafe(gather(), _loop()).result()
    for answer in answers:
        if isinstance(answer, BaseException) and (
            all_ or not isinstance(answer, TargetUnreachable)
        ):
            raise answer
    return answers


def _trouble(answer: dict[str, Any]) -> str:
    """Say why the agent's folder cannot be used."""
    match answer["errno"]:
        case 13 | 30:
            return f"{answer['path']} is not writable: {answer['error']}"
        case 28 | 122:
            return f"the disk is full: {answer['path']}: {answer['error']}"
        case _:
            return f"{answer['path']}: {answer['error']}"


def _read_words(line: bytes) -> dict[str, Any] | None:
    """Return what the loader says with a line; None when it is not the loader's."""
    try:
        told: Any = json.loads(line.removeprefix(_MARK)) if line.startswith(_MARK) else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(told, dict):
        return None
    words = cast("dict[str, Any]", told)
    return words if "have" in words or {"error", "errno", "path"} <= words.keys() else None


async def _nothing(_: dict[str, Any], _attached: bytes) -> None:
    """Agents ask for nothing."""


async def _quietly(work: Awaitable[Any]) -> None:
    with suppress(Broken, Failed, OSError):
        await work


def _now() -> float:
    return asyncio.get_running_loop().time()


@cache
def _source() -> bytes:
    return Path(loader.__file__).read_bytes()


_starting = threading.Lock()
_running: dict[int, asyncio.AbstractEventLoop] = {}  # by process: a fork has none


def _loop() -> asyncio.AbstractEventLoop:
    """Return the loop that all hosts live in; it is started by the first."""
    with _starting:
        loop = _running.get(os.getpid())
        if loop is None:
            loop = _running[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="hosts", daemon=True).start()
        return loop
