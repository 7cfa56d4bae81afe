"""One machine with an SSH server, or a pool of them."""

import platform
import re
import socket
import uuid
from collections.abc import Coroutine, Sequence
from functools import lru_cache
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from retarget.core.driver import ActingLease, Handle, Launch, Observation, Phase, show_lease
from retarget.core.environments import Environment
from retarget.core.errors import (
    Conflict,
    Invalid,
    LaunchRejected,
    NothingStarted,
    TargetUnreachable,
)
from retarget.core.links import Links
from retarget.core.targets import Gpu, Inventory, Node
from retarget.core.units import show_memory
from retarget.drivers._agent import PYTHON, AgentClient
from retarget.drivers._event_loop import EventLoop
from retarget.drivers._ssh_pool import SshPool
from retarget.drivers._ssh_transport import (
    HostAddress,
    Login,
    fingerprint,
    parse_address,
    public_key,
)
from retarget.drivers.local import NO_ENGINE, bundled_uv

_ANSWER_SECONDS = 20.0  # how long a connected agent may take to answer
_UPLOAD_CHUNK_BYTES = 1 << 20
_MAX_PATH_CHARACTERS = 1000
_CONDA_OBSTACLE = "targets of kind ssh build from PyPI"
_ROOT = re.compile(r"~?/[^\0\ud800-\udfff]*")
# for MASTER_PORT: below the ephemeral ports
_FIRST_PORT, _PORT_COUNT = 20_000, 12_000


