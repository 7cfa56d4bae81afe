"""The command of a launch, its variables, and its ranks on this node."""

from __future__ import annotations

import os

from retarget.runner.errors import Ended
from retarget.runner.merge import MERGED, STDERR, STDOUT
from retarget.runner.tracking_variables import offer_tracking

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from typing import Any

    from retarget.runner.folder import Folder
    from retarget.runner.prepare import Preparation
    from retarget.runner.relay import Relay

# in an image, which may have no bash
_START_SHELL = 'exec "${SHELL:-$(command -v bash || echo sh)}"'
_DEFAULT_PORT = "29500"  # PyTorch's default; a single process needs no port
_HEAD_BYTES = 1024  # as much of a script as names its interpreter


class Command:
    """The command with its program as a path, and the variables that all ranks share."""

    def __init__(
        self,
        folder: Folder,
        content: dict[str, Any],
        prepared: Preparation,
        relay: Relay | None = None,
    ) -> None:
        self._folder = folder
        self._launch: dict[str, Any] = content["launch"]
        self._location = str(content["node"].get("where", "on this machine"))
        self._python = prepared.python
        self._containers = prepared.containers
        self._layer = prepared.layer
        containers = prepared.containers
        self.variables = containers.variables() if containers else self._host_variables()
        self._add_variables(prepared.secrets.values)
        if prepared.import_roots:
            paths = [self.variables.get("PYTHONPATH"), *prepared.import_roots]
            self.variables["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        offer_tracking(folder, content, self.variables, relay)
        self.argv = self._resolve(list(self._launch["command"]))

    @property
    def is_in_container(self) -> bool:
        return self._containers is not None

    def beside(
        self, rank: int, argv: list[str], variables: dict[str, str], more: dict[str, str]
    ) -> tuple[list[str], dict[str, str]]:
        """Return the command and variables of another process beside the script of a local rank.

        `variables` are those of that rank, and `more` those of this process alone. Without a
        command it is a shell. Ended: the program was not found.
        """
        if self._containers is not None:
            from retarget.runner.container_secrets import SHELL

            argv = self._resolve(argv or [SHELL, "-c", _START_SHELL])
            return self._containers.wrap_exec(rank, argv, variables, more)
        argv = self._resolve(argv or [_shell_of(self.variables)])
        return argv, dict(variables, **more)

    def _resolve(self, argv: list[str]) -> list[str]:
        if self._containers is not None:
            return self._containers.resolve(argv)
        return [self._program(argv[0]), *argv[1:]]

    def _add_variables(self, secrets: dict[str, str]) -> None:
        launch = self._launch
        threads = max(1, int(launch["cpus"] // launch["processes_per_node"]))
        self.variables.update(PYTHONUNBUFFERED="1", OMP_NUM_THREADS=str(threads))
        self.variables.update(launch["variables"])
        self.variables.update(secrets)
        self.variables.update(
            RETARGET_LAUNCH=launch["key"],
            RETARGET_JOB=launch["name"],
            RETARGET_JOB_ID=launch["job"],
            AZUREML_RUN_ID=launch["job"],
        )

    def _host_variables(self) -> dict[str, str]:
        """Return the variables of this host, with the interpreter first in PATH."""
        variables = dict(os.environ)
        if self._layer is not None:
            self._layer.add_to(variables)
            return variables
        if not self._launch.get("allow_pip"):
            _forbid_pip(variables)
        folder = os.path.dirname(self._python)
        if not os.path.exists(os.path.join(folder, "python")):
            folder = self._write_python_shim()
        variables["PATH"] = folder + os.pathsep + variables.get("PATH", os.defpath)
        variables["RETARGET_PYTHON"] = self._python
        if os.path.exists(os.path.join(folder, "..", "pyvenv.cfg")):
            variables["VIRTUAL_ENV"] = os.path.dirname(folder)
        return variables

    def _write_python_shim(self) -> str:
        """Make `python` the chosen interpreter in shells. A symlink would lose its packages."""
        folder = self._folder.file("bin")
        os.makedirs(folder, exist_ok=True)
        for name in ("python", "python3"):
            path = os.path.join(folder, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write('#!/bin/sh\nexec "$RETARGET_PYTHON" "$@"\n')
            os.chmod(path, 0o755)
        return folder

    def _program(self, name: str) -> str:
        if name in ("python", self._python):
            return self._python if self._layer is None else self._layer.python
        return self._find_program(name)

    def _find_program(self, name: str) -> str:
        import shutil

        if "/" in name:
            path: str | None = os.path.join(self._folder.work, name)
        else:
            path = shutil.which(name, path=self.variables["PATH"])
        if path is None or not os.path.exists(path):
            is_in_code = "/" in name and not os.path.isabs(name)
            location = "in the code" if is_in_code else self._location
            raise Ended("failed", f"command {name!r} not found {location}", 127)
        if not os.access(path, os.X_OK):
            raise Ended("failed", f"{name!r} cannot be run: it is not executable", 126)
        if "/" not in name and self._is_of_another_python(path):
            self._folder.log(f"environment: {name} is not in the job's environment; using {path}")
        return path

    def _is_of_another_python(self, path: str) -> bool:
        """Return whether a program is a script that runs with another Python than the job's."""
        with open(path, "rb") as file:
            head = file.read(_HEAD_BYTES)
        interpreter = os.fsdecode((head.partition(b"\n")[0][2:].split() or [b""])[0])
        if not head.startswith(b"#!") or b"RETARGET_PYTHON" in head:
            return False
        if not os.path.basename(interpreter).startswith("python"):
            return b"pyenv" in head
        own = [self._python] if self._layer is None else [self._python, self._layer.python]
        folders = [os.path.realpath(os.path.dirname(python)) for python in own]
        return os.path.realpath(os.path.dirname(interpreter)) not in folders


def _shell_of(variables: dict[str, str]) -> str:
    """Return the user's shell. It is not a login shell, which would set another PATH."""
    import shutil

    names = variables.get("SHELL") or "bash", "bash"
    return next((name for name in names if shutil.which(name, path=variables["PATH"])), "sh")


def _forbid_pip(variables: dict[str, str]) -> None:
    """Make pip and uv refuse to change an interpreter that no layer can be laid over."""
    for name in ("VIRTUAL_ENV", "UV_PYTHON", "UV_SYSTEM_PYTHON"):
        variables.pop(name, None)
    variables["PIP_REQUIRE_VIRTUALENV"] = "true"


class Ranks:
    """The ranks of a launch on this node, numbered among those of all nodes."""

    def __init__(self, content: dict[str, Any]) -> None:
        launch: dict[str, Any] = content["launch"]
        self._gang: dict[str, Any] = content.get("gang") or {"node": 0}
        self._job_variables: dict[str, str] = launch["variables"]
        self.node = int(self._gang["node"])
        self.local_size = int(launch["processes_per_node"])
        self._world_size = int(launch["nodes"]) * self.local_size
        self.is_split = bool(launch.get("split_stderr")) and self._world_size == 1

    def streams(self, rank: int) -> tuple[str, ...]:
        """Return the stream that the output of a local rank goes to, or those of stdout, stderr."""
        if self._world_size > 1:
            return (f"rank-{self._number(rank)}",)
        return (STDOUT, STDERR) if self.is_split else (MERGED,)

    def title(self, rank: int) -> str:
        """Return the name of a local rank in a sentence."""
        return "the script" if self.local_size == 1 else f"rank {self._number(rank)}"

    def variables(self) -> list[dict[str, str]]:
        """Return PyTorch's variables for every local rank. Those that the job sets win."""
        port = str(_free_port()) if self._world_size > 1 else _DEFAULT_PORT
        return [self._variables(rank, port) for rank in range(self.local_size)]

    def _variables(self, rank: int, port: str) -> dict[str, str]:
        variables = {
            "RANK": str(self._number(rank)),
            "LOCAL_RANK": str(rank),
            "NODE_RANK": str(self.node),
            "WORLD_SIZE": str(self._world_size),
            "LOCAL_WORLD_SIZE": str(self.local_size),
            "MASTER_ADDR": str(self._gang.get("master", "127.0.0.1")),
            "MASTER_PORT": str(self._gang.get("port", port)),
        }
        return {name: self._job_variables.get(name, value) for name, value in variables.items()}

    def _number(self, rank: int) -> int:
        """Return the number of a local rank among those of all nodes."""
        return self.node * self.local_size + rank


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
