"""One container for each run, made for it and removed after it, by Docker or Podman."""

import fcntl
import os
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from hashlib import blake2b
from typing import Any, cast

import requests
from docker.errors import APIError, DockerException, NotFound
from docker.utils import parse_host
from pydantic import BaseModel, ConfigDict, Field, field_validator

from retarget.core.driver import Handle, Launch, Observation, Phase
from retarget.core.environments import Environment
from retarget.core.errors import (
    Invalid,
    LaunchRejected,
    NothingStarted,
    TargetUnreachable,
)
from retarget.core.targets import Facts, Gpu, Node
from retarget.drivers._engine import (
    Way,
    cause,
    client,
    gives_gpus,
    gpu_request,
    tar,
    usual_engine,
)
from retarget.drivers._host import Host, together
from retarget.drivers._images import (
    built_images,
    have_image,
    image_of,
    remove_built,
    what_was_said,
)
from retarget.drivers._inside import (
    CACHE,
    DOOR,
    LAUNCHES,
    ROOT,
    bring_uv,
    ending,
    lay_in,
    own_cache,
    runner_command,
    wants_packages,
)
from retarget.drivers._scratch import zipapp
from retarget.drivers._tunnel import last_words
from retarget.runner.machine import cards

_LABEL = "retarget.launch"
_CACHE_LABEL = "retarget.cache"
_GONE = ("already in use", "no such container", "no container with name or id")
_NETWORKS = ("bridge", "host", "none", "default")  # what every engine has
_MAKING = 10.0  # seconds that another may take to make a container whose name it has
_NO_COMMAND = ("executable file not found", "no such file or directory")


class Config(BaseModel):
    model_config = ConfigDict(extra="forbid")

    engine: str | None = Field(
        None,
        description="Where it listens: unix:///PATH, tcp://HOST:PORT or ssh://USER@HOST; "
        "default: DOCKER_HOST, or the Docker or Podman of this machine",
    )
    image: str | None = Field(
        None, max_length=500, description="What jobs run in that name no image of their own"
    )
    cpus: float | None = Field(None, gt=0, description="Cores to give out; default: all it has")
    memory: int | None = Field(
        None,
        gt=0,
        lt=1 << 62,
        description="Memory to give out; default: all it has",
        json_schema_extra={"unit": "bytes"},
    )
    network: str | None = Field(
        None, max_length=500, description="bridge, host, none or one by name"
    )
    python: str = Field(
        "python3", max_length=500, description="A Python in the images, 3.8 or newer"
    )
    linger: float = Field(600, ge=0, description="Seconds a runner waits for a lost server")

    @field_validator("engine")
    @classmethod
    def _a_place(cls, engine: str | None) -> str | None:
        if engine is None:
            return None
        if not engine.startswith(("unix:///", "tcp://", "ssh://")):
            raise ValueError("this is not unix:///PATH, tcp://HOST:PORT or ssh://USER@HOST")
        try:
            parse_host(engine)
        except (ValueError, DockerException):
            raise ValueError(
                "this is no address of an engine: unix:///PATH, tcp://HOST:PORT or ssh://USER@HOST"
            ) from None
        return engine

    @field_validator("image", "network", "python")
    @classmethod
    def _a_word(cls, text: str | None) -> str | None:
        if text is not None and (not text or not text.isprintable() or " " in text):
            raise ValueError("one word is meant, such as python:3.12-slim, bridge or python3")
        return text


