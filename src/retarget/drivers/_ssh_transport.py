"""The SSH transport: addresses, logins, host keys, jump hosts and error messages."""

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
from retarget.drivers._agent import bootstrap_command
from retarget.runner.durations import show_duration

_ADDRESS = re.compile(
    r"(?:(?P<user>[^@\s]+)@)?(?P<host>\[[^\]]+\]|[^:@\s\[\],/]+)(?::(?P<port>\d{1,5}))?"
)
_CIPHERS = "^aes128-gcm@openssh.com,aes256-gcm@openssh.com"
_PASSWORD_METHODS = ("keyboard-interactive", "password")
_NO_ROUTE_ERRNOS = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL)
_WINDOW_BYTES = 8 << 20  # that may be in flight
asyncssh.set_log_level("WARNING")  # by default it logs every step


@dataclass(frozen=True)
class HostAddress:
    host: str
    user: str | None
    port: int | None

    @property
    def name(self) -> str:
        return self.host if self.port in (None, 22) else f"{self.host}:{self.port}"

    @property
    def known_hosts_name(self) -> str:
        """The name of this host in known_hosts."""
        return self.host if self.port in (None, 22) else f"[{self.host}]:{self.port}"


def parse_address(text: str) -> HostAddress:
    """Parse USER@HOST:PORT, or raise ValueError."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or not 0 < int(match["port"] or 22) < 65536:
        raise ValueError(f"{text[:80]!r} is not an address such as ml@10.0.0.7 or ml@lab1:2222")
    port = int(match["port"]) if match["port"] else None
    return HostAddress(match["host"].strip("[]"), match["user"], port)


@dataclass(frozen=True)
class Login:
    """How to log in: the user, the credentials, the jump hosts, and the Python to start."""

    user: str | None
    port: int | None
    key: str | None = field(repr=False)
    passphrase: str | None = field(repr=False)
    password: str | None = field(repr=False)
    jump: str | None
    python: str | None
    timeout: float


class SshPipe:
    """The agent's input and output, over a connection that ends with it."""

    def __init__(self, process: Any, close: Callable[[], None]) -> None:
        self.reader = _Reader(process.stdout)
        self.writer = process.stdin
        self.close = close
        self._process = process

    async def read_stderr(self) -> str:
        try:
            text = await asyncio.wait_for(self._process.stderr.read(4096), 2.0)
        except (TimeoutError, OSError, asyncssh.Error):
            return ""
        return text.decode("utf-8", "replace")