class Config(BaseModel):
    model_config = ConfigDict(extra="forbid")

    address: str | None = Field(
        None, description="Address of one machine: HOST, USER@HOST or USER@HOST:PORT"
    )
    hosts: tuple[str, ...] = Field((), description="Address of a machine of a pool")
    user: str | None = Field(None, description="User to log in as; default: the same as OpenSSH")
    port: int | None = Field(None, gt=0, lt=65536, description="Port of sshd; default: 22")
    key: SecretStr | None = Field(
        None,
        description="Private key file; default: the keys of the SSH agent and in ~/.ssh",
        json_schema_extra={"cli": {"file": True}},
    )
    passphrase: SecretStr | None = Field(None, description="Passphrase of the private key")
    password: SecretStr | None = Field(None, description="Password to log in with instead of a key")
    jump: str | None = Field(None, description="Addresses of jump hosts, in order: A,B")
    python: str | None = Field(
        None, description="Path of Python 3.8 or newer on the machine; default: found automatically"
    )
    root: str = Field("~/.retarget-host", description="Folder on the machine for jobs and caches")
    cpus: float | None = Field(None, gt=0, description="CPUs to use per machine; default: all")
    memory: int | None = Field(
        None,
        gt=0,
        description="Memory to use per machine; default: all",
        json_schema_extra={"unit": "bytes"},
    )
    timeout: float = Field(30, gt=0, le=600, description="Seconds that a login may take")
    lost_after: float = Field(
        300,
        ge=10,
        description="Seconds of silence after which a machine counts as lost and a job with "
        "retries is started on another one",
    )
    linger: float = Field(
        600, ge=0, description="Seconds that a runner with a result waits for the server"
    )
    host_keys: dict[str, str] = Field(
        {}, description="Public key that a host must have; default: the key at the first connection"
    )

    @field_validator("address")
    @classmethod
    def _check_address(cls, text: str | None) -> str | None:
        if text is not None:
            parse_address(text)
        return text

    @field_validator("jump")
    @classmethod
    def _check_jump(cls, text: str | None) -> str | None:
        for host in text.split(",") if text is not None else ():
            parse_address(host)
        return text

    @field_validator("hosts")
    @classmethod
    def _check_hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            parse_address(host)
        if len(names := [parse_address(host).name for host in hosts]) != len(set(names)):
            raise ValueError("the same host is listed twice")
        return hosts

    @field_validator("python")
    @classmethod
    def _check_python(cls, python: str | None) -> str | None:
        if python is not None and not PYTHON.fullmatch(python):
            raise ValueError(f"{python!r} is not a plain absolute path such as /usr/bin/python3.11")
        return python

    @field_validator("root")
    @classmethod
    def _check_root(cls, root: str) -> str:
        if not _ROOT.fullmatch(root) or len(root) > _MAX_PATH_CHARACTERS:
            raise ValueError(
                f"{root[:80]!r} is not a path such as /data/retarget or ~/.retarget-host"
            )
        return root

    @field_validator("host_keys")
    @classmethod
    def _check_host_keys(cls, host_keys: dict[str, str]) -> dict[str, str]:
        checked: dict[str, str] = {}
        for name, key in host_keys.items():
            try:
                checked[name] = public_key(key)
            except ValueError:
                raise ValueError(
                    f"the key of {name!r} is not a public key such as ssh-ed25519 AAAA…"
                ) from None
        return checked

    @field_validator("key")
    @classmethod
    def _check_key(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None and "PRIVATE KEY" not in key.get_secret_value():
            raise ValueError(
                "this is not a private key; pass the file of a private key, or its text"
            )
        return key

    @model_validator(mode="after")
    def _check_address_or_hosts(self) -> Self:
        if self.address is None and not self.hosts:
            raise ValueError(
                "set the address of one machine (--address), or the hosts of a pool (--host)"
            )
        if self.address is not None and self.hosts:
            raise ValueError(
                "set the address of one machine (--address) or the hosts of a pool (--host), "
                "not both"
            )
        for name in ("user", "port"):
            if getattr(self, name) and all(
                getattr(address, name) for address in self.addresses.values()
            ):
                raise ValueError(f"every address already has a {name}; remove the {name} setting")
        return self

    @property
    def addresses(self) -> dict[str, HostAddress]:
        """Return the address of each host, by its name."""
        hosts = self.hosts or (self.address or "",)
        return {address.name: address for address in map(parse_address, hosts)}


class Driver:
    """A launch is one folder on each of its hosts, which the agent on the host looks after."""

    Config = Config

    def __init__(self, config: Config, links: Links) -> None:
        self.config = config
        self._loop, self._pool = links.get(EventLoop), links.get(SshPool)
        self._lease: ActingLease | None = None
        login = _login(config)
        self._connections = {
            name: self._pool.acquire(address, login, root=config.root, host_keys=config.host_keys)
            for name, address in config.addresses.items()
        }
        self._agents = {name: agent for name, (agent, _) in self._connections.items()}

    def act_under(self, lease: ActingLease) -> None:
        self._lease = lease

    def check(self) -> Inventory:
        agents = list(self._agents.values())
        timeout = self.config.timeout + 5.0
        answers = self._loop.run_all(
            [agent.request_async("inventory", timeout=timeout) for agent in agents],
            raise_unreachable=False,
        )
        if all(isinstance(answer, TargetUnreachable) for answer in answers):
            raise TargetUnreachable("; ".join(dict.fromkeys(str(answer) for answer in answers)))
        nodes = [self._node(agent, answer) for agent, answer in zip(agents, answers, strict=True)]
        lost_after = self.config.lost_after if len(nodes) > 1 else None
        return Inventory(
            nodes=tuple(nodes), details=self._details(answers), lost_after_seconds=lost_after
        )

    def settle(self) -> dict[str, Any]:
        """Return the settings to keep: the keys that the hosts have shown."""
        return {"host_keys": self._host_keys()}

    def validate_environment(self, environment: Environment) -> None:
        inventories = [agent.inventory for agent in self._agents.values()]
        if environment.kind == "image" and all(
            inventory and not inventory["engine"] for inventory in inventories
        ):
            raise Invalid(NO_ENGINE, field="environment")

    def conda_obstacle(self, environment: Environment) -> str:
        if environment.kind == "image":  # the image may have conda: known only when it is built
            return ""
        return _CONDA_OBSTACLE

    def plan(self, launch: Launch) -> dict[str, Any]:
        nodes = self._nodes_of(launch)
        folder = f"{self.config.root}/launches/{launch.key}"
        return {"hosts": nodes, "folder": folder, "command": ["runner.pyz", "run", folder]}

    def launch(self, launch: Launch) -> Handle:
        if not launch.command:
            raise LaunchRejected("the command is empty")
        nodes = self._nodes_of(launch)
        if launch.nodes != len(nodes):
            node_count = len(self._agents)
            raise LaunchRejected(
                f"the job needs {launch.nodes} nodes; this target has {node_count}"
            )
        agents = [self._agents[name] for name in nodes]
        self._check_agents(agents)
        if launch.environment.kind != "user" or launch.required_packages:
            for agent in agents:
                self._upload_uv(agent)
        master = agents[0].request("inventory")["address"] if launch.nodes > 1 else ""
        relay_port = self._relay_port(launch.url)
        requests: list[Coroutine[Any, Any, Any]] = []
        lease = show_lease(self._lease)
        for number, agent in enumerate(agents):
            if relay_port:
                agent.relay_to(launch.url, relay_port)
            launch_file = self._launch_file(
                launch, number, master or self.config.addresses[nodes[0]].host
            )
            node = {
                "linger": self.config.linger,
                "where": f"on {agent.name}",
                "conda_obstacle": _CONDA_OBSTACLE,
            }
            requests.append(
                agent.request_async(
                    "launch",
                    key=launch.key,
                    content=launch_file,
                    node=node,
                    relay_port=relay_port,
                    lease=lease,
                )
            )
        self._loop.run_all(requests)
        return Handle(f"{launch.key}@{','.join(nodes)}")

    def poll(self, handles: Sequence[Handle]) -> list[Observation]:
        keys: dict[str, list[str]] = {}
        for handle in handles:
            key, names = _parse_handle(handle)
            for name in names or list(self._agents)[:1]:
                keys.setdefault(name, []).append(key)
        connected = [name for name in keys if name in self._agents]
        answers = self._loop.run_all(
            [
                self._agents[name].request_async("poll", keys=keys[name], timeout=_ANSWER_SECONDS)
                for name in connected
            ],
            raise_unreachable=False,
        )
        observations: dict[tuple[str, str], Observation] = {}
        for name, answer in zip(connected, answers, strict=True):
            for number, key in enumerate(keys[name]):
                observations[name, key] = (
                    Observation(phase=Phase.SILENT, reason=str(answer))
                    if isinstance(answer, TargetUnreachable)
                    else Observation.model_validate(answer[number])
                )
        gone = Observation(phase=Phase.GONE)
        return [
            _combine(
                [observations.get((name, key), gone) for name in names or list(self._agents)[:1]]
            )
            for key, names in map(_parse_handle, handles)
        ]

    def cancel(self, handle: Handle) -> None:
        self._request_on_nodes(handle, "cancel")

    def forget(self, handle: Handle) -> None:
        self._request_on_nodes(handle, "forget", timeout=600.0)

    def diagnose(self, handle: Handle) -> str:
        key, names = _parse_handle(handle)
        lines: list[str] = []
        for name in names or list(self._agents)[:1]:
            try:
                diagnosis = (
                    self._agents[name].request("diagnose", key=key) if name in self._agents else ""
                )
            except TargetUnreachable as error:
                diagnosis = str(error)
            lines.append(f"{name}: {diagnosis}" if len(names) > 1 else diagnosis)
        return "\n".join(lines)

    def open_exec(self, handle: Handle, node: int) -> socket.socket:
        key, names = _parse_handle(handle)
        name = (names or list(self._agents)[:1])[node]
        if name not in self._agents:
            raise Conflict(f"{name} is no longer a host of this target")
        return self._agents[name].open_channel({"to": "exec", "key": key})

    def release(self) -> None:
        self._pool.release(list(self._connections.values()))

    def environments(self) -> list[dict[str, Any]]:
        agents = list(self._agents.values())
        answers = self._loop.run_all(
            [agent.request_async("environments", timeout=60.0) for agent in agents],
            raise_unreachable=False,
        )
        environments: dict[str, dict[str, Any]] = {}
        for answer in answers:
            if not isinstance(answer, TargetUnreachable):
                environments |= {environment["digest"]: environment for environment in answer}
        if not environments and all(isinstance(answer, TargetUnreachable) for answer in answers):
            raise answers[0]
        return list(environments.values())

    def remove_environment(self, digest: str) -> bool:
        agents = self._agents.values()
        requests = [
            agent.request_async("remove_environment", digest=digest, timeout=60.0)
            for agent in agents
        ]
        results = self._loop.run_all(requests, raise_unreachable=False)
        if "used" in results:
            raise Conflict(f"environment {digest[:12]} is used by a running job; try again later")
        errors = [result for result in results if isinstance(result, TargetUnreachable)]
        if errors and "removed" not in results:
            raise errors[0]
        return "removed" in results

    def _node(self, agent: AgentClient, inventory: Any) -> Node:
        if isinstance(inventory, TargetUnreachable):
            return Node(name=agent.name, cpus=0, memory=0, unavailable=str(inventory))
        return Node(
            name=agent.name,
            cpus=self.config.cpus or inventory["cpus"],
            memory=self.config.memory or inventory["memory"],
            gpus=tuple(Gpu.model_validate(gpu) for gpu in inventory["gpus"]),
        )

    def _details(self, answers: Sequence[Any]) -> dict[str, str]:
        """Return details to display, per host if there are several."""
        details: dict[str, str] = {}
        host_keys = self._host_keys()
        for name, inventory in zip(self._agents, answers, strict=True):
            suffix = f" of {name}" if len(self._agents) > 1 else ""
            if name in host_keys:
                details[f"host key{suffix}"] = fingerprint(host_keys[name])
            if not isinstance(inventory, TargetUnreachable):
                details[f"python{suffix}"] = inventory["python"]
                details[f"disk free{suffix}"] = show_memory(inventory["free"])
                details[f"engine{suffix}"] = inventory["engine"] or "none"
        return details

    def _host_keys(self) -> dict[str, str]:
        """Return the known host keys, including those of jump hosts."""
        host_keys = {
            name: key
            for _, transport in self._connections.values()
            for name, key in transport.seen_host_keys.items()
        }
        return {**self.config.host_keys, **host_keys}

    def _nodes_of(self, launch: Launch) -> list[str]:
        nodes = [allocation.node for allocation in launch.allocations]
        return nodes or list(self._agents)[: launch.nodes]

    def _launch_file(self, launch: Launch, number: int, master: str) -> dict[str, Any]:
        content: dict[str, Any] = {"launch": launch.for_runner(number), "contact": launch.contact()}
        if launch.nodes > 1:
            content["gang"] = {"node": number, "master": master, "port": _master_port(launch.key)}
        return content

    def _relay_port(self, url: str) -> str:
        """Name the relay port on the hosts that leads here. Each server has its own."""
        if not url:
            return ""
        text = f"{_server_identity()} {url}"
        return blake2b(text.encode(), digest_size=8).hexdigest()

    def _check_agents(self, agents: Sequence[AgentClient]) -> None:
        """Raise NothingStarted unless all of these answer now."""
        try:
            self._loop.run_all(
                [agent.request_async("ping", timeout=_ANSWER_SECONDS) for agent in agents]
            )
        except TargetUnreachable as error:
            raise NothingStarted(str(error)) from None

    def _upload_uv(self, agent: AgentClient) -> None:
        """Make sure that a host has uv, if the bundled one can run there.

        It is uploaded once, however many launches need it.
        """
        uv = bundled_uv()
        if uv is None or not _lacks_uv(agent):
            return  # if uv is missing after all, the runner reports it
        with agent.upload_lock:
            if _lacks_uv(agent):  # no other launch has uploaded it meanwhile
                _upload(agent, Path(uv))

    def _request_on_nodes(
        self, handle: Handle, action: str, *, timeout: float = _ANSWER_SECONDS
    ) -> None:
        key, names = _parse_handle(handle)
        connected = [name for name in names or list(self._agents)[:1] if name in self._agents]
        lease = show_lease(self._lease)
        self._loop.run_all(
            [
                self._agents[name].request_async(action, key=key, timeout=timeout, lease=lease)
                for name in connected
            ]
        )


def _lacks_uv(agent: AgentClient) -> bool:
    inventory = agent.request("inventory")
    return not inventory["uv"] and inventory["machine"] == platform.machine()


def _upload(agent: AgentClient, path: Path) -> None:
    """Upload a program to a host in chunks. The agent verifies it before installing it."""
    size, offset = path.stat().st_size, 0
    upload = {"id": uuid.uuid4().hex, "size": size, "digest": _file_digest(path)}
    with path.open("rb") as file:
        while offset < size:
            file.seek(offset)
            request = {"name": path.name, "upload": upload, "offset": offset}
            chunk = file.read(_UPLOAD_CHUNK_BYTES)
            offset = agent.request("put", attached=chunk, timeout=120.0, **request)


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, blake2b).hexdigest()


