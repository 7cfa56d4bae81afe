"""Processes on the machine the server runs on."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from retarget.core.driver import Handle, Launch, Observation
from retarget.core.environments import Environment
from retarget.core.errors import Conflict, Invalid, LaunchRejected, TargetUnreachable
from retarget.core.targets import Facts, Gpu, Node
from retarget.core.units import show_memory
from retarget.runner.machine import Machine, engine
from retarget.runner.package import build_zipapp

OLDEST = (3, 8)
NO_ENGINE = (
    "environment: image needs a container engine, and this target has none that answers; install "
    "Docker or Podman there, or see that it runs and that the jobs' user may use it"
)


class Config(BaseModel):
    model_config = ConfigDict(extra="forbid")

    root: Path = Field(description="Folder for the work of jobs, built environments and caches")
    blobs: tuple[Path, ...] = Field((), description="Folders that hold blobs already")
    cpus: float | None = Field(None, gt=0, description="Cores to give out; default: all of them")
    memory: int | None = Field(
        None,
        gt=0,
        description="Bytes to give out; default: all of it",
        json_schema_extra={"unit": "bytes"},
    )
    linger: float = Field(600, ge=0, description="Seconds a runner waits for a lost server")

    @field_validator("root")
    @classmethod
    def _is_absolute(cls, root: Path) -> Path:
        # the server's own folder is no place to begin at, and is another one next time
        if not root.is_absolute() or not _can_be_opened(root):
            raise ValueError("must be an absolute path, such as /srv/retarget")
        return root


def _can_be_opened(path: Path) -> bool:
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


class Driver:
    """Does what there is to do in this process: the machine is this one."""

    Config = Config

    def __init__(self, config: Config) -> None:
        self.config = config

    def check(self) -> Facts:
        try:
            machine = self._machine()
            machine.prepare()
        except OSError as error:
            raise TargetUnreachable(
                f"cannot make {self.config.root}: {error.strerror}; check its owner and mode"
            ) from error
        found = machine.facts()
        details = {"python": found["python"], "disk free": show_memory(found["free"])}
        details["engine"] = found["engine"] or "none"
        node = Node(
            name=found["name"],
            cpus=self.config.cpus or found["cpus"],
            memory=self.config.memory or found["memory"],
            gpus=tuple(Gpu.model_validate(gpu) for gpu in found["gpus"]),
        )
        return Facts(nodes=(node,), details=details)

    def screen(self, environment: Environment) -> None:
        if environment.kind == "user" and environment.python:
            check_interpreter(environment.python)
        if environment.kind == "image" and not engine():
            raise Invalid(NO_ENGINE, field="environment")

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
            raise LaunchRejected(f"this target is one machine; the job wants {launch.nodes} nodes")
        path = f"/api/attempts/{launch.key}"
        contact = {"url": launch.url, "token": launch.token, "path": path}
        told = {"launch": launch.for_runner(), "node": self._node(), "contact": contact}
        self._machine().launch(launch.key, told)
        return Handle(launch.key)

    def poll(self, handles: Sequence[Handle]) -> list[Observation]:
        return [Observation.model_validate(seen) for seen in self._machine().poll([*handles])]

    def cancel(self, handle: Handle) -> None:
        self._machine().cancel(handle)

    def forget(self, handle: Handle) -> None:
        self._machine().forget(handle)

    def diagnose(self, handle: Handle) -> str:
        return self._machine().diagnose(handle)

    def environments(self) -> list[dict[str, Any]]:
        return self._machine().environments()

    def remove_environment(self, digest: str) -> bool:
        result = self._machine().remove_environment(digest)
        if result == "used":
            raise Conflict(f"environment {digest[:12]} is used by a running job; try again later")
        return result == "removed"

    def _machine(self) -> Machine:
        return Machine(str(self.config.root), str(_zipapp(self.config.root)))

    def _node(self) -> dict[str, Any]:
        """Return what this machine offers to a runner."""
        root = self.config.root
        return {
            "cache": str(root),
            "blobs": [str(folder) for folder in self.config.blobs],
            "runner": str(_zipapp(root)),
            "python": sys.executable,
            "uv": uv_here(),
            "conda": sys.executable if _has_conda() else None,
            "linger": self.config.linger,
        }


def check_interpreter(python: str) -> None:
    """Raise Invalid unless `python` is the path of a Python that is new enough."""
    path = Path(python)
    if not path.is_absolute():
        raise Invalid(
            f"python: {python!r} is not an absolute path; write one such as /usr/bin/python3",
            field="python",
        )
    if not os.path.exists(path):  # unlike Path.exists, it takes a path of any length
        raise Invalid(f"python: there is no {python} on this machine", field="python")
    found = path.stat()
    if not path.is_file() or not os.access(path, os.X_OK):
        raise Invalid(f"python: {python} is not an executable file", field="python")
    version = _version(python, found.st_mtime_ns, found.st_size)
    if version is None:
        raise Invalid(f"python: {python} does not answer like a Python interpreter", field="python")
    if version < OLDEST:
        raise Invalid(
            f"python: {python} is Python {version[0]}.{version[1]}; 3.8 or newer is needed",
            field="python",
        )


@lru_cache(maxsize=256)
def _version(python: str, _changed: int, _size: int) -> tuple[int, int] | None:
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
def uv_here() -> str | None:
    """Return the path of uv, which comes with this package."""
    from uv import find_uv_bin

    try:
        return find_uv_bin()
    except FileNotFoundError:
        return shutil.which("uv")


@lru_cache(maxsize=1)
def _has_conda() -> bool:
    return find_spec("rattler") is not None
