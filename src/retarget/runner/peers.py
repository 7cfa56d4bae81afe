"""Finds out which user has opened a connection from this host."""

from __future__ import annotations

import os
import socket
import sys

# A client may also connect to an IPv4 address through an IPv6 socket: such a one is in `tcp6`.
_TABLES = (("/proc/net/tcp", ""), ("/proc/net/tcp6", "0000000000000000FFFF0000"))


def is_same_user(address: str, port: int) -> bool:
    """Return whether this user or root has opened the connection from this loopback address.

    Others may not use the ports that lead to the server.
    """
    peer = f"{int.from_bytes(socket.inet_aton(address), sys.byteorder):08X}:{port:04X}"
    for path, prefix in _TABLES:
        try:
            uid = _find_owner(path, prefix + peer)
        except (OSError, IndexError, ValueError):
            if not prefix:
                return True  # not Linux
            continue  # a kernel without IPv6
        if uid is not None:
            return uid in (os.getuid(), 0)
    return False


def _find_owner(path: str, peer: str) -> int | None:
    with open(path, encoding="ascii") as table:
        for line in table:
            fields = line.split()
            # a socket that its process has closed has no inode, and seems to belong to root
            if fields[1] == peer and fields[9] != "0":
                return int(fields[7])
    return None
