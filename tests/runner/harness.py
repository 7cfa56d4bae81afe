"""Makes launch folders and starts runners on them, without a driver."""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import pytest
import uv

from retarget.core.driver import Launch
from retarget.core.environments import Environment
from retarget.runner.package import build_zipapp
from retarget.testing import Receiver, Reports

PATIENCE = 200.0


@dataclass
class RunnerHarness:
    """A host for one test: a cache, and the launches on it."""

    root: Path
    receiver: Receiver
    python: str = sys.executable
    node: dict[str, Any] = field(default_factory=dict[str, Any])
    runners: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]])

    def __post_init__(self) -> None:
        self.zipapp = build_zipapp(self.root / "runners")
        self.node = {
            "cache": str(self.root),
            "blobs": [],
            "runner": str(self.zipapp),
            "python": sys.executable,
            "uv": uv.find_uv_bin(),
            "conda": sys.executable,
            "linger": 30,
        } | self.node

    def launch(self, *command: str, **more: Any) -> "HarnessLaunch":
        key = uuid4().hex
        defaults: dict[str, Any] = {"job": f"job{key[:8]}", "name": "work", "grace_seconds": 1.0}
        defaults |= {
            "url": self.receiver.url,
            "runner_key": self.receiver.runner_key,
            "script_token": self.receiver.script_token,
        }
        launch = Launch.model_validate(defaults | more | {"key": key, "command": command})
        folder = self.root / "launches" / key
        folder.mkdir(parents=True)
        content = {
            "launch": launch.for_runner(),
            "node": self.node,
            "contact": launch.contact(),
        }
        (folder / "launch.json").write_text(json.dumps(content))
        return HarnessLaunch(self, launch, folder)

    def run(self, *command: str, **more: Any) -> Reports:
        """Launch, wait for the end and return the reports."""
        return self.launch(*command, **more).finish()

    def environments(self) -> list[str]:
        """Return what is in the folder of the environments, apart from locks."""
        names = os.listdir(self.root / "environments")
        return [name for name in names if not name.endswith(".lock")]

    def end(self) -> None:
        for runner in self.runners:
            if runner.poll() is None:
                runner.terminate()
        for runner in self.runners:
            runner.wait(PATIENCE)


@dataclass
class HarnessLaunch:
    """One launch, and its latest runner."""

    harness: RunnerHarness
    launch: Launch
    folder: Path
    runner: subprocess.Popen[bytes] | None = None

    @property
    def key(self) -> str:
        return self.launch.key

    @property
    def reports(self) -> Reports:
        return self.harness.receiver.reports(self.launch.key)

    def start(self, *wrapper: str) -> "HarnessLaunch":
        """Start a runner. `wrapper` is a command that ends by running what follows it."""
        command = [*wrapper, self.harness.python, "-I", "-S", str(self.harness.zipapp), "run"]
        with (self.folder / "runner.log").open("ab") as log:
            self.runner = subprocess.Popen(
                [*command, str(self.folder)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.harness.runners.append(self.runner)
        return self

    def finish(self) -> Reports:
        runner = self.runner or self.start().runner
        assert runner is not None
        code = runner.wait(PATIENCE)
        log = (self.folder / "runner.log").read_text()
        assert (code, "Traceback" in log) == (0, False), log
        assert (self.folder / "done").exists(), log
        return self.reports

    def kill(self) -> None:
        assert self.runner is not None
        self.runner.kill()
        self.runner.wait()

    def cancel(self) -> None:
        (self.folder / "cancel").touch()
        descriptor = os.open(self.folder / "stop", os.O_WRONLY | os.O_NONBLOCK)
        os.write(descriptor, b"c")
        os.close(descriptor)

    def wait_for_output(self, stream: str, text: bytes) -> Reports:
        """Wait until a stream contains this text."""
        return self.harness.receiver.wait(
            self.launch.key, lambda reports: text in reports.stream(stream), timeout=PATIENCE
        )


def wheel(
    folder: Path,
    name: str = "tinypkg",
    version: str = "1.0",
    files: Mapping[str, str] = MappingProxyType({}),
    requires: str = "",
) -> Path:
    """Write a wheel that can be installed without a network. `files` are added to it."""
    require = f"Requires-Dist: {requires}\n" if requires else ""
    info = f"{name}-{version}.dist-info"
    files = {
        **files,
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{require}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{path},sha256={_digest(text)},{len(text)}" for path, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in files.items():
            entry = zipfile.ZipInfo(member)
            entry.external_attr = 0o100755 << 16  # a file that can be run
            archive.writestr(entry, text)
    return path


def packages(folder: Path, *requirements: str) -> Environment:
    """Return an environment whose packages come from `folder` only."""
    lines = ("--no-index", f"--find-links {folder}", *requirements)
    return Environment(kind="system", pip=lines)


def find_python(version: str) -> str:
    """Return an interpreter of this version, or skip the test. CI must have the oldest one."""
    for name in (*pyenv_pythons(version), f"python{version}", f"/usr/bin/python{version}"):
        path = shutil.which(name)  # None if this user may not run it
        if path and subprocess.run([path, "--version"], check=False).returncode == 0:
            return path
    if os.environ.get("CI") and version == "3.8":
        pytest.fail("CI must have a Python 3.8 to run the runner with")
    pytest.skip(f"Python {version} not found on this machine")


def pyenv_pythons(version: str) -> list[str]:
    """Return the interpreters of this version that pyenv has. Its folder may be unreadable."""
    pyenv = os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv"
    return sorted(glob(f"{pyenv}/versions/{version}.*/bin/python"))


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
