"""One container per job, created and removed by Docker or Podman."""

import fcntl
import os
import socket
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from typing import Any, cast

import requests
from docker.errors import APIError, DockerException, NotFound
from docker.utils import parse_host
from pydantic import BaseModel, ConfigDict, Field, field_validator

from retarget.core.driver import ActingLease, Handle, Launch, Observation, Phase, show_lease
from retarget.core.environments import Environment
from retarget.core.errors import (
    Invalid,
    LaunchRejected,
    NothingStarted,
    TargetUnreachable,
)
from retarget.core.links import Links
from retarget.core.targets import Gpu, Inventory, Node
from retarget.drivers._container_agents import ContainerAgents
from retarget.drivers._container_payload import (
    CACHE,
    CONDA_OBSTACLE,
    LAUNCHES,
    copy_uv,
    needs_packages,
    pack_payload,
    read_exit,
    runner_command,
    user_cache,
)
from retarget.drivers._docker_client import (
    DockerClients,
    default_engine,
    gpu_request,
    pack_tar,
    supports_gpus,
)
from retarget.drivers._docker_images import (
    DockerImages,
    built_images,
    image_of,
    remove_built_images,
)
from retarget.drivers._tmpdir import runner_zipapp
from retarget.runner.host import list_gpus

_LABEL = "retarget.launch"
_CACHE_LABEL = "retarget.cache"
_NAME_TAKEN_ERRORS = ("already in use", "no such container", "no container with name or id")
_BUILTIN_NETWORKS = ("bridge", "host", "none", "default")  # every engine has them
_CREATE_SECONDS = 10.0  # how long a concurrent launch may take to create the container
_NO_COMMAND_ERRORS = ("executable file not found", "no such file or directory")


class Config(BaseModel):
    model_config = ConfigDict(extra="forbid")

    engine: str | None = Field(
        None,
        description="Address of the engine: unix:///PATH, tcp://HOST:PORT or ssh://USER@HOST; "
        "default: DOCKER_HOST, or Docker or Podman on this machine",
    )
    image: str | None = Field(
        None, max_length=500, description="Image of jobs that do not name one"
    )
    cpus: float | None = Field(None, gt=0, description="CPUs to use; default: all")
    memory: int | None = Field(
        None,
        gt=0,
        lt=1 << 62,
        description="Memory to use; default: all",
        json_schema_extra={"unit": "bytes"},
    )
    network: str | None = Field(
        None, max_length=500, description="Network of the containers: bridge, host, none or a name"
    )
    python: str = Field("python3", max_length=500, description="Python 3.8 or newer in the images")
    linger: float = Field(
        600, ge=0, description="Seconds that a runner with a result waits for the server"
    )

    @field_validator("engine")
    @classmethod
    def _check_engine(cls, engine: str | None) -> str | None:
        if engine is None:
            return None
        if not engine.startswith(("unix:///", "tcp://", "ssh://")):
            raise ValueError("must be unix:///PATH, tcp://HOST:PORT or ssh://USER@HOST")
        try:
            parse_host(engine)
        except (ValueError, DockerException):
            raise ValueError(
                "not a valid engine address: use unix:///PATH, tcp://HOST:PORT or ssh://USER@HOST"
            ) from None
        return engine

    @field_validator("image", "network", "python")
    @classmethod
    def _check_word(cls, text: str | None) -> str | None:
        if text is not None and (not text or not text.isprintable() or " " in text):
            raise ValueError("must be one word, such as python:3.12-slim, bridge or python3")
        return text