class _Reader:
    """Raises ConnectionResetError for a lost connection, as other streams do."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def read(self, max_bytes: int) -> bytes:
        try:
            return await self._stream.read(max_bytes)
        except asyncssh.Error as error:
            raise ConnectionResetError(str(error)) from error

    async def readuntil(self, separator: bytes) -> bytes:
        try:
            return await self._stream.readuntil(separator)
        except asyncssh.Error as error:
            raise ConnectionResetError(str(error)) from error

    async def readexactly(self, size: int) -> bytes:
        try:
            return await self._stream.readexactly(size)
        except asyncssh.Error as error:
            raise ConnectionResetError(str(error)) from error


class SshTransport:
    """Reaches one host over SSH. A host must keep the key that it had at the first connection.

    So must every jump host.
    """

    def __init__(self, address: HostAddress, login: Login, host_keys: Mapping[str, str]) -> None:
        self.host_keys = dict(host_keys)  # the keys that hosts must have, by host name
        self.seen_host_keys: dict[str, str] = {}  # the keys that hosts have shown
        self._address = address
        self._login = login
        self._current_host = address  # the host that is being connected to

    def accepts(self, host_keys: Mapping[str, str]) -> bool:
        """Return whether every key that this transport accepts is one of these."""
        accepted = {**self.host_keys, **self.seen_host_keys}
        if not accepted:
            return not host_keys  # it may still accept any key
        return host_keys == self.host_keys or all(
            host_keys.get(name) == key for name, key in accepted.items()
        )

    def require(self, host_keys: Mapping[str, str]) -> None:
        """Require hosts to have these keys too."""
        self.host_keys = {**self.host_keys, **host_keys}

    async def open(self) -> SshPipe:
        timeout = self._login.timeout
        try:
            return await asyncio.wait_for(self._open(), timeout)
        except TimeoutError:
            raise TargetUnreachable(
                f"{self._name}: no answer within {show_duration(timeout)} (timeout); check the "
                "address, that the machine is on, and that no firewall blocks it"
            ) from None
        except RetargetError:
            raise
        except (OSError, asyncssh.Error, ValueError) as error:
            raise TargetUnreachable(f"{self._name}: {self._explain(error)}") from error

    @property
    def _name(self) -> str:
        if self._current_host == self._address:
            return self._address.name
        return f"{self._address.name}, at jump host {self._current_host.name}"

    async def _open(self) -> SshPipe:
        connections: list[asyncssh.SSHClientConnection] = []

        def close() -> None:
            for connection in reversed(connections):
                connection.abort()

        try:
            for address in [*await self._jump_hosts(), self._address]:
                self._current_host = address
                connections.append(await self._connect(address, connections))
            command = bootstrap_command(self._login.python)
            process = await connections[-1].create_process(
                command, encoding=None, window=_WINDOW_BYTES
            )
        except BaseException:
            close()
            raise
        return SshPipe(process, close)

    async def _jump_hosts(self) -> list[HostAddress]:
        """Return the jump hosts: the configured ones, or those of ~/.ssh/config."""
        jump: Any = self._login.jump
        if jump is None:
            kind: Any = asyncssh.SSHClientConnectionOptions
            options = await kind.construct(config=(), host=self._address.host, tunnel=())
            jump = options.tunnel if isinstance(options.tunnel, str) else None
        return [parse_address(host) for host in jump.split(",")] if jump else []

    async def _connect(
        self, address: HostAddress, connections: Sequence[asyncssh.SSHClientConnection]
    ) -> asyncssh.SSHClientConnection:
        host_key = self._expected_key(address)
        options: dict[str, Any] = {
            "tunnel": connections[-1] if connections else (),
            "known_hosts": ([asyncssh.import_public_key(host_key)], [], []) if host_key else (),
            "client_factory": lambda: _Client(has_host_key=host_key is not None),
            "encryption_algs": _CIPHERS,
            "keepalive_interval": 5,
            "keepalive_count_max": 4,
            "login_timeout": self._login.timeout,
        }
        options |= self._credentials(address)
        connection = await asyncssh.connect(address.host, **options)
        if (key := connection.get_server_host_key()) is not None:
            name, actual = self._key_name(address), _without_comment(key)
            if self.host_keys.get(name, actual) != actual:  # required since a moment ago
                connection.abort()
                raise asyncssh.HostKeyNotVerifiable("a different host key is required")
            self.seen_host_keys[name] = actual
        return connection

    def _expected_key(self, address: HostAddress) -> str | None:
        name = self._key_name(address)
        return self.host_keys.get(name) or self.seen_host_keys.get(name)

    def _key_name(self, address: HostAddress) -> str:
        """Name a host so that a jump host differs from a destination on another port of it."""
        default_ports = (None, 22)
        if (
            self._is_jump_host(address)
            and self._login.port not in default_ports
            and address.port in default_ports
        ):
            return f"{address.host}:22"
        return address.name

    def _is_jump_host(self, address: HostAddress) -> bool:
        return address is not self._address

    def _credentials(self, address: HostAddress) -> dict[str, Any]:
        login = self._login
        is_destination = not self._is_jump_host(address)
        options: dict[str, Any] = {
            "username": address.user or (login.user if is_destination else None),
            "port": address.port or (login.port if is_destination else None),
            "password": login.password if is_destination else None,  # jump hosts would see it
            "passphrase": login.passphrase,
        }
        if login.key is None and options["password"] is not None:
            options["preferred_auth"] = _PASSWORD_METHODS  # a key must not hide a wrong password
        if login.key is not None:
            options["client_keys"] = [asyncssh.import_private_key(login.key, login.passphrase)]
        return {name: value for name, value in options.items() if value is not None}

    def _explain(self, error: Exception) -> str:
        """Say what went wrong, and what to do about it."""
        login_port = None if self._is_jump_host(self._current_host) else self._login.port
        endpoint = f"{self._current_host.host} port {self._current_host.port or login_port or 22}"
        match error:
            case asyncssh.Error() | ValueError():
                return self._explain_login(error, endpoint)
            case ConnectionRefusedError():
                return f"connection refused: no SSH server listens at {endpoint}"
            case socket.gaierror():
                return f"the name {self._current_host.host!r} cannot be resolved: {error.strerror}"
            case OSError() if error.errno in _NO_ROUTE_ERRNOS:
                return f"no route to {endpoint}"
            case OSError() if error.errno:
                return f"{endpoint} is unreachable: {os.strerror(error.errno)}"
            case _:
                return f"{endpoint} is unreachable: {error}"

    def _explain_login(self, error: Exception, endpoint: str) -> str:
        match error:
            case asyncssh.HostKeyNotVerifiable() if self._expected_key(self._current_host) is None:
                name = shlex.quote(self._current_host.known_hosts_name)
                return (
                    "its host key is not the one in ~/.ssh/known_hosts; another machine may use "
                    f"its address. If you trust the new key: ssh-keygen -R {name}"
                )
            case asyncssh.HostKeyNotVerifiable():
                return (
                    "its host key has changed; another machine may use its address. If you trust "
                    "the new key, accept it: retarget target update NAME --unset host-key"
                )
            case asyncssh.PermissionDenied():
                reason = self._refused_credentials()
                return f"the login was refused: {reason}; also check the user name"
            case asyncssh.KeyEncryptionError():
                return f"the key is encrypted and the passphrase is wrong ({error})"
            case asyncssh.KeyImportError() if "assphrase" in str(error):
                return "the key is encrypted; pass its passphrase with --passphrase-stdin"
            case asyncssh.KeyImportError():
                return f"the key cannot be read: {error}"
            case _:
                return f"login to {endpoint} failed: {error}"

    def _refused_credentials(self) -> str:
        if self._login.password is not None and not self._is_jump_host(self._current_host):
            return "the password is wrong, or the host accepts no passwords"
        if self._login.key is not None:
            return "the key is not accepted"
        return "no key of ssh-agent or in ~/.ssh is accepted; name another with --key FILE"


class _Client(asyncssh.SSHClient):
    """Accepts the key of a host that is not known yet. A known host must show its own key."""

    def __init__(self, *, has_host_key: bool) -> None:
        self._has_host_key = has_host_key

    def validate_host_public_key(
        self,
        host: str,
        addr: str,
        port: int,
        key: asyncssh.SSHKey,
    ) -> bool:
        return not self._has_host_key and not _is_known(host, addr, port)


def _is_known(host: str, addr: str, port: int) -> bool:
    """Return whether OpenSSH knows a key of this host."""
    path = Path("~/.ssh/known_hosts").expanduser()
    try:
        return bool(asyncssh.match_known_hosts(str(path), host, addr, port)[0])
    except (OSError, ValueError):
        return False


def public_key(text: str) -> str:
    """Return a host key without its comment. Raise ValueError if it is not a public key."""
    if "PRIVATE" in text:
        raise ValueError("this is a private key")
    return _without_comment(asyncssh.import_public_key(text))


def fingerprint(key: str) -> str:
    """Return the fingerprint of a host key, for people to compare."""
    return asyncssh.import_public_key(key).get_fingerprint()


def _without_comment(key: asyncssh.SSHKey) -> str:
    return " ".join(key.export_public_key().decode().split()[:2])
