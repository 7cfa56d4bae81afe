"""The SSH connections in use: drivers that reach a host in the same way share one."""

import threading
from collections.abc import Collection, Mapping
from dataclasses import astuple
from hashlib import blake2b

from retarget.core.links import Links
from retarget.drivers._agent import AgentClient, AgentInstall, RelayPorts
from retarget.drivers._event_loop import EventLoop
from retarget.drivers._ssh_transport import HostAddress, Login, SshTransport
from retarget.drivers._tmpdir import runner_zipapp

PooledConnection = tuple[AgentClient, SshTransport]


class SshPool:
    """Drivers that reach a host in the same way, with the same host keys, share a connection."""

    def __init__(self, links: Links) -> None:
        self._loop = links.get(EventLoop)
        # by everything that decides how a host is reached; those in one list accept different keys
        self._connections: dict[str, list[PooledConnection]] = {}
        # by host, user and folder, however the host is reached
        self._relay_ports: dict[str, RelayPorts] = {}
        self._lock = threading.Lock()

    def acquire(
        self, address: HostAddress, login: Login, *, root: str, host_keys: Mapping[str, str]
    ) -> PooledConnection:
        """Return the connection to a host."""
        identity = _digest(astuple(address), astuple(login), root)
        with self._lock:
            pooled = self._connections.setdefault(identity, [])
            matching = [candidate for candidate in pooled if candidate[1].accepts(host_keys)]
            if not matching:
                matching = [self._new_connection(address, login, root, host_keys)]
                pooled += matching
            for duplicate in matching[1:]:  # a new connection turned out to reach the same host
                pooled.remove(duplicate)
                duplicate[0].release()
            connection = matching[0]
            connection[1].require(host_keys)
        connection[0].connect_timeout = login.timeout
        return connection

    def release(self, connections: Collection[PooledConnection]) -> None:
        """Close these connections once they are idle. Drivers that need one open a new one."""
        with self._lock:
            for identity, pooled in list(self._connections.items()):
                pooled[:] = [connection for connection in pooled if connection not in connections]
                if not pooled:
                    del self._connections[identity]
        for client, _ in connections:
            client.release()

    def close(self) -> None:
        with self._lock:
            connections = [pair for pooled in self._connections.values() for pair in pooled]
        self.release(connections)

    def _new_connection(
        self, address: HostAddress, login: Login, root: str, host_keys: Mapping[str, str]
    ) -> PooledConnection:
        transport = SshTransport(address, login, host_keys)
        folder = _digest(address.name, address.user or login.user, root)
        relay_ports = self._relay_ports.setdefault(folder, RelayPorts())
        install = AgentInstall(root, runner_zipapp)
        client = AgentClient(self._loop, address.name, transport.open, install, relay_ports)
        return client, transport


def _digest(*values: object) -> str:
    """Return a digest of these values, which reveals no secret."""
    return blake2b(repr(values).encode("utf-8", "surrogatepass")).hexdigest()