def _parse_handle(handle: str) -> tuple[str, list[str]]:
    key, _, names = handle.partition("@")
    return key, names.split(",") if names else []


def _combine(observations: Sequence[Observation]) -> Observation:
    """Return one observation for a launch, from those of its nodes."""
    for phase in (Phase.GONE, Phase.DEAD, Phase.SILENT, Phase.RUNNING):
        for observation in observations:
            if observation.phase is phase:
                return observation
    return next((failed for failed in observations if failed.exit_code), observations[0])


def _master_port(key: str) -> int:
    """Return the MASTER_PORT of a launch: the same however often it is launched."""
    return _FIRST_PORT + int.from_bytes(blake2b(key.encode(), digest_size=4).digest()) % _PORT_COUNT


def _login(config: Config) -> Login:
    return Login(
        user=config.user,
        port=config.port,
        key=_reveal(config.key),
        passphrase=_reveal(config.passphrase),
        password=_reveal(config.password),
        jump=config.jump,
        python=config.python,
        timeout=config.timeout,
    )


def _reveal(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


@lru_cache(maxsize=1)
def _server_identity() -> str:
    """Return a name for the machine of this server that no other machine has."""
    try:
        machine_id = Path("/etc/machine-id").read_text("ascii").strip()
    except (OSError, ValueError):
        machine_id = ""
    return f"{machine_id} {socket.gethostname()} {uuid.getnode()}"
