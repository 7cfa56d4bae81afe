"""Exchanges JSON and bytes with a server over kept-alive connections, one per thread."""

import http.client
import json
import select
import socket
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar
from urllib.parse import urlencode

from retarget import __version__
from retarget.core.addresses import parse_address
from retarget.core.errors import Invalid, RetargetError, ServerUnreachable, error_named
from retarget.runner.durations import show_duration

Query = Mapping[str, Any]
_SWITCHING_PROTOCOLS = 101
_MAX_TRIES = 3  # the kept connection may be closed, then the server may have to be restarted
_CHUNK_BYTES = 1 << 18
_CONNECT_SECONDS = 10
_HEALTH_SECONDS = 10.0  # how long a server may take to identify itself
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Address:
    """The URL of a server and the token that it accepts."""

    url: str
    token: str = ""

    def __post_init__(self) -> None:
        if not (self.token.isascii() and self.token.isprintable()):
            raise Invalid("the token contains invalid characters; check RETARGET_TOKEN")


class Server(Protocol):
    """Finds a server, and restarts it if it can."""

    @property
    def label(self) -> str:
        """Where the server is, for a person; computed without any request."""
        ...

    def find(self) -> Address:
        """Return the address; raise ServerUnreachable, with what to do, if there is none."""
        ...

    def revive(self) -> Address | None:
        """Restart a server that stopped answering; return None if someone else must do that."""
        ...


@dataclass(frozen=True, slots=True)
class RemoteServer:
    """A server that someone else runs, and the other servers of its database."""

    address: Address
    others: tuple[Address, ...] = ()

    @property
    def label(self) -> str:
        return self.address.url

    def find(self) -> Address:
        return self.address

    def revive(self) -> Address | None:
        """Return the first address that answers, if there are several."""
        for address in (self.address, *self.others) if self.others else ():
            try:
                _connected(address).connection.close()
            except ServerUnreachable:
                continue
            return address
        return None


def remote_server(urls: str, token: str) -> RemoteServer:
    """Return the server at `urls`: one address, or several with commas between them."""
    addresses = [url.strip().rstrip("/") for url in urls.split(",")]
    first, *others = [Address(url, token) for url in addresses if url] or [Address("", token)]
    return RemoteServer(first, tuple(others))


