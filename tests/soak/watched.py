"""A server whose memory, files and threads are measured while it works."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from retarget import Workspace
from tests.chaos.processes import processes

_TIMEOUT_SECONDS = 200.0


@dataclass(frozen=True)
class Sample:
    """The memory, files and threads of the server at one moment."""

    at: float
    memory: float  # MB
    files: int
    threads: int

    def __str__(self) -> str:
        return f"{self.memory:.0f} MB, {self.files} files, {self.threads} threads"


class Watched:
    def __init__(self, home: Path, process: "subprocess.Popen[bytes]") -> None:
        self.home = home
        self.process = process
        self.url = str(json.loads((home / "servers/main/server.json").read_text())["url"])
        self.token = (home / "token").read_text()

    def workspace(self) -> Workspace:
        return Workspace(self.url, self.token)

    def sample(self) -> Sample:
        folder = Path(f"/proc/{self.process.pid}")
        fields = dict(
            line.split(":", 1) for line in (folder / "status").read_text().splitlines() if line
        )
        return Sample(
            at=time.monotonic(),
            memory=int(fields["VmRSS"].split()[0]) / 1024,
            files=len(list((folder / "fd").iterdir())),
            threads=int(fields["Threads"]),
        )

    def at_rest(self, seconds: float) -> Sample:
        """Wait until all jobs are cleaned up and that many seconds more; measure the server."""
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while self.leftovers() and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(seconds)
        return self.sample()

    def leftovers(self, *, timeout: float = 0) -> list[str]:
        """Name what remains of ended jobs after `timeout` seconds: folders, files, processes."""
        deadline = time.monotonic() + timeout
        while (names := self._leftovers()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return names

    def _leftovers(self) -> list[str]:
        paths = [
            *(self.home / "targets/local/launches").glob("*"),
            *(self.home / "targets/local/launches").glob(".*"),
            *(self.home / "blobs").glob("*.part"),
            *(self.home / "uploads").glob("*"),
        ]
        running = [
            process for process in processes() if process.is_alive and process.names(self.home)
        ]
        known = {self.process.pid, os.getpid()}
        # the fork server, and its idle runners
        for _ in range(2):
            fork_servers = [
                process for process in running if process.command[4:5] == ("forkserver",)
            ]
            known |= {process.pid for process in fork_servers if process.parent in known}
        others = [process for process in running if process.pid not in known]
        return [str(path.relative_to(self.home)) for path in paths] + [
            str(process) for process in others
        ]

    def logged_problems(self) -> list[str]:
        """Return the lines of the server's log above the level INFO."""
        lines = (self.home / "server-output").read_text().splitlines()
        return [line for line in lines if " INFO " not in line]


@contextmanager
def watched(home: Path) -> Generator[Watched]:
    """Run a server for `home` until the end of the block."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "server-output").open("wb") as log:
        environ = os.environ | {"RETARGET_HOME": str(home)}
        command = [sys.executable, "-m", "retarget.server"]
        process = subprocess.Popen(command, env=environ, stderr=log)
    try:
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not (home / "servers/main/server.json").exists():
            assert process.poll() is None, (home / "server-output").read_text()
            assert time.monotonic() < deadline, "the server is not ready"
            time.sleep(0.02)
        yield Watched(home, process)
    finally:
        process.terminate()
        process.wait(_TIMEOUT_SECONDS)


class Sampler:
    """Takes a sample every second, in its own thread."""

    def __init__(self, server: Watched) -> None:
        self.samples: list[Sample] = []
        self._server = server
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ending.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._ending.wait(1.0):
            with suppress(OSError):  # a server that has exited is reported elsewhere
                self.samples.append(self._server.sample())
