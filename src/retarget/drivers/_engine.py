"""Container engines, and how what is in a container is reached: over the engine's connection."""

import asyncio
import io
import os
import socket
import struct
import tarfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import docker
import requests
from docker.errors import APIError, DockerException
from docker.types import DeviceRequest

from retarget.core.errors import TargetUnreachable
from retarget.drivers._tunnel import tunnel

_SOCKETS = (
    "/var/run/docker.sock",
    "{run}/docker.sock",
    "/run/podman/podman.sock",
    "{run}/podman/podman.sock",
)
_PATIENCE = 60  # seconds an engine may take for one thing
_HEAD = struct.Struct(">BxxxI")
_OUTPUT = 1
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_CDI_KIND = "nvidia.com/gpu"  # what GPUs are called by engines that give them without a runtime


class Way:
    """Starts an agent in a container that runs."""

    def __init__(self, client: Callable[[], Any], container: str, command: list[str]) -> None:
        self._client = client
        self._container = container
        self._command = command

    async def enter(self) -> "Pipe":
        starting = asyncio.ensure_future(asyncio.to_thread(self._exec))
        try:
            opened = await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(_close)
            raise
        except APIError as error:
            raise TargetUnreachable(str(error.explanation or error)) from error
        except (DockerException, requests.RequestException, OSError) as error:
            raise TargetUnreachable(f"the engine does not answer: {error}") from error
        try:
            reader, writer = await asyncio.open_connection(sock=opened)
        except BaseException:
            opened.close()
            raise
        return Pipe(reader, writer)

    def _exec(self) -> socket.socket:
        api = self._client()
        runner: list[str] = api.inspect_container(self._container)["Config"]["Entrypoint"]
        made = api.exec_create(self._container, [*runner, *self._command], stdin=True)
        answer: Any = api.exec_start(made["Id"], socket=True)
        raw = getattr(answer, "_sock", answer)
        opened = socket.socket(fileno=socket.dup(raw.fileno()))
        answer.close()
        raw.close()  # the engine's side stays open for the other
        return opened


def _close(started: "asyncio.Future[socket.socket]") -> None:
    """Close what nobody waits for any more."""
    if not started.cancelled() and started.exception() is None:
        started.result().close()


class Pipe:
    """Its output, which the engine mixes with what it says otherwise."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = self
        self.writer = writer
        self._mixed = reader
        self._held = bytearray()
        self._said = bytearray()

    async def readexactly(self, count: int) -> bytes:
        while len(self._held) < count:
            stream, size = _HEAD.unpack(await self._mixed.readexactly(_HEAD.size))
            content = await self._mixed.readexactly(size)
            (self._held if stream == _OUTPUT else self._said).extend(content)
            del self._said[:-4096]
        found = bytes(self._held[:count])
        del self._held[:count]
        return found

    def close(self) -> None:
        self.writer.close()

    async def said(self) -> str:
        return self._said.decode("utf-8", "replace")


def usual_engine() -> str:
    """Return where the engine of this machine listens, Docker's before Podman's."""
    if os.environ.get("DOCKER_HOST"):
        return os.environ["DOCKER_HOST"]
    run = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    for path in _SOCKETS:
        if os.path.exists(path.format(run=run)):
            return f"unix://{path.format(run=run)}"
    return f"unix://{_SOCKETS[0]}"


_clients: dict[tuple[int, str], Any] = {}


def client(engine: str) -> Any:
    """Return the SDK's client for an engine, with its open connections."""
    identity = os.getpid(), engine
    if identity not in _clients:
        if engine.startswith("unix://"):
            with socket.socket(socket.AF_UNIX) as probe:  # the SDK leaves what fails open
                probe.connect(engine.removeprefix("unix://"))
        at = f"unix://{tunnel(engine)}" if engine.startswith("ssh://") else engine
        _clients[identity] = docker.APIClient(base_url=at, timeout=_PATIENCE, version="auto")
    return _clients[identity]


def gives_gpus(told: dict[str, Any]) -> bool:
    """Tell whether an engine can give GPUs to containers: by NVIDIA's runtime, or by CDI."""
    specs = (path for folder in told.get("CDISpecDirs") or () for path in Path(folder).glob("*"))
    return "nvidia" in told.get("Runtimes", {}) or any(_names_gpus(path) for path in specs)


def _names_gpus(path: Path) -> bool:
    try:
        return _CDI_KIND in path.read_text("utf-8", "replace")
    except OSError:
        return False


def gpu_request(told: dict[str, Any], cards: list[str]) -> DeviceRequest:
    if "nvidia" in told.get("Runtimes", {}):
        return DeviceRequest(device_ids=cards, capabilities=[["gpu"]])
    return DeviceRequest(driver="cdi", device_ids=[f"{_CDI_KIND}={card}" for card in cards])


def counted_anew(env: dict[str, str], gpus: Sequence[str]) -> dict[str, str]:
    """Return the variables with the GPUs as a container counts those that it is given."""
    if not gpus or env.get(_VISIBLE) != ",".join(gpus):
        return env
    return env | {_VISIBLE: ",".join(str(number) for number in range(len(gpus)))}


def tar(files: dict[str, bytes], *, folders: Sequence[str] = (), mode: int = 0o666) -> bytes:
    """Pack files, folders and the folders above them, for whoever the image's user is."""
    packed, made = io.BytesIO(), set[str]()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in [*folders, *files]:
            above = [str(each) for each in Path(name).parents][:-1]
            for folder in [*reversed(above), *([name] if name in folders else [])]:
                if folder not in made:
                    made.add(folder)
                    archive.addfile(_entry(folder, tarfile.DIRTYPE, 0o777))
            if name in files:
                entry = _entry(name, tarfile.REGTYPE, mode)
                entry.size = len(files[name])
                archive.addfile(entry, io.BytesIO(files[name]))
    return packed.getvalue()


def _entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.mtime = kind, mode, int(time.time())
    return entry


def cause(error: BaseException) -> str:
    """Return the words at the root of an error that was wrapped many times."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__ or error
    return getattr(error, "strerror", None) or str(error)
