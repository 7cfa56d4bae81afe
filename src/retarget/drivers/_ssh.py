"""How a machine with an SSH server is reached: logins, keys, hosts on the way, and what fails."""

import asyncio
import errno
import os
import re
import shlex
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh

from retarget.core.errors import RetargetError, TargetUnreachable
from retarget.drivers._host import find_python

_PLACE = re.compile(
    r"(?:(?P<user>[^@\s]+)@)?(?P<host>\[[^\]]+\]|[^:@\s\[\],/]+)(?::(?P<port>\d{1,5}))?"
)
_CIPHERS = "^aes128-gcm@openssh.com,aes256-gcm@openssh.com"
_ROUTE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL)
_WINDOW = 8 << 20  # bytes that may be under way
asyncssh.set_log_level("WARNING")  # it tells of every step otherwise


@dataclass(frozen=True)
class Place:
    host: str
    user: str | None
    port: int | None

    @property
    def name(self) -> str:
        return self.host if self.port in (None, 22) else f"{self.host}:{self.port}"

    @property
    def known_as(self) -> str:
        """What known_hosts calls it."""
        return self.host if self.port in (None, 22) else f"[{self.host}]:{self.port}"


def parse_place(text: str) -> Place:
    """Read USER@HOST:PORT, or raise ValueError."""
    match = _PLACE.fullmatch(text.strip())
    if match is None or not 0 < int(match["port"] or 22) < 65536:
        raise ValueError(f"{text[:80]!r} is not an address such as ml@10.0.0.7 or ml@lab1:2222")
    port = int(match["port"]) if match["port"] else None
    return Place(match["host"].strip("[]"), match["user"], port)


@dataclass(frozen=True)
class Login:
    """Who logs in, with what, past which hosts, and what is started then."""

    user: str | None
    port: int | None
    key: str | None = field(repr=False)
    passphrase: str | None = field(repr=False)
    password: str | None = field(repr=False)
    jump: str | None
    python: str | None
    timeout: float


class Pipe:
    """The agent's input and output, over a connection that ends with it."""

    def __init__(self, process: Any, close: Callable[[], None]) -> None:
        self.reader = _Reader(process.stdout)
        self.writer = process.stdin
        self.close = close
        self._process = process

    async def said(self) -> str:
        try:
            text = await asyncio.wait_for(self._process.stderr.read(4096), 2.0)
        except (TimeoutError, OSError, asyncssh.Error):
            return ""
        return text.decode("utf-8", "replace")


