"""The links to agents in containers, through which their runners reach the server."""

import threading
from contextlib import suppress
from functools import partial

from retarget.core.errors import TargetUnreachable
from retarget.core.links import Links
from retarget.drivers._agent import AgentClient
from retarget.drivers._container_payload import RELAY_PORT, ROOT
from retarget.drivers._docker_client import DockerClients, DockerExecTransport
from retarget.drivers._event_loop import EventLoop

_CONNECT_SECONDS = 10.0  # how long the first request for the relay port may take


class ContainerAgents:
    """One client for each container that something was asked of."""

    def __init__(self, links: Links) -> None:
        self._loop, self._clients = links.get(EventLoop), links.get(DockerClients)
        self._agents: dict[tuple[str, str], AgentClient] = {}  # by engine and launch
        self._server_urls: dict[str, str] = {}  # by engine: as of the last launch there
        self._lock = threading.Lock()

    def get(self, engine: str, key: str) -> AgentClient:
        """Return the client of the agent in the container of a launch."""
        with self._lock:
            if (engine, key) not in self._agents:
                connect = partial(self._clients.get, engine)
                transport = DockerExecTransport(connect, f"retarget-{key}", ["agent", ROOT])
                name = f"container {key[:12]}"
                self._agents[engine, key] = AgentClient(self._loop, name, transport.open, None)
            return self._agents[engine, key]

    def connect(self, engine: str, key: str, url: str) -> None:
        """Start an agent in the container, through which the runner reaches the server."""
        self._server_urls[engine] = url
        agent = self.get(engine, key)
        agent.relay_to(url, RELAY_PORT)
        with suppress(TargetUnreachable):  # the port is requested again at every reconnect
            agent.request("relay_port", name=RELAY_PORT, timeout=_CONNECT_SECONDS)

    def reconnect(self, engine: str, key: str) -> None:
        """Do so for a container that has started again, if anything was launched there."""
        if url := self._server_urls.get(engine):
            self.connect(engine, key, url)

    def release(self, engine: str, key: str) -> None:
        """Close the link to a container."""
        with self._lock:
            agent = self._agents.pop((engine, key), None)
        if agent is not None:
            agent.release()

    def launches(self, engine: str) -> list[str]:
        """Return the launches whose containers are linked."""
        with self._lock:
            return [key for name, key in self._agents if name == engine]

    def close(self) -> None:
        with self._lock:
            linked = list(self._agents)
        for engine, key in linked:
            self.release(engine, key)
