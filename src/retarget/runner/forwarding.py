"""Forwards a connection of the script to the server, once the server has proven itself."""

from __future__ import annotations

import http.client
import select
import socket
import ssl
import time
from urllib.parse import urlsplit

from retarget.runner.connection import connect, read_contact
from retarget.runner.errors import Unreachable
from retarget.runner.folder import Folder
from retarget.runner.peers import is_same_user
from retarget.runner.request_heads import RequestHeads

_CHUNK_BYTES = 1 << 16
_PATIENCE_SECONDS = 60.0  # how long a client waits while the server is away
_MAX_PAUSE_SECONDS = 1.0


def forward(folder: Folder, client: socket.socket, address: tuple[str, int]) -> None:
    """Forward one connection in both directions until an end closes it."""
    with client:
        try:
            if is_same_user(*address[:2]):
                _forward(folder, client)
        except (OSError, ValueError):
            pass  # an end has closed it, or the folder was removed, or it is not HTTP


def _forward(folder: Folder, client: socket.socket) -> None:
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    deadline, pause = time.monotonic() + _PATIENCE_SECONDS, 0.05
    while True:
        try:
            contact = read_contact(folder)
            server = connect(contact)
            break
        except Unreachable:
            if time.monotonic() > deadline or not _is_open(client):
                return
            time.sleep(pause)
            pause = min(pause * 2, _MAX_PAUSE_SECONDS)
    try:
        _join(client, server, contact["url"])
    finally:
        server.close()


def _join(client: socket.socket, connection: http.client.HTTPConnection, url: str) -> None:
    server: socket.socket = connection.sock
    server.settimeout(None)
    heads = None if _is_loopback(url) else RequestHeads(urlsplit(url).netloc)
    poll = select.poll()
    for end in (client, server):
        poll.register(end, select.POLLIN)
    while True:
        ready = [] if _has_pending(server) else [number for number, _ in poll.poll()]
        if client.fileno() in ready:
            content = client.recv(_CHUNK_BYTES)
            if not content:
                return
            server.sendall(content if heads is None else heads.add(content))
        if server.fileno() in ready or _has_pending(server):
            content = server.recv(_CHUNK_BYTES)
            if not content:
                return
            client.sendall(content)


def _has_pending(server: socket.socket) -> bool:
    """Return whether there are decrypted bytes, which `poll` does not know about."""
    return isinstance(server, ssl.SSLSocket) and server.pending() > 0


def _is_loopback(url: str) -> bool:
    """Return whether a server is on this host. It then accepts any Host.

    It makes URLs from the Host of a request, and these must lead through the relay as well. The
    server of another host may have a proxy before it that knows only its own name.
    """
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def _is_open(client: socket.socket) -> bool:
    try:
        return bool(client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return True
