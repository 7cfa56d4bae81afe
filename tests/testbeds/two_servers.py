"""Several servers of one home on one PostgreSQL, each a process that tests kill and pause."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from retarget.core.home import Home
from tests.server.conftest import Api

PATIENCE_SECONDS = 200.0
# Writes down that it starts, works for a moment, and writes what its log must be.
SCRIPT = """
import os, sys, time
with open(sys.argv[1], "a") as starts:
    starts.write(os.environ["RETARGET_JOB_ID"] + "\\n")
for line in range(int(sys.argv[2])):
    print("line", line, flush=True)
    time.sleep(float(sys.argv[3]))
"""


class Servers:
    def __init__(self, home: Path, database: str) -> None:
        self.home = Home(home)
        self.starts = home.parent / "starts"
        self._database = database
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._paused: set[str] = set()

    def start(self, server_id: str, **variables: str) -> Api:
        """Start a server and return its API once it is ready."""
        environ = os.environ | {
            "RETARGET_HOME": str(self.home.root),
            "RETARGET_DATABASE": self._database,
            "RETARGET_SERVER_ID": server_id,
            "RETARGET_POLL_SECONDS": "0.5",
        }
        folder = self.home.server(server_id)
        folder.root.mkdir(parents=True, exist_ok=True)
        with folder.log.open("ab") as log:
            self._processes[server_id] = process = subprocess.Popen(
                [sys.executable, "-m", "retarget.server"], env=environ | variables, stderr=log
            )
        eventually(
            lambda: process.poll() is not None or self._info(server_id)["pid"] == process.pid
        )
        assert process.poll() is None, self.log(server_id)
        return self.api(server_id)

    def api(self, server_id: str) -> Api:
        return Api(self.home.root, self._info(server_id), self.home.token.read_text())

    def ids(self) -> list[str]:
        """Return the servers that run."""
        return sorted(self._processes)

    def holder(self, target: str = "local") -> str:
        """Return the server that looks after a target, as the others know it."""
        for server_id in set(self.ids()) - self._paused:
            for server in self.api(server_id).ask("GET", "/api/server").json["servers"]:
                if target in server["targets"] and server["id"] in self._processes:
                    return server["id"]
        return ""

    def kill(self, server_id: str) -> None:
        process = self._processes.pop(server_id)
        process.kill()
        process.wait()
        self._paused.discard(server_id)

    def stop(self, server_id: str) -> None:
        process = self._processes.pop(server_id)
        process.terminate()
        process.wait(timeout=PATIENCE_SECONDS)

    def pause(self, server_id: str) -> None:
        self._processes[server_id].send_signal(signal.SIGSTOP)
        self._paused.add(server_id)

    def resume(self, server_id: str) -> None:
        self._paused.discard(server_id)
        self._processes[server_id].send_signal(signal.SIGCONT)

    def log(self, server_id: str) -> str:
        return self.home.server(server_id).log.read_text()

    def submit(
        self, server_id: str, *, lines: int = 5, pause: float = 0.05, **more: Any
    ) -> dict[str, Any]:
        command = (sys.executable, "-c", SCRIPT, str(self.starts), str(lines), str(pause))
        return self.api(server_id).submit(*command, **more)

    def close(self) -> None:
        for server_id in self.ids():
            self.resume(server_id)
            self._processes[server_id].terminate()
        for process in self._processes.values():
            process.wait(timeout=PATIENCE_SECONDS)
        for server_id in os.listdir(self.home.servers):
            assert "Traceback" not in self.log(server_id), self.log(server_id)

    def check_ended_once(self, api: Api, job: dict[str, Any], lines: int) -> None:
        """Check that a job ran once, to its end, with an exact log and one end in its history."""
        view = api.job(job["id"])
        assert view["state"] == "succeeded", view
        assert [attempt["exit_code"] for attempt in view["attempts"]] == [0], view
        history = api.ask("GET", f"/api/jobs/{job['id']}/history").json
        assert [it["state"] for it in history].count("succeeded") == 1, history
        assert [it["version"] for it in history] == sorted({it["version"] for it in history})
        log = api.ask("GET", f"/api/jobs/{job['id']}/logs").content.decode()
        assert log == "".join(f"line {number}\n" for number in range(lines)), log
        assert Counter(self.starts.read_text().split())[job["id"]] == 1

    def _info(self, server_id: str) -> dict[str, Any]:
        try:
            return json.loads(self.home.server(server_id).info.read_bytes())
        except FileNotFoundError:
            return {"pid": 0}


@contextmanager
def running_servers(folder: Path, database: str) -> Generator[Servers]:
    servers = Servers(folder / "home", database)
    try:
        yield servers
    finally:
        servers.close()


def eventually(condition: Callable[[], bool], timeout: float = PATIENCE_SECONDS) -> float:
    """Wait for a condition. Return how many seconds it took."""
    started_at = time.monotonic()
    while not condition():
        assert time.monotonic() - started_at < timeout
        time.sleep(0.02)
    return time.monotonic() - started_at