class Driver:
    """A launch is a container named after it. It holds the runner's files until it is removed."""

    Config = Config

    def __init__(self, config: Config, links: Links) -> None:
        self.config = config
        self._engine = config.engine or default_engine()
        self._clients, self._images = links.get(DockerClients), links.get(DockerImages)
        self._agents = links.get(ContainerAgents)
        self._lease: ActingLease | None = None

    def act_under(self, lease: ActingLease) -> None:
        """Check this server's lease right before each request: an engine knows no epochs."""
        self._lease = lease

    def is_local(self) -> bool:
        return self._engine.startswith("unix://")

    def check(self) -> Inventory:
        with self._engine_api() as api:
            info = api.info()
            version = api.version()
            self._check_network(api)
        cpus = min(self.config.cpus or float(info["NCPU"]), float(info["NCPU"]))
        memory = min(self.config.memory or int(info["MemTotal"]), int(info["MemTotal"]))
        gpus = list_gpus() if supports_gpus(info) and self.is_local() else []
        node = Node(
            name=info["Name"],
            cpus=cpus,
            memory=memory,
            gpus=tuple(Gpu.model_validate(gpu) for gpu in gpus),
        )
        details = {
            "engine": _engine_version(version),
            "image": self.config.image or "set by each job",
        }
        return Inventory(nodes=(node,), details=details)

    def validate_environment(self, environment: Environment) -> None:
        if not image_of(environment, self.config.image):
            raise Invalid(
                "environment: image is missing and this target has no default image; pass --image, "
                "or set an image for the target",
                field="environment",
            )

    def conda_obstacle(self, environment: Environment) -> str:
        return CONDA_OBSTACLE

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
            "gpus": list(launch.allocations[0].gpus) if launch.allocations else [],
        }
        return {name: value for name, value in request.items() if value not in (None, [])}

    def launch(self, launch: Launch) -> Handle:
        if not launch.command:
            raise LaunchRejected("the command is empty")
        if launch.nodes != 1:
            raise LaunchRejected(f"this target has one node; the job needs {launch.nodes} nodes")
        if not image_of(launch.environment, self.config.image):
            raise LaunchRejected("neither the job nor the target names an image")
        with _exclusive_launch(launch.key):
            existing = self._find_before_launch(launch.key)
            with self._engine_api() as api:
                container = existing or self._create(api, launch)
                if container["State"] not in ("running", "paused"):
                    self._start(api, launch, container)
        if launch.url:
            self._agents.connect(self._engine, launch.key, launch.url)
        return Handle(launch.key)

    def poll(self, handles: Sequence[Handle]) -> list[Observation]:
        try:
            with self._engine_api() as api:
                containers = {
                    container["Labels"][_LABEL]: container for container in _list_containers(api)
                }
                return [self._observe(api, handle, containers.get(handle)) for handle in handles]
        except TargetUnreachable as error:
            return [Observation(phase=Phase.SILENT, reason=str(error)) for _ in handles]

    def cancel(self, handle: Handle) -> None:
        with self._engine_api() as api:
            container = self._find(api, handle)
            if container is None or self._observe(api, handle, container).phase is Phase.EXITED:
                return
            show_lease(self._lease)
            if container["State"] == "paused":  # a paused runner cannot act on it
                with suppress(APIError):  # another caller was faster
                    api.unpause(container["Id"])
            try:
                if container["State"] not in ("running", "paused"):
                    raise TargetUnreachable("the container is not running")
                self._agents.get(self._engine, handle).request("cancel", key=handle, timeout=5.0)
            except TargetUnreachable:
                # the next answer of the server stops the runner, or the next runner sees the file
                api.put_archive(container["Id"], LAUNCHES, pack_tar({f"{handle}/cancel": b""}))
                api.start(container["Id"])
                self._agents.reconnect(self._engine, handle)

    def forget(self, handle: Handle) -> None:
        self._agents.release(self._engine, handle)
        with self._engine_api() as api:
            container = self._find(api, handle)
            if container is not None:
                show_lease(self._lease)
                with suppress(NotFound):
                    api.remove_container(container["Id"], force=True, v=True)

    def diagnose(self, handle: Handle) -> str:
        with self._engine_api() as api:
            container = self._find(api, handle)
            if container is None:
                return "the engine has no container for this launch"
            state = cast("dict[str, Any]", api.inspect_container(container["Id"]))["State"]
            content = cast(bytes, api.logs(container["Id"], tail=50))
            logs = content.decode("utf-8", "replace").strip()
            summary = state.get("Error") or f"the container is {state['Status']}"
            return f"{summary}: {logs[-1500:]}" if logs else summary

    def open_exec(self, handle: Handle, node: int) -> socket.socket:
        return self._agents.get(self._engine, handle).open_channel({"to": "exec", "key": handle})

    def environments(self) -> list[dict[str, Any]]:
        with self._engine_api() as api:
            return built_images(api)

    def remove_environment(self, digest: str) -> bool:
        with self._engine_api() as api:
            return remove_built_images(api, digest)

    def release(self) -> None:
        """Close the links to containers that have ended. Another target may use the same engine."""
        keys = self._agents.launches(self._engine)
        observations = self.poll([Handle(key) for key in keys])
        for key, observation in zip(keys, observations, strict=True):
            if observation.phase in (Phase.EXITED, Phase.DEAD, Phase.GONE):
                self._agents.release(self._engine, key)

    # -- containers

    def _check_network(self, api: Any) -> None:
        name = self.config.network
        if name is None or name in _BUILTIN_NETWORKS or name.startswith("container:"):
            return
        networks = {network["Name"]: network["Id"] for network in api.networks()}
        if name not in networks and not any(
            network_id.startswith(name) for network_id in networks.values()
        ):
            names = ", ".join(sorted(networks))
            raise TargetUnreachable(f"the engine has no network {name!r}; it has {names}")

    def _find_before_launch(self, key: str) -> dict[str, Any] | None:
        """Return the existing container. Raise NothingStarted if the engine does not answer."""
        try:
            with self._engine_api() as api:
                return self._find(api, key)
        except TargetUnreachable as error:
            raise NothingStarted(str(error)) from None

    def _find(self, api: Any, key: str) -> dict[str, Any] | None:
        return next(iter(_list_containers(api, f"{_LABEL}={key}")), None)

    def _create(self, api: Any, launch: Launch) -> dict[str, Any]:
        plan = self.plan(launch)
        self._images.ensure(self._engine, plan["image"], launch)
        host_fields = {name: plan.pop(name) for name in _HOST_CONFIG_FIELDS if name in plan}
        if host_fields["nano_cpus"] > self._clients.cpu_count(self._engine) * 1e9:
            del host_fields["nano_cpus"]  # no limit: the engine refuses more than it has
        if gpus := plan.pop("gpus", None):
            host_fields["device_requests"] = [gpu_request(api.info(), gpus)]
        binds = [f"{volume}:{path}" for volume, path in plan.pop("volumes").items()]
        host_config = api.create_host_config(binds=binds, **host_fields)
        if cache := user_cache(api.inspect_image(plan["image"])):
            plan["labels"] |= {_CACHE_LABEL: cache}
            plan["environment"] = {"UV_CACHE_DIR": f"{cache}/uv"}  # the user may have no home
        show_lease(self._lease)
        try:
            api.create_container(host_config=host_config, working_dir="/", **plan)
        except APIError as error:
            if not _mentions(error, *_NAME_TAKEN_ERRORS):  # a concurrent launch has created it
                raise _rejection(error, plan["image"]) from error
        deadline = time.monotonic() + _CREATE_SECONDS
        # the name may be taken before the container can be listed
        while (container := self._find(api, launch.key)) is None:
            if time.monotonic() > deadline:
                raise TargetUnreachable("the container disappeared while it was created")
            time.sleep(0.02)
        return container

    def _start(self, api: Any, launch: Launch, container: dict[str, Any]) -> None:
        was_started = container["State"] not in ("created", "configured", "initialized")
        if was_started and self._observe(api, Handle(launch.key), container).phase is Phase.EXITED:
            return
        image = image_of(launch.environment, self.config.image)
        cache = container["Labels"].get(_CACHE_LABEL, CACHE)
        if cache != CACHE:
            folders = "compiled", os.path.relpath(cache, CACHE)
            api.put_archive(container["Id"], CACHE, pack_tar({}, folders=folders))
        api.put_archive(
            container["Id"],
            "/",
            pack_payload(launch, image, cache=cache, linger=self.config.linger),
        )
        if build_log := self._images.pop_build_log(launch):
            log_path = f"retarget/launches/{launch.key}/streams/prepare"
            api.put_archive(container["Id"], "/", pack_tar({log_path: build_log.encode()}))
        if needs_packages(launch) or launch.required_packages:
            copy_uv(api, container["Id"])
        show_lease(self._lease)
        try:
            api.start(container["Id"])
        except APIError as error:
            with suppress(DockerException):
                api.remove_container(container["Id"], force=True)
            raise _rejection(error, image) from error

    def _observe(self, api: Any, handle: str, container: dict[str, Any] | None) -> Observation:
        if container is None or container["State"] in ("removing", "dead"):
            return Observation(phase=Phase.GONE)
        if container["State"] in ("running", "paused", "restarting"):
            return Observation(phase=Phase.RUNNING)
        self._agents.release(self._engine, handle)
        return read_exit(api, container["Id"], handle)

    @contextmanager
    def _engine_api(self) -> Generator[Any]:
        """Yield the client of the engine. Its errors are raised as TargetUnreachable."""
        try:
            api = self._clients.get(self._engine)
        except (DockerException, OSError, ValueError) as error:
            raise self._unreachable(error) from error
        try:
            yield api
        except APIError as error:
            raise TargetUnreachable(f"the engine reported: {error.explanation or error}") from error
        except (DockerException, requests.RequestException, ConnectionError) as error:
            raise self._unreachable(error) from error
        except OSError as error:
            raise TargetUnreachable(f"the server failed, not the engine: {error}") from error

    def _unreachable(self, error: Exception) -> TargetUnreachable:
        reason = self._clients.explain(self._engine, error)
        return TargetUnreachable(
            f"the container engine at {self._engine} does not answer: {reason}; check that it "
            "runs and that the server's user may use it"
        )