class _Reader:
    """Says that a connection is lost in the way all do."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def read(self, most: int) -> bytes:
        try:
            return await self._stream.read(most)
        except asyncssh.Error as error:
            raise ConnectionResetError(str(error)) from error

    async def readuntil(self, end: bytes) -> bytes:
        try:
            return await self._stream.readuntil(end)
        except asyncssh.Error as error:
            raise ConnectionResetError(str(error)) from error

    async def readexactly(self, size: int) -> bytes:
        try:
            return await self._stream.readexactly(size)
        except asyncssh.Error as error:
            raise ConnectionResetError(str(error)) from error


class Way:
    """How one host is reached. The key it has when it is first met is the one it must keep.

    So must each host on the way.
    """

    def __init__(self, place: Place, login: Login, pins: Mapping[str, str]) -> None:
        self.pins = dict(pins)  # the keys that hosts must have, by their names
        self.met: dict[str, str] = {}  # the keys that they had
        self._place = place
        self._login = login
        self._at = place  # where it is on its way

    def goes_by(self, pins: Mapping[str, str]) -> bool:
        """Tell whether each key that it takes is one of these."""
        taken = {**self.pins, **self.met}
        if not taken:
            return not pins  # nobody knows yet whom it will meet
        return pins == self.pins or all(pins.get(name) == key for name, key in taken.items())

    def expect(self, pins: Mapping[str, str]) -> None:
        """Have hosts show these keys; those that are expected already are among them."""
        self.pins = {**self.pins, **pins}

    async def enter(self) -> Pipe:
        patience = self._login.timeout
        try:
            return await asyncio.wait_for(self._enter(), patience)
        except TimeoutError:
            raise TargetUnreachable(
                f"{self._name}: no answer within {patience:g} s (timeout): is the address right, "
                "is the machine on, does a firewall stand between?"
            ) from None
        except RetargetError:
            raise
        except (OSError, asyncssh.Error, ValueError) as error:
            raise TargetUnreachable(f"{self._name}: {self._explain(error)}") from error

    @property
    def _name(self) -> str:
        on_the_way = f", at {self._at.name} on the way to it" if self._at != self._place else ""
        return f"{self._place.name}{on_the_way}"

    async def _enter(self) -> Pipe:
        opened: list[asyncssh.SSHClientConnection] = []

        def close() -> None:
            for connection in reversed(opened):
                connection.abort()

        try:
            for place in [*await self._hops(), self._place]:
                self._at = place
                opened.append(await self._connect(place, opened))
            command = find_python(self._login.python)
            process = await opened[-1].create_process(command, encoding=None, window=_WINDOW)
        except BaseException:
            close()
            raise
        return Pipe(process, close)

    async def _hops(self) -> list[Place]:
        """Return the hosts on the way: those given, or those of ~/.ssh/config."""
        jump: Any = self._login.jump
        if jump is None:
            kind: Any = asyncssh.SSHClientConnectionOptions
            options = await kind.construct(config=(), host=self._place.host, tunnel=())
            jump = options.tunnel if isinstance(options.tunnel, str) else None
        return [parse_place(each) for each in jump.split(",")] if jump else []

    async def _connect(
        self, place: Place, past: Sequence[asyncssh.SSHClientConnection]
    ) -> asyncssh.SSHClientConnection:
        pin = self._pin(place)
        options: dict[str, Any] = {
            "tunnel": past[-1] if past else (),
            "known_hosts": ([asyncssh.import_public_key(pin)], [], []) if pin else (),
            "client_factory": lambda: _Client(pinned=pin is not None),
            "encryption_algs": _CIPHERS,
            "keepalive_interval": 5,
            "keepalive_count_max": 4,
            "login_timeout": self._login.timeout,
        }
        options |= self._credentials(place)
        connection = await asyncssh.connect(place.host, **options)
        if (key := connection.get_server_host_key()) is not None:
            name, shown = self._pinned_as(place), _in_short(key)
            if self.pins.get(name, shown) != shown:  # it is expected only since a moment ago
                connection.abort()
                raise asyncssh.HostKeyNotVerifiable("another key is expected")
            self.met[name] = shown
        return connection

    def _pin(self, place: Place) -> str | None:
        name = self._pinned_as(place)
        return self.pins.get(name) or self.met.get(name)

    def _pinned_as(self, place: Place) -> str:
        """Name a host, so that one on the way is not taken for the last at another port of it."""
        usual = (None, 22)
        if self._is_hop(place) and self._login.port not in usual and place.port in usual:
            return f"{place.host}:22"
        return place.name

    def _is_hop(self, place: Place) -> bool:
        return place is not self._place

    def _credentials(self, place: Place) -> dict[str, Any]:
        login = self._login
        last = not self._is_hop(place)
        found: dict[str, Any] = {
            "username": place.user or (login.user if last else None),
            "port": place.port or (login.port if last else None),
            "password": login.password if last else None,  # hosts on the way would see it
            "passphrase": login.passphrase,
        }
        if login.key is not None:
            found["client_keys"] = [asyncssh.import_private_key(login.key, login.passphrase)]
        return {name: value for name, value in found.items() if value is not None}

    def _explain(self, error: Exception) -> str:
        """Say what stands in the way, and what to do about it."""
        own = None if self._is_hop(self._at) else self._login.port
        where = f"{self._at.host} port {self._at.port or own or 22}"
        match error:
            case asyncssh.Error() | ValueError():
                return self._explain_login(error, where)
            case ConnectionRefusedError():
                return f"connection refused: no SSH server listens at {where}"
            case socket.gaierror():
                return f"the name {self._at.host!r} cannot be resolved: {error.strerror}"
            case OSError() if error.errno in _ROUTE:
                return f"there is no route to {where}"
            case OSError() if error.errno:
                return f"{where} cannot be reached: {os.strerror(error.errno)}"
            case _:
                return f"{where} cannot be reached: {error}"

    def _explain_login(self, error: Exception, where: str) -> str:
        match error:
            case asyncssh.HostKeyNotVerifiable() if self._pin(self._at) is None:
                return (
                    "its host key is not the one in ~/.ssh/known_hosts: another machine may have "
                    f"its address. If you know why: ssh-keygen -R {shlex.quote(self._at.known_as)}"
                )
            case asyncssh.HostKeyNotVerifiable():
                return (
                    "its host key has changed: another machine may have its address. If you know "
                    "why, take the new one: retarget target update NAME --unset pin"
                )
            case asyncssh.PermissionDenied():
                return f"the login was refused: {self._tried()}; check the user name, too"
            case asyncssh.KeyEncryptionError():
                return f"the key is encrypted, and the passphrase is wrong ({error})"
            case asyncssh.KeyImportError() if "assphrase" in str(error):
                return "the key is encrypted: give its passphrase with --passphrase-stdin"
            case asyncssh.KeyImportError():
                return f"the key cannot be read: {error}"
            case _:
                return f"logging in at {where} failed: {error}"

    def _tried(self) -> str:
        if self._login.password is not None and not self._is_hop(self._at):
            return "the password is wrong, or no password is taken"
        if self._login.key is not None:
            return "the key is not accepted"
        return "no key of the agent or in ~/.ssh is accepted"


class _Client(asyncssh.SSHClient):
    """Takes the key of a host that nobody knows yet. One that is known must have its own."""

    def __init__(self, *, pinned: bool) -> None:
        self._pinned = pinned

    def validate_host_public_key(
        self,
        host: str,
        addr: str,
        port: int,
        key: asyncssh.SSHKey,
    ) -> bool:
        return not self._pinned and not _is_known(host, addr, port)


def _is_known(host: str, addr: str, port: int) -> bool:
    """Tell whether OpenSSH would know a key of this host."""
    path = Path("~/.ssh/known_hosts").expanduser()
    try:
        return bool(asyncssh.match_known_hosts(str(path), host, addr, port)[0])
    except (OSError, ValueError):
        return False


def public_key(text: str) -> str:
    """Return a host's key in one form, without a comment; ValueError if it is not a public one."""
    if "PRIVATE" in text:
        raise ValueError("that is a private key")
    return _in_short(asyncssh.import_public_key(text))


def fingerprint(key: str) -> str:
    """Return a host's key as people compare it."""
    return asyncssh.import_public_key(key).get_fingerprint()


def _in_short(key: asyncssh.SSHKey) -> str:
    return " ".join(key.export_public_key().decode().split()[:2])
