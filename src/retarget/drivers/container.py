"""One container for each run, made for it and removed after it, by Docker or Podman."""

import fcntl
import io
import json
import os
import tarfile
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

import requests
from docker.errors import APIError, DockerException, NotFound
from docker.utils import parse_host
from pydantic import BaseModel, ConfigDict, Field, field_validator

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
from retarget.drivers._engine import (
    Way,
    cause,
    client,
    counted_anew,
    gives_gpus,
    gpu_request,
    tar,
    usual_engine,
)
from retarget.drivers._host import Host, together
from retarget.drivers._images import BEGUN, ENVIRONMENT, have_image, what_was_said
from retarget.drivers._scratch import scratch
from retarget.drivers._tunnel import last_words
from retarget.drivers.local import uv_here
from retarget.runner.machine import cards
from retarget.runner.package import keep_zipapp

_LABEL = "retarget.launch"
_CACHE_LABEL = "retarget.cache"
_ROOT = "/retarget"
_CACHE = f"{_ROOT}/cache"  # a volume that the containers of an engine share
_RUNNER = f"{_ROOT}/runner.pyz"
_DOOR = "server"
_FIRST_PORT, _PORTS = 20_000, 12_000  # below what systems give out by themselves
_GONE = ("already in use", "no such container", "no container with name or id")
_MAKING = 10.0  # seconds that another may take to make a container whose name it has
_NO_COMMAND = ("executable file not found", "no such file or directory")