class Body(Protocol):
    """A request body that is read piece by piece."""

    def __enter__(self) -> "Body": ...
    def __exit__(self, *raised: object) -> None: ...
    def read(self, size: int = -1, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Content:
    """A request body that can be sent again: `open` starts over."""

    open: Callable[[], Body]
    length: int


class Response:
    """The body of a response, read as it arrives."""

    def __init__(self, response: http.client.HTTPResponse, url: str, *, may_pause: bool) -> None:
        self._response = response
        self._url = url
        self._may_pause = may_pause

    def header(self, name: str) -> str | None:
        return self._response.getheader(name)

    def __iter__(self) -> Iterator[bytes]:
        """Yield pieces; raise ServerUnreachable if the connection breaks before the end.

        Raise TimeoutError if a response that may pause did so for longer than it is allowed.
        """
        while piece := self._read():
            yield piece

    def _read(self) -> bytes:
        try:
            return self._response.read1(_CHUNK_BYTES)
        except TimeoutError as error:
            raise error if self._may_pause else _dropped(self._url) from error
        except (OSError, http.client.HTTPException) as error:
            raise _dropped(self._url) from error


class Connection:
    """A connection to one server, for any number of threads. All errors are from core.errors.

    With `verify`, the first request to an address checks that a Retarget server answers there.
    """

    def __init__(self, server: Server, *, timeout: float = 60.0, verify: bool = False) -> None:
        self._server = server
        self._timeout = timeout
        self._verify = verify
        self._verified = ""  # the URL of the server that was verified last
        self._address: Address | None = None
        self._local = threading.local()

    @property
    def label(self) -> str:
        """Where the server is, for a person; computed without any request."""
        return self._server.label

    @property
    def address(self) -> Address:
        if self._address is None:
            self._address = self._server.find()
        return self._address

    def revive(self) -> bool:
        """Restart a server that was lost; return False if someone else must do that."""
        address = self._server.revive()
        if address is not None:
            self._address = address
        return address is not None

    def get(self, path: str, query: Query | None = None) -> Any:
        return self._json("GET", path, query=query, repeatable=True)

    def post(
        self, path: str, body: Any = None, *, query: Query | None = None, repeatable: bool = False
    ) -> Any:
        """Post JSON. Only a `repeatable` request is sent again if the connection breaks."""
        return self._json("POST", path, body, query=query, repeatable=repeatable)

    def put(self, path: str, body: Any) -> Any:
        return self._json("PUT", path, body, repeatable=True)

    def patch(self, path: str, body: Any) -> Any:
        return self._json("PATCH", path, body, repeatable=True)

    def delete(self, path: str, query: Query | None = None) -> Any:
        return self._json("DELETE", path, query=query)

    def send(self, method: str, path: str, content: bytes | Content) -> Any:
        """Send bytes that the server stores by their digest: they can safely be sent again."""
        body = content if isinstance(content, bytes) else content.open
        length = len(content) if isinstance(content, bytes) else content.length
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(length)}
        return self._exchange(_Request(method, path, body, headers, repeatable=True), _decoded)

    @contextmanager
    def stream(
        self, path: str, query: Query | None = None, *, max_silence: float | None = None
    ) -> Generator[Response]:
        """Get bytes as they arrive; `max_silence` is how many seconds may pass without any."""
        request = _Request("GET", _target(path, query), repeatable=True)
        response = self._exchange(request, lambda response: response, timeout=max_silence)
        # the response keeps this connection until its end: other requests open another one
        channel: _Channel = self._local.channel
        self._local.channel = None
        try:
            yield Response(response, channel.address.url, may_pause=max_silence is not None)
        finally:
            # another thread may read the end of it
            if response.isclosed() and getattr(self._local, "channel", None) is None:
                self._local.channel = channel
            else:  # not read to its end: the rest must not be taken for another response
                response.close()
                channel.connection.close()

    def upgrade(
        self, path: str, query: Query | None, headers: Mapping[str, str]
    ) -> tuple[socket.socket, Callable[[str], str | None], str]:
        """Turn a new connection into one of another protocol.

        Return its socket, what reads the headers of the answer, and the URL of the server.
        """
        channel = _connected(self.address)
        url = channel.address.url
        channel.connection.sock.settimeout(self._timeout)
        request = _Request(
            "GET", _target(path, query), headers={"Connection": "Upgrade", **headers}
        )
        try:
            response = channel.exchange(request)
            if response.status != _SWITCHING_PROTOCOLS:
                raise _problem(response) or ServerUnreachable(f"{url} did not upgrade a connection")
        except (OSError, http.client.HTTPException) as error:
            raise _dropped(url) from error
        return channel.take_socket(), response.getheader, url

    def close(self) -> None:
        """Close the connection of this thread; the next request opens another one."""
        channel: _Channel | None = getattr(self._local, "channel", None)
        self._local.channel = None
        if channel is not None:
            channel.connection.close()

    def _json(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Query | None = None,
        repeatable: bool = False,
    ) -> Any:
        content = None if body is None else _encoded(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        request = _Request(method, _target(path, query), content, headers, repeatable)
        return self._exchange(request, _decoded)

    def _exchange(
        self,
        request: "_Request",
        read: Callable[[http.client.HTTPResponse], _Result],
        *,
        timeout: float | None = None,
    ) -> _Result:
        for tries_left in reversed(range(_MAX_TRIES)):
            try:
                return self._once(request, read, timeout or self._timeout)
            except _Refused:  # the request was never sent: any request may be tried again
                if not tries_left or not self.revive():
                    raise
            except _Dropped:
                if not tries_left or not request.repeatable:
                    raise
        raise AssertionError("the last try returns or raises")

    def _once(
        self,
        request: "_Request",
        read: Callable[[http.client.HTTPResponse], _Result],
        timeout: float,
    ) -> _Result:
        channel = self._channel(timeout)
        try:
            response = channel.exchange(request)
            problem = _problem(response)
            if problem is None:
                return read(response)
        except TimeoutError as error:
            self.close()
            raise ServerUnreachable(
                f"the server at {channel.address.url} did not answer for {show_duration(timeout)}"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise _dropped(channel.address.url) from error
        except BaseException:
            self.close()  # interrupted: the rest of the response must not reach another request
            raise
        try:
            raise problem
        finally:
            del problem  # otherwise the error and this frame keep each other, and the socket, alive

    def _channel(self, timeout: float) -> "_Channel":
        channel: _Channel | None = getattr(self._local, "channel", None)
        if channel is None or channel.address != self.address or channel.is_closed():
            self.close()
            channel = _connected(self.address)
            if self._verify and self._verified != self.address.url:
                _verify(channel)
                self._verified = self.address.url
            self._local.channel = channel
        channel.connection.sock.settimeout(timeout)
        return channel


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    target: str
    body: bytes | Callable[[], Body] | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    repeatable: bool = False

    def opened(self) -> AbstractContextManager[bytes | Body | None]:
        return self.body() if callable(self.body) else nullcontext(self.body)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class _Channel:
    connection: http.client.HTTPConnection
    address: Address
    prefix: str

    def is_closed(self) -> bool:
        """Whether the server closed it: between requests nothing else makes it readable."""
        if self.connection.sock is None:
            return True
        poll = select.poll()
        poll.register(self.connection.sock, select.POLLIN)
        return bool(poll.poll(0))

    def take_socket(self) -> socket.socket:
        """Return the socket: it is the caller's to close from now on."""
        sock, self.connection.sock = self.connection.sock, None
        return sock

    def exchange(self, request: _Request) -> http.client.HTTPResponse:
        headers = {"Authorization": f"Bearer {self.address.token}", **request.headers}
        with request.opened() as body:
            # the server may answer early, for example that its disk is full: read that answer
            with suppress(BrokenPipeError, ConnectionResetError):
                self.connection.request(request.method, self.prefix + request.target, body, headers)
            return self.connection.getresponse()


class _Refused(ServerUnreachable):
    """No connection could be opened."""


class _Dropped(ServerUnreachable):
    """The connection broke before the response was complete."""


def _dropped(url: str) -> _Dropped:
    return _Dropped(f"the server at {url} closed the connection before it answered")


def _connected(address: Address) -> _Channel:
    url = parse_address(address.url)
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = kind(
        url.hostname or "", url.port, timeout=_CONNECT_SECONDS, blocksize=_CHUNK_BYTES
    )
    try:
        connection.connect()
    except (socket.gaierror, UnicodeError) as error:
        raise _Refused(
            f"{address.url}: the host {url.hostname!r} was not found; check the address"
        ) from error
    except OSError as error:
        why = error.strerror or str(error) or type(error).__name__
        raise _Refused(
            f"no server answers at {address.url} ({why}); check the address and the server"
        ) from error
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    channel = _Channel(connection, address, url.path.rstrip("/"))
    # it must be closed when its thread or its Connection ends, and nothing else does that
    weakref.finalize(channel, connection.close).atexit = False
    return channel


def _verify(channel: _Channel) -> None:
    """Raise ServerUnreachable unless a Retarget server answers, and soon."""
    url = channel.address.url
    channel.connection.sock.settimeout(_HEALTH_SECONDS)
    try:
        response = channel.exchange(_Request("GET", "/health"))
        body, problem = (
            response.read(_CHUNK_BYTES),
            f"it answers {response.status} {response.reason}",
        )
        is_retarget = response.status == 200 and json.loads(body)["status"] == "ok"
    except TimeoutError as error:
        channel.connection.close()
        raise ServerUnreachable(
            f"no answer from {url} after {show_duration(_HEALTH_SECONDS)}; check that a Retarget "
            "server listens there"
        ) from error
    except (OSError, http.client.HTTPException):
        is_retarget, problem = False, "it does not speak HTTP"
    except (ValueError, KeyError, TypeError, RecursionError):
        is_retarget, problem = False, "its response has an unknown format"
    if not is_retarget:
        channel.connection.close()
        raise ServerUnreachable(f"{url} is not a Retarget server: {problem}")


def _target(path: str, query: Query | None) -> str:
    values = {key: _plain(value) for key, value in (query or {}).items() if value is not None}
    return f"{path}?{urlencode(values, doseq=True, errors='replace')}" if values else path


def _encoded(body: Any) -> bytes:
    try:
        return json.dumps(body).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"the request cannot be sent as JSON: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [str(item) for item in value]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return str(value)


def _problem(response: http.client.HTTPResponse) -> RetargetError | None:
    if 200 <= response.status < 300:
        return None
    version = response.getheader("Retarget-Version", __version__)
    other = "" if version == __version__ else version
    return _error(response, response.read(), other_version=other)


def _error(response: http.client.HTTPResponse, body: bytes, *, other_version: str) -> RetargetError:
    """Return the error of an answer. A different version of the server may be its cause."""
    versions = f" (the server is retarget {other_version}, this is {__version__})"
    hint = versions if other_version else ""
    try:
        answer = json.loads(body)
        return error_named(answer["error"], f"{answer['message']}{hint}", field=answer.get("field"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return RetargetError(f"the server answered {response.status} {response.reason}{hint}")


def _decoded(response: http.client.HTTPResponse) -> Any:
    body = response.read()
    try:
        return json.loads(body) if body else None
    except (ValueError, RecursionError) as error:
        raise ServerUnreachable(
            "the response is not JSON; check the address of the server"
        ) from error