class Driver:
    """A launch is a container of its name; what the runner writes is in it until it is removed."""

    Config = Config

    def __init__(self, config: Config) -> None:
        self.config = config
        self._engine = config.engine or usual_engine()

    def check(self) -> Facts:
        with self._asking() as api:
            told = api.info()
            version = api.version()
            self._check_network(api)
        cpus = min(self.config.cpus or float(told["NCPU"]), float(told["NCPU"]))
        memory = min(self.config.memory or int(told["MemTotal"]), int(told["MemTotal"]))
        found = cards() if gives_gpus(told) and self._is_here() else []
        node = Node(
            name=told["Name"],
            cpus=cpus,
            memory=memory,
            gpus=tuple(Gpu.model_validate(gpu) for gpu in found),
        )
        details = {"engine": _name(version), "image": self.config.image or "each job's own"}
        return Facts(nodes=(node,), details=details)

    def screen(self, environment: Environment) -> None:
        if not image_of(environment, self.config.image):
            raise Invalid(
                "environment: image is missing: this target has none of its own; give one with "
                "--image, or to the target",
                field="environment",
            )

    def plan(self, launch: Launch) -> dict[str, Any]:
        image = image_of(launch.environment, self.config.image)
        memory = launch.memory or self.config.memory
        request: dict[str, Any] = {
            "name": f"retarget-{launch.key}",
            "image": image,
            "entrypoint": runner_command(self.config.python, image),
            "command": ["run", f"{LAUNCHES}/{launch.key}"],
            "labels": {_LABEL: launch.key, "retarget.job": launch.name},
            "nano_cpus": int(launch.cpus * 1e9),
            "mem_limit": memory,
            "memswap_limit": memory,
            "network_mode": self.config.network,
            "volumes": {"retarget-cache": CACHE},
            "gpus": list(launch.shares[0].gpus) if launch.shares else [],
        }
        return {name: value for name, value in request.items() if value not in (None, [])}

    def launch(self, launch: Launch) -> Handle:
        if not launch.command:
            raise LaunchRejected("the command is empty")
        if launch.nodes != 1:
            raise LaunchRejected(f"a run is one container; the job wants {launch.nodes} nodes")
        if not image_of(launch.environment, self.config.image):
            raise LaunchRejected("neither the job nor the target names an image")
        with _alone(launch.key):
            met = self._meet(launch.key)
            with self._asking() as api:
                found = met or self._create(api, launch)
                if found["State"] not in ("running", "paused"):
                    self._start(api, launch, found)
        if launch.url:
            self._link(launch.key, launch.url)
        return Handle(launch.key)

    def poll(self, handles: Sequence[Handle]) -> list[Observation]:
        try:
            with self._asking() as api:
                there = {each["Labels"][_LABEL]: each for each in _ours(api)}
                return [self._observe(api, handle, there.get(handle)) for handle in handles]
        except TargetUnreachable as error:
            return [Observation(phase=Phase.SILENT, reason=str(error)) for _ in handles]

    def cancel(self, handle: Handle) -> None:
        with self._asking() as api:
            found = self._find(api, handle)
            if found is None or self._observe(api, handle, found).phase is Phase.EXITED:
                return
            if found["State"] == "paused":  # nobody in it hears anything
                with suppress(APIError):  # another was faster
                    api.unpause(found["Id"])
            try:
                if found["State"] not in ("running", "paused"):
                    raise TargetUnreachable("nobody is there to hear it")
                self._host(handle).ask("cancel", key=handle, patience=5.0)
            except TargetUnreachable:
                # it is heard with the next answer of the server, or by the next runner
                api.put_archive(found["Id"], LAUNCHES, tar({f"{handle}/cancel": b""}))
                api.start(found["Id"])
                if url := _urls.get(self._engine):
                    self._link(handle, url)

    def forget(self, handle: Handle) -> None:
        self._let_go(handle)
        with self._asking() as api:
            found = self._find(api, handle)
            if found is not None:
                with suppress(NotFound):
                    api.remove_container(found["Id"], force=True, v=True)

    def diagnose(self, handle: Handle) -> str:
        with self._asking() as api:
            found = self._find(api, handle)
            if found is None:
                return "the engine has no container of it"
            state = cast("dict[str, Any]", api.inspect_container(found["Id"]))["State"]
            said = cast(bytes, api.logs(found["Id"], tail=50)).decode("utf-8", "replace").strip()
            words = state.get("Error") or f"its container is {state['Status']}"
            return f"{words}: {said[-1500:]}" if said else words

    def environments(self) -> list[dict[str, Any]]:
        with self._asking() as api:
            return built_images(api)

    def remove_environment(self, digest: str) -> bool:
        with self._asking() as api:
            return remove_built(api, digest)

    def release(self) -> None:
        """Let go of the containers that have ended. Another target may have the same engine."""
        with _turn:
            mine = [key for _, engine, key in _hosts if engine == self._engine]
        seen = self.poll([Handle(key) for key in mine])
        for key, each in zip(mine, seen, strict=True):
            if each.phase in (Phase.EXITED, Phase.DEAD, Phase.GONE):
                self._let_go(key)

    # -- containers

    def _check_network(self, api: Any) -> None:
        name = self.config.network
        if name is None or name in _NETWORKS or name.startswith("container:"):
            return
        there = {each["Name"]: each["Id"] for each in api.networks()}
        if name not in there and not any(each.startswith(name) for each in there.values()):
            names = ", ".join(sorted(there))
            raise TargetUnreachable(f"the engine has no network {name!r}; it has {names}")

    def _meet(self, key: str) -> dict[str, Any] | None:
        """Return the container there is; NothingStarted when the engine does not answer."""
        try:
            with self._asking() as api:
                return self._find(api, key)
        except TargetUnreachable as error:
            raise NothingStarted(str(error)) from None

    def _find(self, api: Any, key: str) -> dict[str, Any] | None:
        return next(iter(_ours(api, f"{_LABEL}={key}")), None)

    def _create(self, api: Any, launch: Launch) -> dict[str, Any]:
        plan = self.plan(launch)
        have_image(api, self._engine, plan["image"], launch)
        limits = {name: plan.pop(name) for name in _LIMITS if name in plan}
        if limits["nano_cpus"] > _cores(self._engine) * 1e9:
            del limits["nano_cpus"]  # it has all there are
        if cards := plan.pop("gpus", None):
            limits["device_requests"] = [gpu_request(api.info(), cards)]
        binds = [f"{volume}:{path}" for volume, path in plan.pop("volumes").items()]
        settings = api.create_host_config(binds=binds, **limits)
        if cache := own_cache(api.inspect_image(plan["image"])):
            plan["labels"] |= {_CACHE_LABEL: cache}
            plan["environment"] = {"UV_CACHE_DIR": f"{cache}/uv"}  # there may be no home for it
        try:
            api.create_container(host_config=settings, working_dir="/", **plan)
        except APIError as error:
            if not _says(error, *_GONE):  # another has made it at this moment
                raise _rejection(error, plan["image"]) from error
        deadline = time.monotonic() + _MAKING
        while (found := self._find(api, launch.key)) is None:  # its name is taken, and no more yet
            if time.monotonic() > deadline:
                raise TargetUnreachable("its container went away while it was made")
            time.sleep(0.02)
        return found

    def _start(self, api: Any, launch: Launch, found: dict[str, Any]) -> None:
        begun = found["State"] not in ("created", "configured", "initialized")
        if begun and self._observe(api, Handle(launch.key), found).phase is Phase.EXITED:
            return
        image = image_of(launch.environment, self.config.image)
        cache = found["Labels"].get(_CACHE_LABEL, CACHE)
        if cache != CACHE:
            folders = "compiled", os.path.relpath(cache, CACHE)
            api.put_archive(found["Id"], CACHE, tar({}, folders=folders))
        api.put_archive(
            found["Id"], "/", lay_in(launch, image, cache=cache, linger=self.config.linger)
        )
        if said := what_was_said(launch):
            log = f"retarget/launches/{launch.key}/streams/prepare"
            api.put_archive(found["Id"], "/", tar({log: said.encode()}))
        if wants_packages(launch):
            bring_uv(api, found["Id"])
        try:
            api.start(found["Id"])
        except APIError as error:
            with suppress(DockerException):
                api.remove_container(found["Id"], force=True)
            raise _rejection(error, image) from error

    def _observe(self, api: Any, handle: str, found: dict[str, Any] | None) -> Observation:
        if found is None or found["State"] in ("removing", "dead"):
            return Observation(phase=Phase.GONE)
        if found["State"] in ("running", "paused", "restarting"):
            return Observation(phase=Phase.RUNNING)
        self._let_go(handle)
        return ending(api, found["Id"], handle)

    # -- the way to what is in them

    def _link(self, key: str, url: str) -> None:
        """Have an agent in the container, through which its runner reaches the server."""
        _urls[self._engine] = url
        host = self._host(key)
        host.lead_to(url, DOOR)
        with suppress(TargetUnreachable):  # it is tried whenever there is a link
            together([host.asking("door", name=DOOR, patience=10.0)])

    def _host(self, key: str) -> Host:
        identity = os.getpid(), self._engine, key
        with _turn:
            if identity not in _hosts:
                command = ["agent", ROOT]
                way = Way(lambda: client(self._engine), f"retarget-{key}", command)
                _hosts[identity] = Host(f"container {key[:12]}", way.enter, None)
            return _hosts[identity]

    def _let_go(self, key: str) -> None:
        with _turn:
            host = _hosts.pop((os.getpid(), self._engine, key), None)
        if host is not None:
            host.release()

    def _is_here(self) -> bool:
        return self._engine.startswith("unix://")

    @contextmanager
    def _asking(self) -> Generator[Any]:
        """Ask the engine, and say what is wrong when it does not answer."""
        try:
            api = client(self._engine)
        except (DockerException, OSError, ValueError) as error:
            raise self._silent(error) from error
        try:
            yield api
        except APIError as error:
            raise TargetUnreachable(f"the engine says: {error.explanation or error}") from error
        except (DockerException, requests.RequestException, ConnectionError) as error:
            raise self._silent(error) from error
        except OSError as error:
            raise TargetUnreachable(f"the server cannot do its own part of it: {error}") from error

    def _silent(self, error: Exception) -> TargetUnreachable:
        why = last_words(self._engine) or cause(error)
        return TargetUnreachable(
            f"the container engine at {self._engine} does not answer: {why}; see that it runs, "
            "and that the server's user may use it"
        )