class Config(BaseModel):
    model_config = ConfigDict(extra="forbid")

    engine: str | None = Field(
        None,
        description="Where it listens: unix:///PATH, tcp://HOST:PORT or ssh://USER@HOST; "
        "default: DOCKER_HOST, or the Docker or Podman of this machine",
    )
    image: str | None = Field(None, description="What jobs run in that name no image of their own")
    cpus: float | None = Field(None, gt=0, description="Cores to give out; default: all it has")
    memory: int | None = Field(
        None,
        gt=0,
        description="Memory to give out; default: all it has",
        json_schema_extra={"unit": "bytes"},
    )
    network: str | None = Field(None, description="bridge, host, none or one by name")
    python: str = Field("python3", description="A Python in the images, 3.8 or newer")
    linger: float = Field(600, ge=0, description="Seconds a runner waits for a lost server")

    @field_validator("engine")
    @classmethod
    def _a_place(cls, engine: str | None) -> str | None:
        if engine is None:
            return None
        if not engine.startswith(("unix:///", "tcp://", "ssh://")):
            raise ValueError(f"{engine!r} is not unix:///PATH, tcp://HOST:PORT or ssh://USER@HOST")
        try:
            parse_host(engine)
        except (ValueError, DockerException) as error:
            raise ValueError(f"{engine!r} is no address of an engine: {error}") from None
        return engine

    @field_validator("image")
    @classmethod
    def _a_name(cls, image: str | None) -> str | None:
        if image is not None and any(each.isspace() for each in image):
            raise ValueError(f"{image!r} is no name of an image, such as python:3.12-slim")
        return image


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
        if not self._image_of(environment):
            raise Invalid(
                "environment: image is missing: this target has none of its own; give one with "
                "--image, or to the target",
                field="environment",
            )

    def plan(self, launch: Launch) -> dict[str, Any]:
        image = self._image_of(launch.environment)
        memory = launch.memory or self.config.memory
        request: dict[str, Any] = {
            "name": f"retarget-{launch.key}",
            "image": image,
            "entrypoint": self._runner(image),
            "command": ["run", f"{_ROOT}/launches/{launch.key}"],
            "labels": {_LABEL: launch.key, "retarget.job": launch.name},
            "nano_cpus": int(launch.cpus * 1e9),
            "mem_limit": memory,
            "memswap_limit": memory,
            "network_mode": self.config.network,
            "volumes": {"retarget-cache": _CACHE},
            "gpus": list(launch.shares[0].gpus) if launch.shares else [],
        }
        return {name: value for name, value in request.items() if value not in (None, [])}

    def launch(self, launch: Launch) -> Handle:
        if not launch.command:
            raise LaunchRejected("the command is empty")
        if launch.nodes != 1:
            raise LaunchRejected(f"a run is one container; the job wants {launch.nodes} nodes")
        if not self._image_of(launch.environment):
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
                launches = f"{_ROOT}/launches"
                api.put_archive(found["Id"], launches, tar({f"{handle}/cancel": b""}))
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
            found = cast("list[dict[str, Any]]", api.images(filters={"label": [ENVIRONMENT]}))
        return [_built(each) for each in found if _is_named_as_labeled(each)]

    def remove_environment(self, digest: str) -> bool:
        with self._asking() as api:
            return any([_remove_image(api, name) for name in _image_names(digest)])

    def release(self) -> None:
        """Let go of the containers that have ended. Another target may have the same engine."""
        with _turn:
            mine = [key for _, engine, key in _hosts if engine == self._engine]
        seen = self.poll([Handle(key) for key in mine])
        for key, each in zip(mine, seen, strict=True):
            if each.phase in (Phase.EXITED, Phase.DEAD, Phase.GONE):
                self._let_go(key)

    # -- containers

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
        if cache := _own_cache(api.inspect_image(plan["image"])):
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
        cache = found["Labels"].get(_CACHE_LABEL, _CACHE)
        if cache != _CACHE:
            folders = "compiled", os.path.relpath(cache, _CACHE)
            api.put_archive(found["Id"], _CACHE, tar({}, folders=folders))
        api.put_archive(found["Id"], "/", self._brings(launch, cache))
        if said := what_was_said(launch):
            log = f"retarget/launches/{launch.key}/streams/prepare"
            api.put_archive(found["Id"], "/", tar({log: said.encode()}))
        if launch.environment.kind != "user" and (
            launch.environment.pip or launch.environment.conda
        ):
            self._bring_uv(api, found["Id"])
        try:
            api.start(found["Id"])
        except APIError as error:
            image = self._image_of(launch.environment)
            with suppress(DockerException):
                api.remove_container(found["Id"], force=True)
            raise _rejection(error, image) from error

    def _brings(self, launch: Launch, cache: str) -> bytes:
        """Return what is laid into the container before it starts."""
        told: dict[str, Any] = {
            "launch": self._told(launch),
            "node": {
                "cache": cache,
                "blobs": [],
                "runner": _RUNNER,
                "python": None,
                "uv": f"{_CACHE}/bin/uv",
                "conda": None,
                "linger": self.config.linger,
            },
            "contact": {
                "url": f"http://127.0.0.1:{_port(launch.key)}" if launch.url else "",
                "door": f"{_ROOT}/doors/{_DOOR}" if launch.url else None,
                "token": launch.token,
                "path": f"/api/attempts/{launch.key}",
            },
        }
        return tar(
            {
                "retarget/runner.pyz": _zipapp().read_bytes(),
                f"retarget/doors/{_DOOR}": json.dumps({"port": _port(launch.key)}).encode(),
                f"retarget/launches/{launch.key}/launch.json": json.dumps(told).encode(),
            }
        )

    def _runner(self, image: str) -> list[str]:
        """Return the command of a runner in an image.

        Official images of Python come without compiled modules: what one container has compiled,
        the next ones of that image need not compile again.
        """
        compiled = f"{_CACHE}/compiled/{blake2b(image.encode(), digest_size=8).hexdigest()}"
        return [self.config.python, "-X", f"pycache_prefix={compiled}", "-I", "-S", _RUNNER]

    def _told(self, launch: Launch) -> dict[str, Any]:
        """Return the launch as one that is in its image already."""
        told = launch.for_runner()
        told["env"] = counted_anew(told["env"], launch.shares[0].gpus if launch.shares else ())
        environment: dict[str, Any] = told["environment"]
        packages = environment["pip"] or environment["conda"]
        if environment["kind"] != "user" and packages:
            image = self._image_of(launch.environment)
            text = f"{image} {launch.environment.digest}"
            digest = blake2b(text.encode(), digest_size=16).hexdigest()
            told["environment"] = environment | {"kind": "system", "image": None, "digest": digest}
        elif environment["kind"] == "image":
            told["environment"] = environment | {"kind": "user", "python": None, "image": None}
        return told

    def _bring_uv(self, api: Any, container: str) -> None:
        uv = uv_here()
        if uv is None:
            return  # the runner says so
        try:
            api.get_archive(container, f"{_CACHE}/bin/uv")
        except NotFound:
            content = {"bin/uv": Path(uv).read_bytes()}
            api.put_archive(container, _CACHE, tar(content, mode=0o755))

    def _image_of(self, environment: Environment) -> str:
        """Name the image that a job is in; empty where there is none. One is built where it must.

        Packages are put into the cache, not on top of it.
        """
        if environment.dockerfile is None:
            return environment.image or self.config.image or ""
        plain, base = _image_names(environment.digest or "")
        return base if environment.pip or environment.conda else plain

    def _observe(self, api: Any, handle: str, found: dict[str, Any] | None) -> Observation:
        if found is None or found["State"] in ("removing", "dead"):
            return Observation(phase=Phase.GONE)
        if found["State"] in ("running", "paused", "restarting"):
            return Observation(phase=Phase.RUNNING)
        self._let_go(handle)
        return _ending(api, found["Id"], f"{_ROOT}/launches/{handle}/done")

    # -- the way to what is in them

    def _link(self, key: str, url: str) -> None:
        """Have an agent in the container, through which its runner reaches the server."""
        _urls[self._engine] = url
        host = self._host(key)
        host.lead_to(url, _DOOR)
        with suppress(TargetUnreachable):  # it is tried whenever there is a link
            together([host.asking("door", name=_DOOR, patience=10.0)])

    def _host(self, key: str) -> Host:
        identity = os.getpid(), self._engine, key
        with _turn:
            if identity not in _hosts:
                command = ["agent", _ROOT]
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
    place = _zipapp().parent / f"{blake2b(key.encode(), digest_size=1).hexdigest()}.lock"
    with place.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _ours(api: Any, label: str = _LABEL) -> list[dict[str, Any]]:
    return api.containers(all=True, filters={"label": [label]})


