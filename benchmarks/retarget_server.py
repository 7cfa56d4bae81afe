"""Retarget as its users start it: a server with its own home, and its API."""

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.client import Client
from benchmarks.harness import RETARGET, MeasurementFailed, Server, Start, free_port, run_server

_FINAL_STATES = ("succeeded", "failed", "canceled")


def start_retarget(folder: Path, ready: str = "/health") -> Start:
    port = free_port()
    return Start(
        name=RETARGET,
        command=[sys.executable, "-m", "retarget.server"],
        port=port,
        ready=ready,
        folder=folder,
        variables={"RETARGET_HOME": str(folder), "RETARGET_PORT": str(port)},
        token_file=folder / "token",
    )


class Retarget:
    """A running Retarget server, used over one connection."""

    def __init__(self, server: Server, home: Path) -> None:
        self.server, self.home = server, home
        self.client = Client(server)

    def submit(self, *command: str, **options: Any) -> dict[str, Any]:
        """Submit a job, with the same request as `retarget run`."""
        return self.client.request("/api/jobs", _spec(command, options))

    def submit_all(self, number: int, *command: str, **options: Any) -> list[str]:
        """Submit several jobs at once, as `Workspace.send_all` does, and return their ids."""
        jobs: Any = self.client.request(
            "/api/jobs/batch", {"jobs": [_spec(command, options)] * number}
        )
        return [job["id"] for job in jobs]

    def wait_all(self, ids: list[str]) -> None:
        """Wait until all have succeeded, as `Workspace.wait_all` does."""
        response: dict[str, Any] = {"done": False}
        while not response["done"]:
            response = self.client.request("/api/jobs/wait", {"jobs": ids, "timeout_seconds": 30})
        for job in response["jobs"]:
            if job["state"] != "succeeded":
                raise MeasurementFailed(f"{job['name']} {job['state']}: {job['reason']}")

    def wait(self, name: str) -> dict[str, Any]:
        """Wait until a job has succeeded."""
        job = self.client.request(f"/api/jobs/{name}")
        while job["state"] not in _FINAL_STATES:
            job = self.client.request(f"/api/jobs/{name}?wait=5&version={job['version']}")
        if job["state"] != "succeeded":
            raise MeasurementFailed(f"{name} {job['state']}: {job['reason']}")
        return job

    def variables(self) -> dict[str, str]:
        """Return the variables with which a command uses this server."""
        return {"RETARGET_HOME": str(self.home), "RETARGET_URL": "", "NO_COLOR": "1"}


def _spec(command: tuple[str, ...], options: dict[str, Any]) -> dict[str, Any]:
    return {"command": list(command), "environment": {"python": sys.executable}, **options}


def seconds_between(start: str, end: str) -> float:
    """Return the seconds between two times of the API."""
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


@contextmanager
def run_retarget(home: Path) -> Generator[Retarget, None, None]:
    with run_server(start_retarget(home)) as server:
        yield find_retarget(server, home)


def find_retarget(server: Server, home: Path) -> Retarget:
    """Return a running server that commands find like one that they started themselves."""
    info = json.loads((home / "servers/main/server.json").read_text())
    if info["url"] != server.url:
        raise MeasurementFailed(f"the server is at {info['url']}, not at {server.url}")
    return Retarget(server, home)
