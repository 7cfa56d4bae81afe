"""The container engine of this host: Docker or Podman, through its command line."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

_TIMEOUT_SECONDS = 20.0  # a healthy engine answers within 0.1 s
_DOCKER_FORMAT = (
    '{"version": {{json .ServerVersion}}, "security": {{json .SecurityOptions}}, '
    '"runtimes": {{json .Runtimes}}}'
)
_PODMAN_FORMAT = (
    "{{json .Version.Version}} {{json .Host.Security.Rootless}} {{json .Host.CgroupsVersion}}"
)


class Engine:
    """An engine that answers.

    `limits`: whether it can limit the CPUs and memory of a container. `hooks`: whether it passes
    GPUs through NVIDIA's runtime; otherwise it uses their CDI names.
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

    def ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a short command of the engine. A timeout counts as a failure."""
        return _run([self.path, *arguments])

    def image(self, name: str) -> dict[str, Any] | None:
        """Return the engine's description of an image, or None if it does not have it."""
        return self._inspect("image", "inspect", name)

    def container(self, name: str) -> dict[str, Any] | None:
        return self._inspect("container", "inspect", name)

    def _inspect(self, *arguments: str) -> dict[str, Any] | None:
        answer = self.ask(*arguments)
        objects: list[dict[str, Any]] = []
        if answer.returncode == 0:
            objects = json.loads(answer.stdout)
        return objects[0] if objects else None


def find_engine(name: str | None = None) -> Engine | None:
    """Return the engine of this name, or else the first that answers, Docker before Podman."""
    for candidate in (name,) if name else ("docker", "podman"):
        path = shutil.which(candidate)
        engine = _connect(path) if path else None
        if engine is not None:
            return engine
    return None


def name_engine() -> str:
    """Return the name and version of this host's engine, or an empty string.

    Much cheaper than `find_engine`: Podman has no server that could be down, so it is not tried.
    """
    for name in ("docker", "podman"):
        path = shutil.which(name)
        output = _run([path, "--version"]).stdout.lower() if path else ""
        if "podman" in output:  # `docker` may be Podman under another name
            return f"podman {output.split()[-1]}"
        if path:
            version = _run([path, "version", "--format", "{{.Server.Version}}"]).stdout.strip()
            if version:
                return f"docker {_without_build(version)}"
    return ""


def _without_build(version: str) -> str:
    return version.partition("+")[0]


def _connect(path: str) -> Engine | None:
    # `docker` may be Podman under another name
    if "podman" in _run([path, "--version"]).stdout.lower():
        answer = _run([path, "info", "--format", _PODMAN_FORMAT])
        if answer.returncode != 0:
            return None
        version, rootless, cgroups = (json.loads(value) for value in answer.stdout.split())
        return Engine(path, "podman", version, rootless, limits=not rootless or cgroups == "v2")
    answer = _run([path, "info", "--format", _DOCKER_FORMAT])
    if answer.returncode != 0 or not answer.stdout.strip():
        return None
    info = json.loads(answer.stdout)
    rootless = any("name=rootless" in option for option in info["security"] or ())
    version = _without_build(info["version"])
    if not version:
        return None
    hooks = "nvidia" in (info["runtimes"] or {})
    return Engine(path, "docker", version, rootless, limits=not rootless, hooks=hooks)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
            cwd="/",
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 125, "", str(error))


def mount(source: str, target: str | None = None, *, writable: bool = False) -> list[str]:
    """Return the option that mounts a folder or file of this host, by default at its own path."""
    fields = ["type=bind", f"source={source}", f"target={target or source}"]
    if not writable:
        fields.append("readonly")
    return ["--mount", ",".join(_quote(field) for field in fields)]


def _quote(field: str) -> str:
    """Quote a field of comma-separated values."""
    return '"' + field.replace('"', '""') + '"' if "," in field or '"' in field else field