def _ending(api: Any, container: str, path: str) -> Observation:
    """Return how a container that has stopped left its launch."""
    try:
        content, _ = api.get_archive(container, path)
        with tarfile.open(fileobj=io.BytesIO(b"".join(content))) as archive:
            file = archive.extractfile(archive.getmembers()[0])
            ending: dict[str, Any] = json.loads(file.read().splitlines()[-1]) if file else {}
        code, reason = ending["exit_code"], ending["reason"]
        return Observation(phase=Phase.EXITED, exit_code=code, reason=reason)
    except NotFound:
        return Observation(phase=Phase.DEAD)
    except (ValueError, LookupError, TypeError, tarfile.TarError):
        return Observation(phase=Phase.EXITED, reason="what it wrote of its end cannot be read")


@lru_cache(maxsize=64)
def _cores(engine: str) -> int:
    return int(client(engine).info()["NCPU"])


def _image_names(digest: str) -> tuple[str, str]:
    """Return what images of an environment are called: as they are, and below packages."""
    return f"retarget-{digest}", f"retarget-{digest}-base"


def _built(image: dict[str, Any]) -> dict[str, Any]:
    labels: dict[str, str] = image["Labels"]
    begun = float(labels[BEGUN])
    return {
        "digest": labels[ENVIRONMENT],
        "how": "Dockerfile",
        "size": image["Size"],
        "seconds": max(0.0, round(image["Created"] - begun, 3)),
        "built": begun,
        "python": None,
    }


def _is_named_as_labeled(image: dict[str, Any]) -> bool:
    """Tell an image that was built for an environment from those that others made of it."""
    tags: list[str] = image.get("RepoTags") or []
    names = {tag.rpartition(":")[0].rpartition("/")[2] for tag in tags}
    return not names.isdisjoint(_image_names(image["Labels"][ENVIRONMENT]))


def _remove_image(api: Any, name: str) -> bool:
    """Have the engine remove an image; False when there is none, Conflict while it is used."""
    try:
        api.remove_image(name, force=False)
    except NotFound:
        return False
    except APIError as error:
        if error.status_code == 409:
            raise Conflict(f"image {name[:21]}… is used by a container; try again later") from error
        raise
    return True


def _own_cache(image: dict[str, Any]) -> str | None:
    """Return where in the volume the user of an image has what no other may change; root: None."""
    config: dict[str, Any] = image.get("Config") or {}
    user = str(config.get("User") or "").partition(":")[0]
    if user in ("", "0", "root"):
        return None
    text = user if user.isdecimal() else f"{user} {image['Id']}"  # a name is another one elsewhere
    return f"{_CACHE}/users/{blake2b(text.encode(), digest_size=8).hexdigest()}"


def _port(key: str) -> int:
    """Return the port of a container's door: its own, for it may share the machine's network."""
    number = int.from_bytes(blake2b(f"door {key}".encode(), digest_size=4).digest())
    return _FIRST_PORT + number % _PORTS


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


def _zipapp() -> Path:
    return keep_zipapp(scratch())
