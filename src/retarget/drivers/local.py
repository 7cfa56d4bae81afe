"""Processes on the machine of the server."""

import errno
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from retarget.core.driver import ActingLease, Handle, Launch, Observation, show_lease
from retarget.core.environments import Environment
from retarget.core.errors import Conflict, Invalid, LaunchRejected, TargetUnreachable
from retarget.core.links import Links
from retarget.core.targets import Gpu, Inventory, Node
from retarget.core.units import show_memory
from retarget.drivers._channels import CondaChannels, has_rattler
from retarget.runner.host import Host, NoScript, describe_engine
from retarget.runner.package import build_zipapp

MIN_PYTHON = (3, 8)
NO_ENGINE = (
    "environment: image needs a container engine, but none answers on this target; install Docker "
    "or Podman there, or check that it runs and that the jobs' user may use it"
)


class Config(BaseModel):
    model_config = ConfigDict(extra="forbid")

    root: Path = Field(description="Folder for jobs, built environments and caches")
    blobs: tuple[Path, ...] = Field((), description="Folders that already hold blobs")
    cpus: float | None = Field(None, gt=0, description="CPUs to use; default: all")
    memory: int | None = Field(
        None,
        gt=0,
        description="Memory to use; default: all",
        json_schema_extra={"unit": "bytes"},
    )
    linger: float = Field(
        600, ge=0, description="Seconds that a runner with a result waits for the server"
    )

    @field_validator("root")
    @classmethod
    def _is_absolute(cls, root: Path) -> Path:
        # a relative path would depend on the folder in which the server was started
        if not root.is_absolute() or not _is_valid_path(root):
            raise ValueError("must be an absolute path, such as /srv/retarget")
        return root


def _is_valid_path(path: Path) -> bool:
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


class Driver:
    """Runs launches on this machine, from this process."""

    Config = Config

    def __init__(self, config: Config, links: Links) -> None:
        self.config = config
        self._links = links
        self._lease: ActingLease | None = None

    def act_under(self, lease: ActingLease) -> None:
        self._lease = lease

    def is_local(self) -> bool:
        return True

    def check(self) -> Inventory:
        try:
            host = self._host()
            host.prepare()
        except OSError as error:
            raise TargetUnreachable(
                f"cannot create {self.config.root}: {error.strerror}; check its owner and mode"
            ) from error
        inventory = host.inventory()
        details = {"python": inventory["python"], "disk free": show_memory(inventory["free"])}
        details["engine"] = inventory["engine"] or "none"
        node = Node(
            name=inventory["name"],
            cpus=self.config.cpus or inventory["cpus"],
            memory=self.config.memory or inventory["memory"],
            gpus=tuple(Gpu.model_validate(gpu) for gpu in inventory["gpus"]),
        )
        return Inventory(nodes=(node,), details=details)

    def validate_environment(self, environment: Environment) -> None:
        if environment.kind == "user" and environment.python:
            check_interpreter(environment.python)
        if environment.kind == "image" and not describe_engine():
            raise Invalid(NO_ENGINE, field="environment")

    def conda_obstacle(self, environment: Environment) -> str:
        if environment.kind == "image":
            return ""
        return self._links.get(CondaChannels).obstacle(environment.channels)

    def plan(self, launch: Launch) -> dict[str, Any]:
        folder = str(self.config.root / "launches" / launch.key)
        return {
            "folder": folder,
            "command": [sys.executable, "-I", "-S", "runner.pyz", "run", folder],
        }

    def launch(self, launch: Launch) -> Handle:
        if not launch.command:
            raise LaunchRejected("the command is empty")
        if launch.nodes != 1:
            raise LaunchRejected(f"this target has one node; the job needs {launch.nodes} nodes")
        node = self._node(launch.environment)
        launch_file = {"launch": launch.for_runner(), "node": node, "contact": launch.contact()}
        with _refusals():
            self._host().launch(launch.key, launch_file, show_lease(self._lease))
        return Handle(launch.key)

    def poll(self, handles: Sequence[Handle]) -> list[Observation]:
        return [Observation.model_validate(row) for row in self._host().poll([*handles])]

    def cancel(self, handle: Handle) -> None:
        with _refusals():
            self._host().cancel(handle, show_lease(self._lease))

    def forget(self, handle: Handle) -> None:
        with _refusals():
            self._host().forget(handle, show_lease(self._lease))

    def diagnose(self, handle: Handle) -> str:
        return self._host().diagnose(handle)

    def open_exec(self, handle: Handle, node: int) -> socket.socket:
        try:
            return self._host().open_exec(handle)
        except NoScript as error:
            raise Conflict(str(error)) from None

    def environments(self) -> list[dict[str, Any]]:
        return self._host().environments()

    def remove_environment(self, digest: str) -> bool:
        result = self._host().remove_environment(digest)
        if result == "used":
            raise Conflict(f"environment {digest[:12]} is used by a running job; try again later")
        return result == "removed"

    def _host(self) -> Host:
        return Host(str(self.config.root), str(_zipapp(self.config.root)))

    def _node(self, environment: Environment) -> dict[str, Any]:
        """Return what this machine offers to a runner."""
        root = self.config.root
        return {
            "cache": str(root),
            "blobs": [str(folder) for folder in self.config.blobs],
            "runner": str(_zipapp(root)),
            "python": sys.executable,
            "uv": bundled_uv(),
            "conda": sys.executable if environment.conda and has_rattler() else None,
            "linger": self.config.linger,
        }


@contextmanager
def _refusals() -> Generator[None]:
    """Raise TargetUnreachable if this host refuses the request because of another server."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ESTALE, errno.EAGAIN):
            raise
        raise TargetUnreachable(error.strerror or str(error)) from None


def check_interpreter(python: str) -> None:
    """Raise Invalid unless `python` is the path of a Python that is new enough."""
    path = Path(python)
    if not path.is_absolute():
        raise Invalid(
            f"python: {python!r} is not an absolute path such as /usr/bin/python3",
            field="python",
        )
    if not os.path.exists(path):  # unlike Path.exists, it accepts a path of any length
        raise Invalid(f"python: {python} does not exist on this machine", field="python")
    status = path.stat()
    if not path.is_file() or not os.access(path, os.X_OK):
        raise Invalid(f"python: {python} is not an executable file", field="python")
    version = _version(python, status.st_mtime_ns, status.st_size)
    if version is None:
        raise Invalid(f"python: {python} does not behave like a Python interpreter", field="python")
    if version < MIN_PYTHON:
        raise Invalid(
            f"python: {python} is Python {version[0]}.{version[1]}; 3.8 or newer is needed",
            field="python",
        )


@lru_cache(maxsize=256)
def _version(python: str, _mtime_ns: int, _size: int) -> tuple[int, int] | None:
    code = "import sys; sys.stdout.write('%d %d' % sys.version_info[:2])"
    try:
        answer = subprocess.run(
            [python, "-c", code], capture_output=True, check=True, timeout=20, text=True
        )
        major, minor = answer.stdout.split()
        return int(major), int(minor)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


@lru_cache(maxsize=8)
def _zipapp(root: Path) -> Path:
    return build_zipapp(root / "runners")


@lru_cache(maxsize=1)
def bundled_uv() -> str | None:
    """Return the path of uv, which comes with this package."""
    from uv import find_uv_bin

    try:
        return find_uv_bin()
    except FileNotFoundError:
        return shutil.which("uv")