_LIMITS = ("nano_cpus", "mem_limit", "memswap_limit", "network_mode")
_hosts: dict[tuple[int, str, str], Host] = {}
_urls: dict[str, str] = {}  # where the server is that has last launched something
_turn = threading.Lock()


@contextmanager
def _alone(key: str) -> Generator[None]:
    """Have no other process or thread of this machine launch the same meanwhile.

    What is laid into a container is not there at once, and may be read when it is half there.
    """
    place = zipapp().parent / f"{blake2b(key.encode(), digest_size=1).hexdigest()}.lock"
    with place.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _ours(api: Any, label: str = _LABEL) -> list[dict[str, Any]]:
    return api.containers(all=True, filters={"label": [label]})


@lru_cache(maxsize=64)
def _cores(engine: str) -> int:
    return int(client(engine).info()["NCPU"])


def _rejection(error: APIError, image: str) -> LaunchRejected:
    said = str(error.explanation or error)
    if _says(error, *_NO_COMMAND):
        return LaunchRejected(
            f"image {image!r} has no Python for the runner: {said}; take one that has Python 3.8 "
            "or newer, or say where it is with --python"
        )
    return LaunchRejected(f"no container could be made of image {image!r}: {said}")


def _says(error: APIError, *words: str) -> bool:
    said = str(error.explanation or error).lower()
    return any(each in said for each in words)


def _name(version: dict[str, Any]) -> str:
    engine = str((version.get("Components") or [{"Name": "Docker"}])[0]["Name"])
    kind = "podman" if "podman" in engine.lower() else "docker"
    return f"{kind} {version['Version']}"
