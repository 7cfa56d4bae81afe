"""Launch folders made by hand, and runners started on them by hand."""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import uv

from retarget.core.driver import Launch
from retarget.core.environments import Environment
from retarget.runner.package import build_zipapp
from retarget.testing import Receiver, Reports

PATIENCE = 40.0


@dataclass
class Workshop:
    """A machine of its own: a cache, and the launches on it."""

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

    def launch(self, *command: str, **more: Any) -> "Work":
        key = uuid4().hex
        standard: dict[str, Any] = {"job": f"job{key[:8]}", "name": "work", "grace": 1.0}
        launch = Launch.model_validate(standard | more | {"key": key, "command": command})
        folder = self.root / "launches" / key
        folder.mkdir(parents=True)
        contact = {"url": self.receiver.url, "token": self.receiver.token}
        contact["path"] = f"/api/attempts/{key}"
        content = {"launch": launch.for_runner(), "node": self.node, "contact": contact}
        (folder / "launch.json").write_text(json.dumps(content))
        return Work(self, launch, folder)

    def run(self, *command: str, **more: Any) -> Reports:
        """Launch, wait for the end and return what was reported."""
        return self.launch(*command, **more).finish()

    def environments(self) -> list[str]:
        """Name what lies among the environments, apart from their locks."""
        names = os.listdir(self.root / "environments")
        return [name for name in names if not name.endswith(".lock")]

    def end(self) -> None:
        for runner in self.runners:
            if runner.poll() is None:
                runner.terminate()
        for runner in self.runners:
            runner.wait(PATIENCE)


@dataclass
class Work:
    """One launch, and its latest runner."""

    workshop: Workshop
    launch: Launch
    folder: Path
    runner: subprocess.Popen[bytes] | None = None

    @property
    def heard(self) -> Reports:
        return self.workshop.receiver.heard(self.launch.key)

    def start(self) -> "Work":
        command = [self.workshop.python, "-I", "-S", str(self.workshop.zipapp), "run"]
        with (self.folder / "runner.log").open("ab") as log:
            self.runner = subprocess.Popen(
                [*command, str(self.folder)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.workshop.runners.append(self.runner)
        return self

    def finish(self) -> Reports:
        runner = self.runner or self.start().runner
        assert runner is not None
        code = runner.wait(PATIENCE)
        said = (self.folder / "runner.log").read_text()
        assert (code, "Traceback" in said) == (0, False), said
        assert (self.folder / "done").exists(), said
        return self.heard

    def kill(self) -> None:
        assert self.runner is not None
        self.runner.kill()
        self.runner.wait()

    def cancel(self) -> None:
        (self.folder / "cancel").touch()
        descriptor = os.open(self.folder / "orders", os.O_WRONLY | os.O_NONBLOCK)
        os.write(descriptor, b"c")
        os.close(descriptor)

    def hear(self, stream: str, text: bytes) -> Reports:
        """Wait until a stream says something."""
        return self.workshop.receiver.wait(
            self.launch.key, lambda heard: text in heard.stream(stream), patience=PATIENCE
        )


def wheel(folder: Path, name: str = "tinypkg", version: str = "1.0") -> Path:
    """Make a package that needs no network to be installed."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{path},sha256={_digest(text)},{len(text)}" for path, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name_inside, text in files.items():
            archive.writestr(name_inside, text)
    return path


def packages(folder: Path, *wanted: str) -> Environment:
    """Return an environment of packages that are in `folder`, and nowhere else."""
    lines = ("--no-index", f"--find-links {folder}", *wanted)
    return Environment(kind="system", pip=lines)


def find_python(version: str) -> str:
    """Return an interpreter of this version, or skip the test; CI must have the oldest."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for found in sorted(pyenv.glob(f"versions/{version}.*/bin/python")):
        return str(found)
    for name in (shutil.which(f"python{version}"), shutil.which(f"/usr/bin/python{version}")):
        if name and subprocess.run([name, "--version"], check=False).returncode == 0:
            return name
    if os.environ.get("CI") and version == "3.8":
        pytest.fail("CI must have a Python 3.8 to run the runner with")
    pytest.skip(f"there is no Python {version} on this machine")


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
