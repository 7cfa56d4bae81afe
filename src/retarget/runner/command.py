"""What is started of a launch: its command, its variables, and how many processes of it."""

from __future__ import annotations

import os

from retarget.runner.errors import Ended
from retarget.runner.offer import offer_tracking

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from typing import Any

    from retarget.runner.folder import Folder
    from retarget.runner.prepare import Preparation

_NO_PORT = "29500"  # what PyTorch takes by itself; one process needs none


class Command:
    """The command with its program as a path, and the variables that all ranks share."""

    def __init__(self, folder: Folder, content: dict[str, Any], prepared: Preparation) -> None:
        self._folder = folder
        self._launch: dict[str, Any] = content["launch"]
        self._where = str(content["node"].get("where", "on this machine"))
        self._python = prepared.python
        inside = prepared.containers
        self.env = inside.variables() if inside else self._surroundings()
        self._add_variables()
        offer_tracking(folder, self._launch, content["node"]["cache"], self.env)
        words = list(self._launch["command"])
        if inside is not None:
            words = inside.resolve(words)
        else:
            words[0] = self._python if words[0] == "python" else self._program(words[0])
        self.words = words

    def _add_variables(self) -> None:
        launch = self._launch
        share = max(1, int(launch["cpus"] // launch["processes_per_node"]))
        self.env.update(PYTHONUNBUFFERED="1", OMP_NUM_THREADS=str(share))
        self.env.update(launch["env"])
        self.env.update(
            RETARGET_LAUNCH=launch["key"],
            RETARGET_JOB=launch["name"],
            RETARGET_JOB_ID=launch["job"],
            AZUREML_RUN_ID=launch["job"],
        )

    def _surroundings(self) -> dict[str, str]:
        """Return the variables of this machine, with the interpreter first in PATH."""
        env = dict(os.environ)
        folder = os.path.dirname(self._python)
        if not os.path.exists(os.path.join(folder, "python")):
            folder = self._python_shim()
        env["PATH"] = folder + os.pathsep + env.get("PATH", os.defpath)
        if os.path.exists(os.path.join(folder, "..", "pyvenv.cfg")):
            env["VIRTUAL_ENV"] = os.path.dirname(folder)
        return env

    def _python_shim(self) -> str:
        """Make `python` the chosen interpreter in shells too. A link would lose its packages."""
        folder = self._folder.file("bin")
        os.makedirs(folder, exist_ok=True)
        for name in ("python", "python3"):
            path = os.path.join(folder, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write('#!/bin/sh\nexec "$RETARGET_PYTHON" "$@"\n')
            os.chmod(path, 0o755)
        self._launch["env"].setdefault("RETARGET_PYTHON", self._python)
        return folder

    def _program(self, word: str) -> str:
        import shutil

        there = os.path.join(self._folder.work, word)
        found = there if "/" in word else shutil.which(word, path=self.env["PATH"])
        if found is None or not os.path.exists(found):
            where = "in the code" if "/" in word and not os.path.isabs(word) else self._where
            raise Ended("failed", f"there is no command {word!r} {where}", 127)
        if not os.access(found, os.X_OK):
            raise Ended("failed", f"{word!r} cannot be run: it is not executable", 126)
        return found


class Ranks:
    """The processes of a launch on this node, among those on all nodes."""

    def __init__(self, content: dict[str, Any]) -> None:
        launch: dict[str, Any] = content["launch"]
        self._gang: dict[str, Any] = content.get("gang") or {"node": 0}
        self._chosen: dict[str, str] = launch["env"]
        self.node = int(self._gang["node"])
        self.here = int(launch["processes_per_node"])
        self._all = int(launch["nodes"]) * self.here

    def stream(self, rank: int) -> str:
        """Return where the words of one go."""
        return "output" if self._all == 1 else f"rank-{self._number(rank)}"

    def title(self, rank: int) -> str:
        """Return what one is called in a sentence."""
        return "the script" if self.here == 1 else f"rank {self._number(rank)}"

    def variables(self) -> list[dict[str, str]]:
        """Return the variables of each, as PyTorch reads them; what the job sets itself counts."""
        port = str(_free_port()) if self._all > 1 else _NO_PORT
        return [self._variables(rank, port) for rank in range(self.here)]

    def _variables(self, rank: int, port: str) -> dict[str, str]:
        names = {
            "RANK": str(self._number(rank)),
            "LOCAL_RANK": str(rank),
            "NODE_RANK": str(self.node),
            "WORLD_SIZE": str(self._all),
            "LOCAL_WORLD_SIZE": str(self.here),
            "MASTER_ADDR": str(self._gang.get("master", "127.0.0.1")),
            "MASTER_PORT": str(self._gang.get("port", port)),
        }
        return {name: self._chosen.get(name, value) for name, value in names.items()}

    def _number(self, rank: int) -> int:
        """Return the number of one among those of all nodes."""
        return self.node * self.here + rank


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
