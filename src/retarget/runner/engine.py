"""The container engine of this machine: Docker or Podman, by its command line."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

_PATIENCE = 20.0  # seconds an engine may take to answer; one that is there takes 0.1
_DOCKER = (
    '{"version": {{json .ServerVersion}}, "security": {{json .SecurityOptions}}, '
    '"runtimes": {{json .Runtimes}}}'
)
_PODMAN = "{{json .Version.Version}} {{json .Host.Security.Rootless}} {{json .Host.CgroupsVersion}}"


class Engine:
    """One that answers.

    `limits`: whether it can hold a container to CPUs and memory. `hooks`: whether it gives GPUs by
    NVIDIA's runtime; otherwise by their CDI names, where it has any.
    """

    def __init__(  # noqa: PLR0913
        self,
        path: str,
        kind: str,
        version: str,
        rootless: bool,
        limits: bool,
        hooks: bool = False,
    ) -> None:
        self.path = path
        self.kind = kind
        self.version = version
        self.rootless = rootless
        self.limits = limits
        self.hooks = hooks

    def __str__(self) -> str:
        return f"{self.kind} {self.version}"

    def ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a short command of the engine. One that hangs counts as failed."""
        return _ask([self.path, *words])

    def image(self, name: str) -> dict[str, Any] | None:
        """Return what the engine knows of an image, or None when it does not have it."""
        return self._inspect("image", "inspect", name)

    def container(self, name: str) -> dict[str, Any] | None:
        return self._inspect("container", "inspect", name)

    def _inspect(self, *words: str) -> dict[str, Any] | None:
        answer = self.ask(*words)
        found: list[dict[str, Any]] = []
        if answer.returncode == 0:
            found = json.loads(answer.stdout)
        return found[0] if found else None


def find_engine(asked: str | None = None) -> Engine | None:
    """Return the engine that is asked for, or else the first that answers, Docker before Podman."""
    for name in (asked,) if asked else ("docker", "podman"):
        path = shutil.which(name)
        engine = _meet(path) if path else None
        if engine is not None:
            return engine
    return None


def name_engine() -> str:
    """Name the engine of this machine and its version, or return nothing.

    Much cheaper than to find it: Podman, which has no server that could be down, is not tried.
    """
    for name in ("docker", "podman"):
        path = shutil.which(name)
        said = _ask([path, "--version"]).stdout.lower() if path else ""
        if "podman" in said:  # `docker` may be Podman under another name
            return f"podman {said.split()[-1]}"
        if path:
            version = _ask([path, "version", "--format", "{{.Server.Version}}"]).stdout.strip()
            if version:
                return f"docker {_plain(version)}"
    return ""


def _plain(version: str) -> str:
    return version.partition("+")[0]


def _meet(path: str) -> Engine | None:
    # `docker` may be Podman under another name
    if "podman" in _ask([path, "--version"]).stdout.lower():
        answer = _ask([path, "info", "--format", _PODMAN])
        if answer.returncode != 0:
            return None
        version, rootless, cgroups = (json.loads(word) for word in answer.stdout.split())
        return Engine(path, "podman", version, rootless, limits=not rootless or cgroups == "v2")
    answer = _ask([path, "info", "--format", _DOCKER])
    if answer.returncode != 0 or not answer.stdout.strip():
        return None
    told = json.loads(answer.stdout)
    rootless = any("name=rootless" in each for each in told["security"] or ())
    version = _plain(told["version"])
    if not version:
        return None
    hooks = "nvidia" in (told["runtimes"] or {})
    return Engine(path, "docker", version, rootless, limits=not rootless, hooks=hooks)


def _ask(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            timeout=_PATIENCE,
            cwd="/",
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 125, "", str(error))


def mount(source: str, target: str | None = None, *, writable: bool = False) -> list[str]:
    """Return the option that shows a folder or file of this machine, by default at its own path."""
    parts = ["type=bind", f"source={source}", f"target={target or source}"]
    if not writable:
        parts.append("readonly")
    return ["--mount", ",".join(_quoted(part) for part in parts)]


def _quoted(part: str) -> str:
    """Return a field of comma-separated values."""
    return '"' + part.replace('"', '""') + '"' if "," in part or '"' in part else part
