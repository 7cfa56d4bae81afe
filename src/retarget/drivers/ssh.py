"""Machines with an SSH server: one, or a pool of them."""

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

from retarget.core.driver import Handle, Launch, Observation, Phase
from retarget.core.environments import Environment
from retarget.core.errors import (
    Conflict,
    Invalid,
    LaunchRejected,
    NothingStarted,
    TargetUnreachable,
)
from retarget.core.targets import Facts, Gpu, Node
from retarget.core.units import show_memory
from retarget.drivers._host import PYTHON, Host, together
from retarget.drivers._machines import let_go, reach
from retarget.drivers._ssh import Login, Place, fingerprint, parse_place, public_key
from retarget.drivers.local import NO_ENGINE, uv_here

_PATIENCE = 20.0  # seconds that an agent which is there may take to answer
_PART = 1 << 20
_LONGEST = 1000  # letters of a path
_ROOT = re.compile(r"~?/[^\0\ud800-\udfff]*")
_FIRST_PORT, _PORTS = (
    20_000,
    12_000,
)  # where the processes of a job meet: below what systems give out


class Config(BaseModel):
    model_config = ConfigDict(extra="forbid")

    address: str | None = Field(None, description="The machine: HOST, USER@HOST or USER@HOST:PORT")
    hosts: tuple[str, ...] = Field((), description="The machines of a pool, each as an address")
    user: str | None = Field(None, description="Who to log in as; default: as OpenSSH would")
    port: int | None = Field(None, gt=0, lt=65536, description="Where sshd listens; default: 22")
    key: SecretStr | None = Field(
        None,
        description="File of a private key; default: the agent's, and those in ~/.ssh",
        json_schema_extra={"cli": {"file": True}},
    )
    passphrase: SecretStr | None = Field(None, description="Opens the private key")
    password: SecretStr | None = Field(None, description="Logs in without a key")
    jump: str | None = Field(None, description="Machines on the way, each as an address: A,B")
    python: str | None = Field(None, description="A Python there, 3.8 or newer; default: found")
    root: str = Field("~/.retarget-host", description="Folder there for jobs and caches")
    cpus: float | None = Field(None, gt=0, description="Cores of each to give out; default: all")
    memory: int | None = Field(
        None,
        gt=0,
        description="Memory of each to give out; default: all",
        json_schema_extra={"unit": "bytes"},
    )
    timeout: float = Field(30, gt=0, le=600, description="Seconds that logging in may take")
    fence: float = Field(
        300,
        ge=10,
        description="Seconds of silence after which a job with retries is tried on another machine",
    )
    linger: float = Field(600, ge=0, description="Seconds a runner waits for a lost server")
    pins: dict[str, str] = Field({}, description="The key of each host, as it was when attached")

    @field_validator("address")
    @classmethod
    def _a_place(cls, text: str | None) -> str | None:
        if text is not None:
            parse_place(text)
        return text

    @field_validator("jump")
    @classmethod
    def _places(cls, text: str | None) -> str | None:
        for each in text.split(",") if text is not None else ():
            parse_place(each)
        return text

    @field_validator("hosts")
    @classmethod
    def _hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for each in hosts:
            parse_place(each)
        if len(names := [parse_place(each).name for each in hosts]) != len(set(names)):
            raise ValueError("one of them is there twice")
        return hosts

    @field_validator("python")
    @classmethod
    def _a_path(cls, python: str | None) -> str | None:
        if python is not None and not PYTHON.fullmatch(python):
            raise ValueError(f"{python!r} is not a plain absolute path such as /usr/bin/python3.11")
        return python

    @field_validator("root")
    @classmethod
    def _a_folder(cls, root: str) -> str:
        if not _ROOT.fullmatch(root) or len(root) > _LONGEST:
            raise ValueError(
                f"{root[:80]!r} is not a path such as /data/retarget or ~/.retarget-host"
            )
        return root

    @field_validator("pins")
    @classmethod
    def _keys(cls, pins: dict[str, str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, key in pins.items():
            try:
                found[name] = public_key(key)
            except ValueError:
                raise ValueError(
                    f"what is given for {name!r} is not a public key such as ssh-ed25519 AAAA…"
                ) from None
        return found

    @field_validator("key")
    @classmethod
    def _text_of_a_key(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None and "PRIVATE KEY" not in key.get_secret_value():
            raise ValueError("it holds no private key; give the file of one, or its text")
        return key

    @model_validator(mode="after")
    def _one_or_many(self) -> Self:
        if self.address is None and not self.hosts:
            raise ValueError("give the address of one machine, or the hosts of a pool")
        if self.address is not None and self.hosts:
            raise ValueError("give the address of one machine or the hosts of a pool, not both")
        for name in ("user", "port"):
            if getattr(self, name) and all(getattr(each, name) for each in self.places.values()):
                raise ValueError(f"the {name} is in every address already; give it once")
        return self

    @property
    def places(self) -> dict[str, Place]:
        """Return where each machine is, by its name."""
        texts = self.hosts or (self.address or "",)
        return {place.name: place for place in map(parse_place, texts)}


class Driver:
    """A launch is one folder on each of its machines; the agents there see to them."""

    Config = Config

    def __init__(self, config: Config) -> None:
        self.config = config
        login = _login(config)
        self._ways = {
            name: reach(place, login, root=config.root, pins=config.pins)
            for name, place in config.places.items()
        }
        self._hosts = {name: host for name, (host, _) in self._ways.items()}

    def check(self) -> Facts:
        hosts = list(self._hosts.values())
        patience = self.config.timeout + 5.0
        answers = together([host.asking("facts", patience=patience) for host in hosts], all_=False)
        if all(isinstance(answer, TargetUnreachable) for answer in answers):
            raise TargetUnreachable("; ".join(dict.fromkeys(str(each) for each in answers)))
        nodes = [self._node(host, found) for host, found in zip(hosts, answers, strict=True)]
        fence = self.config.fence if len(nodes) > 1 else None
        return Facts(nodes=tuple(nodes), details=self._details(answers), fence=fence)

    def settle(self) -> dict[str, Any]:
        """Return what was learnt of the hosts and is to be kept: their keys."""
        return {"pins": self._pins()}

    def screen(self, environment: Environment) -> None:
        known = [host.facts for host in self._hosts.values()]
        if environment.kind == "image" and all(each and not each["engine"] for each in known):
            raise Invalid(NO_ENGINE, field="environment")

    def plan(self, launch: Launch) -> dict[str, Any]:
        nodes = self._nodes_of(launch)
        folder = f"{self.config.root}/launches/{launch.key}"
        return {"hosts": nodes, "folder": folder, "command": ["runner.pyz", "run", folder]}

    def launch(self, launch: Launch) -> Handle:
        if not launch.command:
            raise LaunchRejected("the command is empty")
        nodes = self._nodes_of(launch)
        if launch.nodes != len(nodes):
            has = len(self._hosts)
            raise LaunchRejected(f"the job wants {launch.nodes} nodes; this target has {has}")
        hosts = [self._hosts[name] for name in nodes]
        self._meet(hosts)
        if launch.environment.kind != "user":
            for host in hosts:
                self._bring_uv(host)
        master = hosts[0].ask("facts")["address"] if launch.nodes > 1 else ""
        door = self._door(launch.url)
        asked: list[Coroutine[Any, Any, Any]] = []
        for number, host in enumerate(hosts):
            if door:
                host.lead_to(launch.url, door)
            told = self._told(launch, number, master or self.config.places[nodes[0]].host)
            node = {"linger": self.config.linger, "where": f"on {host.name}"}
            asked.append(host.asking("launch", key=launch.key, told=told, node=node, door=door))
        together(asked)
        return Handle(f"{launch.key}@{','.join(nodes)}")

    def poll(self, handles: Sequence[Handle]) -> list[Observation]:
        keys: dict[str, list[str]] = {}
        for handle in handles:
            key, names = _read(handle)
            for name in names or list(self._hosts)[:1]:
                keys.setdefault(name, []).append(key)
        there = [name for name in keys if name in self._hosts]
        answers = together(
            [self._hosts[n].asking("poll", keys=keys[n], patience=_PATIENCE) for n in there],
            all_=False,
        )
        seen: dict[tuple[str, str], Observation] = {}
        for name, answer in zip(there, answers, strict=True):
            for number, key in enumerate(keys[name]):
                seen[name, key] = (
                    Observation(phase=Phase.SILENT, reason=str(answer))
                    if isinstance(answer, TargetUnreachable)
                    else Observation.model_validate(answer[number])
                )
        gone = Observation(phase=Phase.GONE)
        return [
            _taken_together(
                [seen.get((name, key), gone) for name in names or list(self._hosts)[:1]]
            )
            for key, names in map(_read, handles)
        ]

    def cancel(self, handle: Handle) -> None:
        self._for_each(handle, "cancel")

    def forget(self, handle: Handle) -> None:
        self._for_each(handle, "forget", patience=600.0)

    def diagnose(self, handle: Handle) -> str:
        key, names = _read(handle)
        said: list[str] = []
        for name in names or list(self._hosts)[:1]:
            try:
                words = self._hosts[name].ask("diagnose", key=key) if name in self._hosts else ""
            except TargetUnreachable as error:
                words = str(error)
            said.append(f"{name}: {words}" if len(names) > 1 else words)
        return "\n".join(said)

    def release(self) -> None:
        let_go(list(self._ways.values()))

    def environments(self) -> list[dict[str, Any]]:
        hosts = list(self._hosts.values())
        answers = together(
            [host.asking("environments", patience=60.0) for host in hosts], all_=False
        )
        found: dict[str, dict[str, Any]] = {}
        for answer in answers:
            if not isinstance(answer, TargetUnreachable):
                found |= {each["digest"]: each for each in answer}
        if not found and all(isinstance(each, TargetUnreachable) for each in answers):
            raise answers[0]
        return list(found.values())

    def remove_environment(self, digest: str) -> bool:
        hosts = self._hosts.values()
        asked = [host.asking("remove_environment", digest=digest, patience=60.0) for host in hosts]
        results = together(asked, all_=False)
        if "used" in results:
            raise Conflict(f"environment {digest[:12]} is used by a running job; try again later")
        unreached = [each for each in results if isinstance(each, TargetUnreachable)]
        if unreached and "removed" not in results:
            raise unreached[0]
        return "removed" in results

    def _node(self, host: Host, found: Any) -> Node:
        if isinstance(found, TargetUnreachable):
            return Node(name=host.name, cpus=0, memory=0, reason=str(found))
        return Node(
            name=host.name,
            cpus=self.config.cpus or found["cpus"],
            memory=self.config.memory or found["memory"],
            gpus=tuple(Gpu.model_validate(gpu) for gpu in found["gpus"]),
        )

    def _details(self, answers: Sequence[Any]) -> dict[str, str]:
        """Return what people want to know, host by host where there are several."""
        details: dict[str, str] = {}
        pins = self._pins()
        for name, found in zip(self._hosts, answers, strict=True):
            about = f" of {name}" if len(self._hosts) > 1 else ""
            if name in pins:
                details[f"host key{about}"] = fingerprint(pins[name])
            if not isinstance(found, TargetUnreachable):
                details[f"python{about}"] = found["python"]
                details[f"disk free{about}"] = show_memory(found["free"])
                details[f"engine{about}"] = found["engine"] or "none"
        return details

    def _pins(self) -> dict[str, str]:
        """Return the keys that are known, those of hosts on the way too."""
        met = {name: key for _, way in self._ways.values() for name, key in way.met.items()}
        return {**self.config.pins, **met}

    def _nodes_of(self, launch: Launch) -> list[str]:
        return [share.node for share in launch.shares] or list(self._hosts)[: launch.nodes]

    def _told(self, launch: Launch, number: int, master: str) -> dict[str, Any]:
        path = f"/api/attempts/{launch.key}"
        contact = {"url": launch.url, "token": launch.token, "path": path}
        told: dict[str, Any] = {"launch": launch.for_runner(number), "contact": contact}
        if launch.nodes > 1:
            told["gang"] = {"node": number, "master": master, "port": _meeting_port(launch.key)}
        return told

    def _door(self, url: str) -> str:
        """Name the port on the machines that leads here: one for each server that uses them."""
        if not url:
            return ""
        text = f"{_this_machine()} {url}"
        return blake2b(text.encode(), digest_size=8).hexdigest()

    def _meet(self, hosts: Sequence[Host]) -> None:
        """Raise NothingStarted unless each of these answers now."""
        try:
            together([host.asking("ping", patience=_PATIENCE) for host in hosts])
        except TargetUnreachable as error:
            raise NothingStarted(str(error)) from None

    def _bring_uv(self, host: Host) -> None:
        """Make sure that a host has uv, if ours can run there: once, however many launches ask."""
        uv = uv_here()
        if uv is None or not _lacks_uv(host):
            return  # if it is missing after all, the runner says so
        with host.bringing:
            if _lacks_uv(host):  # nobody has brought it meanwhile
                _bring(host, Path(uv))

    def _for_each(self, handle: Handle, do: str, *, patience: float = _PATIENCE) -> None:
        key, names = _read(handle)
        there = [name for name in names or list(self._hosts)[:1] if name in self._hosts]
        together([self._hosts[name].asking(do, key=key, patience=patience) for name in there])


def _lacks_uv(host: Host) -> bool:
    found = host.ask("facts")
    return not found["uv"] and found["machine"] == platform.machine()


def _bring(host: Host, path: Path) -> None:
    """Put a program on a host, part by part. It is checked there before it takes its place."""
    size, offset = path.stat().st_size, 0
    whole = {"turn": uuid.uuid4().hex, "size": size, "digest": _digest_of(path)}
    with path.open("rb") as file:
        while offset < size:
            file.seek(offset)
            what = {"name": path.name, "whole": whole, "offset": offset}
            part = file.read(_PART)
            offset = together([host.asking("put", attached=part, patience=120.0, **what)])[0]


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, blake2b).hexdigest()


def _read(handle: str) -> tuple[str, list[str]]:
    key, _, names = handle.partition("@")
    return key, names.split(",") if names else []


def _taken_together(seen: Sequence[Observation]) -> Observation:
    """Return what the machines of one launch amount to."""
    for phase in (Phase.GONE, Phase.DEAD, Phase.SILENT, Phase.RUNNING):
        for each in seen:
            if each.phase is phase:
                return each
    return next((each for each in seen if each.exit_code), seen[0])


def _meeting_port(key: str) -> int:
    """Return where the processes of a launch meet: the same however often it is launched."""
    return _FIRST_PORT + int.from_bytes(blake2b(key.encode(), digest_size=4).digest()) % _PORTS


def _login(config: Config) -> Login:
    return Login(
        user=config.user,
        port=config.port,
        key=_revealed(config.key),
        passphrase=_revealed(config.passphrase),
        password=_revealed(config.password),
        jump=config.jump,
        python=config.python,
        timeout=config.timeout,
    )


def _revealed(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


@lru_cache(maxsize=1)
def _this_machine() -> str:
    """Name the machine of this server, so that no other one's server has that name."""
    try:
        installed = Path("/etc/machine-id").read_text("ascii").strip()
    except (OSError, ValueError):
        installed = ""
    return f"{installed} {socket.gethostname()} {uuid.getnode()}"
