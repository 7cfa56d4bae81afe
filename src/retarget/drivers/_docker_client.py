"""Clients of container engines, and the transport to an agent in a container."""

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
from retarget.core.links import Links
from retarget.drivers._docker_over_ssh import DockerTunnels

_SOCKETS = (
    "/var/run/docker.sock",
    "{run}/docker.sock",
    "/run/podman/podman.sock",
    "{run}/podman/podman.sock",
)
_TIMEOUT_SECONDS = 60  # how long an engine may take for one request
_FRAME_HEADER = struct.Struct(">BxxxI")
_STDOUT = 1
_VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
_CDI_KIND = "nvidia.com/gpu"  # the CDI name of GPUs, for engines without the NVIDIA runtime


class DockerExecTransport:
    """Starts an agent in a running container."""

    def __init__(self, client: Callable[[], Any], container: str, command: list[str]) -> None:
        self._client = client
        self._container = container
        self._command = command

    async def open(self) -> "ExecPipe":
        starting = asyncio.ensure_future(asyncio.to_thread(self._exec))
        try:
            connection = await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(_close)
            raise
        except APIError as error:
            raise TargetUnreachable(str(error.explanation or error)) from error
        except (DockerException, requests.RequestException, OSError) as error:
            raise TargetUnreachable(f"the engine does not answer: {error}") from error
        try:
            reader, writer = await asyncio.open_connection(sock=connection)
        except BaseException:
            connection.close()
            raise
        return ExecPipe(reader, writer)

    def _exec(self) -> socket.socket:
        api = self._client()
        runner_command: list[str] = api.inspect_container(self._container)["Config"]["Entrypoint"]
        execution = api.exec_create(self._container, [*runner_command, *self._command], stdin=True)
        answer: Any = api.exec_start(execution["Id"], socket=True)
        raw = getattr(answer, "_sock", answer)
        connection = socket.socket(fileno=socket.dup(raw.fileno()))
        answer.close()
        raw.close()  # the duplicate keeps the connection open
        return connection


def _close(started: "asyncio.Future[socket.socket]") -> None:
    """Close a connection that nobody waits for any more."""
    if not started.cancelled() and started.exception() is None:
        started.result().close()


class ExecPipe:
    """The agent's input and output. The engine multiplexes stdout and stderr into frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = self
        self.writer = writer
        self._frames = reader
        self._stdout = bytearray()
        self._stderr = bytearray()

    async def readexactly(self, count: int) -> bytes:
        while len(self._stdout) < count:
            stream, size = _FRAME_HEADER.unpack(await self._frames.readexactly(_FRAME_HEADER.size))
            content = await self._frames.readexactly(size)
            (self._stdout if stream == _STDOUT else self._stderr).extend(content)
            del self._stderr[:-4096]
        content = bytes(self._stdout[:count])
        del self._stdout[:count]
        return content

    def close(self) -> None:
        self.writer.close()

    async def read_stderr(self) -> str:
        return self._stderr.decode("utf-8", "replace")


def default_engine() -> str:
    """Return the address of the engine of this machine: Docker's if there is one, else Podman's."""
    if os.environ.get("DOCKER_HOST"):
        return os.environ["DOCKER_HOST"]
    run = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    for path in _SOCKETS:
        if os.path.exists(path.format(run=run)):
            return f"unix://{path.format(run=run)}"
    return f"unix://{_SOCKETS[0]}"


class DockerClients:
    """The SDK's client of each engine, with its open connections."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._clients: dict[str, Any] = {}
        self._cpu_counts: dict[str, int] = {}

    def get(self, engine: str) -> Any:
        """Return the client of an engine."""
        if engine not in self._clients:
            self._clients[engine] = docker.APIClient(
                base_url=self._base_url(engine), timeout=_TIMEOUT_SECONDS, version="auto"
            )
        return self._clients[engine]

    def cpu_count(self, engine: str) -> int:
        """Return how many CPUs an engine has."""
        if engine not in self._cpu_counts:
            self._cpu_counts[engine] = int(self.get(engine).info()["NCPU"])
        return self._cpu_counts[engine]

    def explain(self, engine: str, error: Exception) -> str:
        """Say why an engine does not answer."""
        return self._links.get(DockerTunnels).last_error(engine) or root_cause(error)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def _base_url(self, engine: str) -> str:
        if engine.startswith("unix://"):
            with socket.socket(socket.AF_UNIX) as probe:
                # the SDK leaks a socket that fails to connect
                probe.connect(engine.removeprefix("unix://"))
        if engine.startswith("ssh://"):
            return f"unix://{self._links.get(DockerTunnels).socket(engine)}"
        return engine


def supports_gpus(info: dict[str, Any]) -> bool:
    """Return whether an engine can give GPUs to containers, with the NVIDIA runtime or CDI."""
    specs = (path for folder in info.get("CDISpecDirs") or () for path in Path(folder).glob("*"))
    return "nvidia" in info.get("Runtimes", {}) or any(_names_gpus(path) for path in specs)


def _names_gpus(path: Path) -> bool:
    try:
        return _CDI_KIND in path.read_text("utf-8", "replace")
    except OSError:
        return False


def gpu_request(info: dict[str, Any], cards: list[str]) -> DeviceRequest:
    if "nvidia" in info.get("Runtimes", {}):
        return DeviceRequest(device_ids=cards, capabilities=[["gpu"]])
    return DeviceRequest(driver="cdi", device_ids=[f"{_CDI_KIND}={card}" for card in cards])


def renumber_gpus(variables: dict[str, str], gpus: Sequence[str]) -> dict[str, str]:
    """Return the variables with GPUs numbered from 0, as they are inside a container."""
    if not gpus or variables.get(_VISIBLE_GPUS) != ",".join(gpus):
        return variables
    return variables | {_VISIBLE_GPUS: ",".join(str(number) for number in range(len(gpus)))}


def pack_tar(files: dict[str, bytes], *, folders: Sequence[str] = (), mode: int = 0o666) -> bytes:
    """Pack files, folders and their parents so that any user of an image can use them."""
    packed, packed_folders = io.BytesIO(), set[str]()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in [*folders, *files]:
            parents = [str(parent) for parent in Path(name).parents][:-1]
            for folder in [*reversed(parents), *([name] if name in folders else [])]:
                if folder not in packed_folders:
                    packed_folders.add(folder)
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


def root_cause(error: BaseException) -> str:
    """Return the message of the innermost of several wrapped errors."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__ or error
    return getattr(error, "strerror", None) or str(error)
