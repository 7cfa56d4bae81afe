"""The SSH connections in use: drivers that reach a host in the same way share one."""

import os
import threading
from collections.abc import Collection, Mapping
from dataclasses import astuple
from hashlib import blake2b

from retarget.drivers._agent import AgentClient, AgentInstall, RelayPorts
from retarget.drivers._ssh_transport import HostAddress, Login, SshTransport
from retarget.drivers._tmpdir import runner_zipapp

PooledConnection = tuple[AgentClient, SshTransport]

# by everything that decides how a host is reached; those in one list accept different host keys
_pool: dict[str, list[PooledConnection]] = {}
_relay_ports: dict[str, RelayPorts] = {}  # by host, user and folder, however the host is reached
_pool_lock = threading.Lock()


def acquire_connection(
    address: HostAddress, login: Login, *, root: str, host_keys: Mapping[str, str]
) -> PooledConnection:
    """Return the connection to a host.

    All drivers that reach the host in the same way and accept the same host keys share it.
    """
    identity = _digest(os.getpid(), astuple(address), astuple(login), root)
    with _pool_lock:
        pooled = _pool.setdefault(identity, [])
        matching = [candidate for candidate in pooled if candidate[1].accepts(host_keys)]
        if not matching:
            matching = [_new_connection(address, login, root, host_keys)]
            pooled += matching
        for duplicate in matching[1:]:  # a new connection turned out to reach the same host
            pooled.remove(duplicate)
            duplicate[0].release()
        connection = matching[0]
        connection[1].require(host_keys)
    connection[0].connect_timeout = login.timeout
    return connection


def release_connections(connections: Collection[PooledConnection]) -> None:
    """Close these connections once they are idle. Drivers that still need one open a new one."""
    with _pool_lock:
        for identity, pooled in list(_pool.items()):
            pooled[:] = [connection for connection in pooled if connection not in connections]
            if not pooled:
                del _pool[identity]
    for client, _ in connections:
        client.release()


def _new_connection(
    address: HostAddress, login: Login, root: str, host_keys: Mapping[str, str]
) -> PooledConnection:
    relay_ports = _relay_ports.setdefault(
        _digest(address.name, address.user or login.user, root), RelayPorts()
    )
    transport = SshTransport(address, login, host_keys)
    return AgentClient(
        address.name, transport.open, AgentInstall(root, runner_zipapp), relay_ports
    ), transport


def _digest(*values: object) -> str:
    """Return a digest of these values, which reveals no secret."""
    return blake2b(repr(values).encode("utf-8", "surrogatepass")).hexdigest()
