"""Retarget as its users start it: a server on a home of its own, and its API."""

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.client import Client
from benchmarks.frame import OURS, Refused, Server, Start, free_port, serving

_ENDED = ("succeeded", "failed", "canceled")


def start_retarget(folder: Path, ready: str = "/health") -> Start:
    port = free_port()
    return Start(
        name=OURS,
        command=[sys.executable, "-m", "retarget.server"],
        port=port,
        ready=ready,
        folder=folder,
        variables={"RETARGET_HOME": str(folder), "RETARGET_PORT": str(port)},
        token_file=folder / "token",
    )


class Retarget:
    """A server of ours that runs, asked over one connection."""

    def __init__(self, server: Server, home: Path) -> None:
        self.server, self.home = server, home
        self.client = Client(server)

    def submit(self, *command: str, **asked: Any) -> dict[str, Any]:
        """Submit as `retarget run` does once it has made the request."""
        return self.client.ask("/api/jobs", _spec(command, asked))

    def submit_all(self, number: int, *command: str, **asked: Any) -> list[str]:
        """Submit so many at once, as `Workspace.send_all` does, and return their ids."""
        jobs: Any = self.client.ask("/api/jobs/batch", {"jobs": [_spec(command, asked)] * number})
        return [job["id"] for job in jobs]

    def wait_all(self, ids: list[str]) -> None:
        """Wait until all have ended well, as `Workspace.wait_all` does."""
        told: dict[str, Any] = {"done": False}
        while not told["done"]:
            told = self.client.ask("/api/jobs/wait", {"jobs": ids, "timeout": 30})
        for job in told["jobs"]:
            if job["state"] != "succeeded":
                raise Refused(f"{job['name']} {job['state']}: {job['reason']}")

    def wait(self, name: str) -> dict[str, Any]:
        """Wait until a job has ended well."""
        job = self.client.ask(f"/api/jobs/{name}")
        while job["state"] not in _ENDED:
            job = self.client.ask(f"/api/jobs/{name}?wait=5&version={job['version']}")
        if job["state"] != "succeeded":
            raise Refused(f"{name} {job['state']}: {job['reason']}")
        return job

    def variables(self) -> dict[str, str]:
        """Return what has a command use this server."""
        return {"RETARGET_HOME": str(self.home), "RETARGET_URL": "", "NO_COLOR": "1"}


def _spec(command: tuple[str, ...], asked: dict[str, Any]) -> dict[str, Any]:
    return {"command": list(command), "environment": {"python": sys.executable}, **asked}


@contextmanager
def running(home: Path) -> Generator[Retarget, None, None]:
    with serving(start_retarget(home)) as server:
        # commands find it as they find one that they started themselves
        facts = json.loads((home / "server.json").read_text())
        if facts["url"] != server.url:
            raise Refused(f"the server is at {facts['url']}, not at {server.url}")
        yield Retarget(server, home)
