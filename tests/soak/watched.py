"""A server whose memory, files and threads are looked at while it works."""

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

_PATIENCE = 60.0


@dataclass(frozen=True)
class Sample:
    """What the server held at one moment."""

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
        self.url = str(json.loads((home / "server.json").read_text())["url"])
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
        """Wait until nothing is left to clear away, and return what the server holds then."""
        deadline = time.monotonic() + _PATIENCE
        while self.left_over() and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(seconds)
        return self.sample()

    def left_over(self) -> list[str]:
        """Name folders and files of jobs that have ended, and their processes."""
        found = [
            *(self.home / "targets/local/launches").glob("*"),
            *(self.home / "targets/local/launches").glob(".*"),
            *(self.home / "blobs").glob("*.part"),
            *(self.home / "uploads").glob("*"),
        ]
        running = [each for each in processes() if each.is_alive and each.names(self.home)]
        known = {self.process.pid, os.getpid()}
        # what the server starts runners from, and those that wait there for work
        for _ in range(2):
            nurseries = [each for each in running if each.command[4:5] == ("nursery",)]
            known |= {each.pid for each in nurseries if each.parent in known}
        others = [each for each in running if each.pid not in known]
        return [str(path.relative_to(self.home)) for path in found] + [str(each) for each in others]

    def said(self) -> list[str]:
        """Return what the server complained of."""
        lines = (self.home / "said").read_text().splitlines()
        return [line for line in lines if " INFO " not in line]


@contextmanager
def watched(home: Path) -> Generator[Watched]:
    """Run a server for `home` until the end of the block."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "said").open("wb") as log:
        environ = os.environ | {"RETARGET_HOME": str(home)}
        command = [sys.executable, "-m", "retarget.server"]
        process = subprocess.Popen(command, env=environ, stderr=log)
    try:
        deadline = time.monotonic() + _PATIENCE
        while not (home / "server.json").exists():
            assert process.poll() is None, (home / "said").read_text()
            assert time.monotonic() < deadline, "the server is not ready"
            time.sleep(0.02)
        yield Watched(home, process)
    finally:
        process.terminate()
        process.wait(_PATIENCE)


class Sampler:
    """Takes a sample every second, in a thread of its own."""

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
            with suppress(OSError):  # a server that is gone is noticed elsewhere
                self.samples.append(self._server.sample())
