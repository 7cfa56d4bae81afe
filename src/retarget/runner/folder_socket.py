"""Sockets in a folder, however long its path is."""

from __future__ import annotations

import os
import socket
import time

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from typing import Callable

_CONNECT_SECONDS = 10.0  # for a listener whose queue is full


def listen(folder: str, name: str, backlog: int) -> socket.socket:
    """Listen on a socket file, which replaces an old one. It never refuses a connection."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    part = f"{name}.part"  # whoever connects between `bind` and `listen` is refused
    try:
        try:
            os.unlink(os.path.join(folder, part))
        except FileNotFoundError:
            pass
        _with_short_path(folder, part, listener.bind)
        listener.listen(backlog)
        os.rename(os.path.join(folder, part), os.path.join(folder, name))
    except BaseException:
        listener.close()
        raise
    return listener


def connect(folder: str, name: str) -> socket.socket:
    """Connect to a socket file, or raise OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)
    deadline = time.monotonic() + _CONNECT_SECONDS
    try:
        while True:
            try:
                _with_short_path(folder, name, connection.connect)
                break
            except BlockingIOError:  # its queue is full
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
    except BaseException:
        connection.close()
        raise
    connection.setblocking(True)
    return connection


def _with_short_path(folder: str, name: str, call: Callable[[str], object]) -> None:
    """Call this with a path of the file. The path of a socket has 107 bytes at most."""
    if not os.path.isdir("/proc/self/fd"):
        call(os.path.join(folder, name))
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        call(f"/proc/self/fd/{descriptor}/{name}")
    finally:
        os.close(descriptor)