_HOST_CONFIG_FIELDS = ("nano_cpus", "mem_limit", "memswap_limit", "network_mode")


@contextmanager
def _exclusive_launch(key: str) -> Generator[None]:
    """Keep other processes and threads of this machine from launching the same key.

    Files are not copied into a container atomically: another launch could read half of one.
    """
    path = runner_zipapp().parent / f"{blake2b(key.encode(), digest_size=1).hexdigest()}.lock"
    with path.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _list_containers(api: Any, label: str = _LABEL) -> list[dict[str, Any]]:
    return api.containers(all=True, filters={"label": [label]})


def _rejection(error: APIError, image: str) -> LaunchRejected:
    message = str(error.explanation or error)
    if _mentions(error, *_NO_COMMAND_ERRORS):
        return LaunchRejected(
            f"image {image!r} has no Python for the runner: {message}; use an image with Python "
            "3.8 or newer, or set its path with --python"
        )
    return LaunchRejected(f"no container could be created from image {image!r}: {message}")


def _mentions(error: APIError, *phrases: str) -> bool:
    message = str(error.explanation or error).lower()
    return any(phrase in message for phrase in phrases)


def _engine_version(version: dict[str, Any]) -> str:
    engine = str((version.get("Components") or [{"Name": "Docker"}])[0]["Name"])
    kind = "podman" if "podman" in engine.lower() else "docker"
    return f"{kind} {version['Version']}"
