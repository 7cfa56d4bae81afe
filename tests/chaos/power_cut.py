"""A server whose power can be cut: then files lose what nobody has synced to disk."""

import os
import random
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tests.chaos.chaos_server import ChaosServer, eventually
from tests.chaos.processes import kill_together

_RUN_SERVER = """
import runpy, sys
sys.executable = sys.argv.pop(1)
runpy.run_module("retarget.server", run_name="__main__", alter_sys=True)
"""


def build_recorder(folder: Path) -> Path:
    """Compile the library that records what is synced."""
    library = folder / "recorder.so"
    source = Path(__file__).with_name("recorder.c")
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    return library


def can_build() -> bool:
    return shutil.which("cc") is not None


class PowerServer(ChaosServer):
    """Its server, and every Python that this starts, record what they sync."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._synced = root / "synced"
        self._sizes: dict[int, int] = {}  # what is certainly on disk, by inode
        self._names: set[str] = set()
        variables = {
            "LD_PRELOAD": str(build_recorder(root)),
            "RECORDER_LOG": str(self._synced),
            "RECORDER_ROOT": str(self.home.root),
        }
        self._python = root / "python"
        settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
        self._python.write_text(f'#!/bin/sh\n{settings} exec {shlex.quote(sys.executable)} "$@"\n')
        self._python.chmod(0o755)

    def start(self, *, ready: bool = True, **variables: str) -> subprocess.Popen[bytes]:
        defaults = {"RETARGET_HOME": str(self.home.root), "RETARGET_POLL_SECONDS": "0.2"}
        with self._log.open("ab") as log:
            self._server = subprocess.Popen(
                [str(self._python), "-c", _RUN_SERVER, str(self._python)],
                cwd=self.root,
                env=os.environ | defaults | variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if ready:
            eventually(self._is_ready, "the server gets ready")
        return self._server

    def cut_power(self, rng: random.Random) -> list[str]:
        """End everything at once, and lose what was not synced. Return what was lost."""
        while victims := self.processes():
            kill_together(victims)
            self.reap()
        self._read_synced()
        lost = [self._lose(path, rng) for path in self._files()]
        self.home.boot.write_text("another boot\n")
        files = [path.stat() for path in self._files()]
        self._sizes = {file.st_ino: file.st_size for file in files}
        self._names = {str(path) for path in self.home.root.rglob("*")}
        return [text for text in lost if text]

    def _files(self) -> list[Path]:
        """List the files of the home. SQLite makes its -shm file again."""
        for path in self.home.root.glob("*-shm"):
            path.unlink()
        paths = [path for path in self.home.root.rglob("*") if path.is_file()]
        return [path for path in paths if not path.is_symlink() and path != self.home.database]

    def _read_synced(self) -> None:
        lines = (
            self._synced.read_text(errors="replace").splitlines() if self._synced.exists() else []
        )
        for line in lines:
            kind, _, rest = line.partition(" ")
            if kind == "F":
                inode, size = rest.split()
                self._sizes[int(inode)] = int(size)
            else:
                self._names.add(rest)
        self._synced.unlink(missing_ok=True)

    def _lose(self, path: Path, rng: random.Random) -> str:
        if str(path) not in self._names and rng.random() < 0.5:
            return self._lose_name(path)
        status = path.stat()
        synced, size = min(self._sizes.get(status.st_ino, 0), status.st_size), status.st_size
        how = rng.choice(["kept", "cut", "zeros"])
        if size == synced or how == "kept":
            return ""
        keep = rng.choice([synced, rng.randint(synced, size)])
        with path.open("r+b") as file:
            file.truncate(keep)
            if how == "zeros":
                file.truncate(size)
        return f"{path}: {how} after {keep} of {size}, {synced} synced"

    def _lose_name(self, path: Path) -> str:
        """Undo the creation of a file. A journal that got its last name gets back its first."""
        before = path.with_name("events.jsonl")
        if path.name == "done" and str(before) in self._names:
            path.rename(before)
            return f"{path} is {before.name} again"
        path.unlink()
        return f"{path} is gone"
