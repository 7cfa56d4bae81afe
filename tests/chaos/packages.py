"""Packages whose build waits, to keep a job in `preparing` for as long as a test needs."""

import io
import itertools
import tarfile
from pathlib import Path
from typing import Any

_PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "slow"
version = "{version}"
"""
_BACKEND = """
import os, time, zipfile
INFO = "slow-{version}.dist-info/"
def build_wheel(folder, config_settings=None, metadata_directory=None):
    open({started!r}, "w").close()
    while not os.path.exists({gate!r}):
        time.sleep(0.02)
    name = "slow-{version}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        wheel.writestr("slow.py", "")
        wheel.writestr(INFO + "METADATA", {metadata!r})
        wheel.writestr(INFO + "WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        wheel.writestr(INFO + "RECORD", "")
    return name
"""
_numbers = itertools.count(1)


class SlowPackage:
    """One version of a package whose build waits until its gate is open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.version = f"{next(_numbers)}.0"
        self._gate = folder / f"gate-{self.version}"
        self._started = folder / f"started-{self.version}"
        folder.mkdir(exist_ok=True)
        metadata = f"Metadata-Version: 2.2\nName: slow\nVersion: {self.version}\n"
        words = {
            "version": self.version,
            "started": str(self._started),
            "gate": str(self._gate),
            "metadata": metadata,
        }
        with tarfile.open(folder / f"slow-{self.version}.tar.gz", "w:gz") as archive:
            for name, text in (
                ("pyproject.toml", _PROJECT.format(**words)),
                ("backend.py", _BACKEND.format(**words)),
                ("PKG-INFO", metadata),
            ):
                entry = tarfile.TarInfo(f"slow-{self.version}/{name}")
                entry.size = len(text.encode())
                archive.addfile(entry, io.BytesIO(text.encode()))

    @property
    def environment(self) -> dict[str, Any]:
        """The environment of a job that needs the package."""
        lines = ["--no-index", f"--find-links {self._folder}", f"slow=={self.version}"]
        return {"kind": "system", "pip": lines}

    @property
    def is_building(self) -> bool:
        return self._started.exists()

    def open_gate(self) -> None:
        self._gate.touch()
