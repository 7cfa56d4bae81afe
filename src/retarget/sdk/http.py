"""Talking to a server: JSON and bytes over kept-alive connections, one a thread."""

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

Query = Mapping[str, Any]
_TRIES = 3  # a kept connection that was closed, then a server that had to be started again
_CHUNK = 1 << 18
_FIRST_ANSWER = 10.0  # seconds in which a server tells who it is
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens, and what opens it."""

    url: str
    token: str = ""

    def __post_init__(self) -> None:
        if not (self.token.isascii() and self.token.isprintable()):
            raise Invalid("the token holds characters that no token has; see RETARGET_TOKEN")


class Server(Protocol):
    """Knows where the server is, and what to do when it is gone."""

    def find(self) -> Address:
        """Return the address, or raise ServerUnreachable with what to do."""
        ...

    def revive(self) -> Address | None:
        """Bring a server back that stopped answering; None when that is not in our hands."""
        ...


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A server that somebody else runs."""

    address: Address

    def find(self) -> Address:
        return self.address

    def revive(self) -> Address | None:
        return None


class Body(Protocol):
    """Bytes to send, read piece by piece."""

    def __enter__(self) -> "Body": ...
    def __exit__(self, *raised: object) -> None: ...
    def read(self, size: int = -1, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Content:
    """A body that can be sent again: `open` starts it over."""

    open: Callable[[], Body]
    length: int


class Answer:
    """The bytes of one answer, as they come."""

    def __init__(self, response: http.client.HTTPResponse, url: str, *, quiet: bool) -> None:
        self._response = response
        self._url = url
        self._quiet = quiet

    def header(self, name: str) -> str | None:
        return self._response.getheader(name)

    def __iter__(self) -> Iterator[bytes]:
        """Yield pieces up to the true end; ServerUnreachable if the server went away before it.

        TimeoutError says that one which may be quiet was so for as long as it was told.
        """
        while piece := self._read():
            yield piece

    def _read(self) -> bytes:
        try:
            return self._response.read1(_CHUNK)
        except TimeoutError as error:
            raise error if self._quiet else _dropped(self._url) from error
        except (OSError, http.client.HTTPException) as error:
            raise _dropped(self._url) from error


class Connection:
    """One server, for any number of threads. Every failure is one of core.errors.

    What `is_strange` is asked first who it is: any address may lead to anything.
    """

    def __init__(self, server: Server, *, timeout: float = 60.0, is_strange: bool = False) -> None:
        self._server = server
        self._timeout = timeout
        self._is_strange = is_strange
        self._address: Address | None = None
        self._local = threading.local()

    @property
    def address(self) -> Address:
        if self._address is None:
            self._address = self._server.find()
        return self._address

    def revive(self) -> bool:
        """Find or start the server again after it was lost; False if it is not ours to start."""
        address = self._server.revive()
        if address is not None:
            self._address = address
        return address is not None

    def get(self, path: str, query: Query | None = None) -> Any:
        return self._json("GET", path, query=query, repeatable=True)

    def post(
        self, path: str, body: Any = None, *, query: Query | None = None, repeatable: bool = False
    ) -> Any:
        """Post JSON. Only a `repeatable` one is sent again when its connection broke."""
        return self._json("POST", path, body, query=query, repeatable=repeatable)

    def put(self, path: str, body: Any) -> Any:
        return self._json("PUT", path, body, repeatable=True)

    def patch(self, path: str, body: Any) -> Any:
        return self._json("PATCH", path, body, repeatable=True)

    def delete(self, path: str, query: Query | None = None) -> Any:
        return self._json("DELETE", path, query=query)

    def send(self, method: str, path: str, content: bytes | Content) -> Any:
        """Send bytes that the server names by what they are: safe to send again."""
        body = content if isinstance(content, bytes) else content.open
        length = len(content) if isinstance(content, bytes) else content.length
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(length)}
        return self._exchange(_Request(method, path, body, headers, repeatable=True), _decoded)

    @contextmanager
    def stream(
        self, path: str, query: Query | None = None, *, quiet: float | None = None
    ) -> Generator[Answer]:
        """Get bytes as they come; `quiet` is how many seconds may pass without any."""
        request = _Request("GET", _target(path, query), repeatable=True)
        response = self._exchange(request, lambda response: response, timeout=quiet)
        # while it flows it has its connection for itself: other requests open another
        channel: _Channel = self._local.channel
        self._local.channel = None
        try:
            yield Answer(response, channel.address.url, quiet=quiet is not None)
        finally:
            if response.isclosed() and self._local.channel is None:
                self._local.channel = channel
            else:  # left before its end: the rest must not be read as another answer
                response.close()
                channel.line.close()

    def close(self) -> None:
        """Close this thread's connection; the next request opens another."""
        channel: _Channel | None = getattr(self._local, "channel", None)
        self._local.channel = None
        if channel is not None:
            channel.line.close()

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
        read: Callable[[http.client.HTTPResponse], _Read],
        *,
        timeout: float | None = None,
    ) -> _Read:
        for left in reversed(range(_TRIES)):
            try:
                return self._once(request, read, timeout or self._timeout)
            except _Refused:  # it was never sent: any request may try again
                if not left or not self.revive():
                    raise
            except _Dropped:
                if not left or not request.repeatable:
                    raise
        raise AssertionError("the last try returns or raises")

    def _once(
        self,
        request: "_Request",
        read: Callable[[http.client.HTTPResponse], _Read],
        timeout: float,
    ) -> _Read:
        channel = self._channel(timeout)
        try:
            response = channel.exchange(request)
            problem = _problem(response)
            if problem is None:
                return read(response)
        except TimeoutError as error:
            self.close()
            raise ServerUnreachable(
                f"the server at {channel.address.url} did not answer for {timeout:g} s"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise _dropped(channel.address.url) from error
        except BaseException:
            self.close()  # left in the middle: nobody else may use what is left of it
            raise
        try:
            raise problem
        finally:
            del problem  # else it and this frame would keep each other, and the socket, alive

    def _channel(self, timeout: float) -> "_Channel":
        held: _Channel | None = getattr(self._local, "channel", None)
        if held is None or held.address != self.address or held.is_closed():
            self.close()
            held = _connected(self.address)
            if self._is_strange:
                _meet(held)
                self._is_strange = False
            self._local.channel = held
        held.line.sock.settimeout(timeout)
        return held


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
    line: http.client.HTTPConnection
    address: Address
    prefix: str

    def is_closed(self) -> bool:
        """Tell whether the other side hung up: between requests nothing else can be readable."""
        if self.line.sock is None:
            return True
        poll = select.poll()
        poll.register(self.line.sock, select.POLLIN)
        return bool(poll.poll(0))

    def exchange(self, request: _Request) -> http.client.HTTPResponse:
        headers = {"Authorization": f"Bearer {self.address.token}", **request.headers}
        with request.opened() as body:
            # an early answer, such as a full disk, is worth more than the pipe it broke
            with suppress(BrokenPipeError, ConnectionResetError):
                self.line.request(request.method, self.prefix + request.target, body, headers)
            return self.line.getresponse()


class _Refused(ServerUnreachable):
    """No connection came about."""


class _Dropped(ServerUnreachable):
    """The connection broke before the answer was complete."""


def _dropped(url: str) -> _Dropped:
    return _Dropped(f"the server at {url} closed the connection before it had answered")


def _connected(address: Address) -> _Channel:
    parts = parse_address(address.url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=10, blocksize=_CHUNK)
    try:
        connection.connect()
    except (socket.gaierror, UnicodeError) as error:
        raise ServerUnreachable(f"{address.url}: there is no host {parts.hostname!r}") from error
    except OSError as error:
        why = error.strerror or str(error) or type(error).__name__
        raise _Refused(
            f"no server answers at {address.url} ({why}); is it running, and is that its address?"
        ) from error
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    channel = _Channel(connection, address, parts.path.rstrip("/"))
    # it ends with its thread or its Connection, whichever ends first, and nobody else tells it to
    weakref.finalize(channel, connection.close).atexit = False
    return channel


def _meet(channel: _Channel) -> None:
    """Raise ServerUnreachable unless a server of ours answers, and soon."""
    url = channel.address.url
    channel.line.sock.settimeout(_FIRST_ANSWER)
    try:
        response = channel.exchange(_Request("GET", "/health"))
        told, who = response.read(_CHUNK), f"it says {response.status} {response.reason}"
        is_ours = response.status == 200 and json.loads(told)["status"] == "ok"
    except TimeoutError as error:
        channel.line.close()
        raise ServerUnreachable(
            f"what listens at {url} has not answered for {_FIRST_ANSWER:g} s; is it a Retarget "
            "server?"
        ) from error
    except (OSError, http.client.HTTPException):
        is_ours, who = False, "it does not speak HTTP"
    except (ValueError, KeyError, TypeError, RecursionError):
        is_ours, who = False, "its answer is another"
    if not is_ours:
        channel.line.close()
        raise ServerUnreachable(f"what answers at {url} is not a Retarget server: {who}")


def _target(path: str, query: Query | None) -> str:
    given = {key: _plain(value) for key, value in (query or {}).items() if value is not None}
    return f"{path}?{urlencode(given, doseq=True, errors='replace')}" if given else path


def _encoded(body: Any) -> bytes:
    try:
        return json.dumps(body).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"what was given cannot be sent: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [str(each) for each in value]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return str(value)


def _problem(response: http.client.HTTPResponse) -> RetargetError | None:
    if 200 <= response.status < 300:
        return None
    version = response.getheader("Retarget-Version", __version__)
    return _error(response, response.read(), "" if version == __version__ else version)


def _error(response: http.client.HTTPResponse, body: bytes, other: str) -> RetargetError:
    """Return the error that was answered; one of another version may come of just that."""
    status, reason = response.status, response.reason
    hint = f" (the server is retarget {other}, and this is {__version__})" if other else ""
    try:
        told = json.loads(body)
        return error_named(told["error"], f"{told['message']}{hint}", field=told.get("field"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return RetargetError(f"the server answered {status} {reason} and did not say why")


def _decoded(response: http.client.HTTPResponse) -> Any:
    body = response.read()
    try:
        return json.loads(body) if body else None
    except (ValueError, RecursionError) as error:
        raise ServerUnreachable("what answered there is not a Retarget server") from error
