"""The packages that a job requires beside its environment: installs those that it does not have.

They go into a folder of their own, once per host and state of the environment. The environment
keeps its packages and their versions: the folder has only what is missing, in versions that fit.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import time
import zipfile
from typing import TYPE_CHECKING, Any, Callable, Sequence
from urllib.parse import quote

from retarget.runner.durations import show_duration
from retarget.runner.errors import Stopped, Unprepared
from retarget.runner.locks import platform_name
from retarget.runner.package_folders import PackageFolders

if TYPE_CHECKING:
    from retarget.runner.layer import Layer

_PATHS_FILE = "_retarget_required.pth"  # sorted after the file that adds what is under the layer
# the lines of requirements that say where packages come from
_SOURCES = ("--index-url", "--extra-index-url", "--find-links", "--no-index", "--trusted-host")
_LIST_SECONDS = 120.0
_LIST = """
import json, sys
from importlib.metadata import distributions
installed = {}
for package in distributions():
    if package.metadata["Name"] and package.version:
        installed.setdefault(package.metadata["Name"], package.version)
print(json.dumps([sys.version, installed]))
"""
# what a resolver takes: packages of a system may have other versions
_VERSION = re.compile(r"(\d+!)?\d+(\.\d+)*((a|b|rc|\.post|\.dev)\d+)*")


class RequiredPackages(PackageFolders):
    """One folder per set of packages, interpreter and what is installed there."""

    def __init__(
        self, node: dict[str, Any], folder: Any, stop_signal: Any, environment: dict[str, Any]
    ) -> None:
        super().__init__(node, folder, stop_signal)
        self._sources = [line for line in environment["pip"] if line.startswith(_SOURCES)]
        self._python = ""
        self._installed: dict[str, str] = {}  # versions by name

    def ensure(
        self, names: Sequence[str], python: str, layered: str, report: Callable[[], None]
    ) -> str | None:
        """Return a folder with the packages that are missing; None if there are none.

        `python` is the interpreter, `layered` is that of the layer over it.
        """
        version, self._installed = _list_installed(layered)
        self._python = python
        missing = [name for name in names if name not in self._installed]
        if not missing:
            return None
        interpreter = [python, version, platform_name()]  # images may have another at this path
        content = [interpreter, sorted(self._installed.items()), missing, self._sources]
        key = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]
        return self._find_or_make(key, lambda built: self._make(built, missing), report)

    def _make(self, built: str, missing: list[str]) -> None:
        folder, label = os.path.dirname(built), f"packages {', '.join(missing)}"
        shutil.rmtree(folder, ignore_errors=True)  # what a killed build left
        os.makedirs(folder)
        began_at = time.monotonic()
        self._folder.log(f"{label}: installing for this job, without changing its environment")
        try:
            self._resolve(folder, missing)
            self._install_absent(folder)
        except Unprepared as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise _cannot_add(missing, error) from None
        except (Stopped, OSError):
            shutil.rmtree(folder, ignore_errors=True)
            raise
        os.rename(os.path.join(folder, "part"), built)
        took = show_duration(time.monotonic() - began_at)
        self._folder.log(f"{label}: ready after {took}")

    def _resolve(self, folder: str, missing: list[str]) -> None:
        """Choose versions of all that is needed, with those that the environment has."""
        usual = {name: version.partition("+")[0] for name, version in self._installed.items()}
        wheels = os.path.join(folder, "installed")
        os.mkdir(wheels)
        pins = [
            f"{name} @ file://{quote(_write_wheel(wheels, name, version))}"
            for name, version in usual.items()
            if _VERSION.fullmatch(version)
        ]
        constraints = _write_lines(folder, "constraints.txt", pins)
        required = _write_lines(folder, "required.in", [*self._sources, *missing])
        resolved = os.path.join(folder, "resolved.txt")
        options = ("--quiet", "--no-header", "--no-annotate", "--python", self._python)
        files = ("--constraint", constraints, "--output-file", resolved, required)
        self._uv("pip", "compile", *options, *files)
        shutil.rmtree(wheels)

    def _install_absent(self, folder: str) -> None:
        """Install what was resolved, apart from what the environment has."""
        with open(os.path.join(folder, "resolved.txt"), encoding="utf-8") as file:
            pins = [line.strip() for line in file if "==" in line]  # the others are addresses
        absent = [pin for pin in pins if _normalized(pin.partition("==")[0]) not in self._installed]
        requirements = _write_lines(folder, "absent.txt", [*self._sources, *absent])
        options = ("--no-deps", "--compile-bytecode", "--python", self._python)
        files = ("--target", os.path.join(folder, "part"), "-r", requirements)
        self._uv("pip", "install", *options, *files)


def add_folder(layer: Layer, folder: str) -> None:
    """Make the packages in a folder importable in a layer, after those of the environment."""
    path = ascii(folder)
    line = f"import site, sys; {path} in sys.path or site.addsitedir({path})\n"
    layer.add_file(os.path.join(layer.packages, _PATHS_FILE), line)
    layer.package_folders.append(folder)


def _cannot_add(names: list[str], error: Unprepared) -> Unprepared:
    listed, cause = " and ".join(names), str(error).partition(": ")[2]
    return Unprepared(
        f"this job needs {listed}, which could not be installed without changing the packages of "
        f"its environment: {cause}"
    )


def _list_installed(python: str) -> tuple[str, dict[str, str]]:
    """Return the version of an interpreter, and those of all packages that it finds."""
    try:
        done = subprocess.run(
            [python, "-c", _LIST], check=True, capture_output=True, timeout=_LIST_SECONDS
        )
        version, packages = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise Unprepared(f"the packages of {python} could not be listed: {error}") from None
    return version, {_normalized(name): package for name, package in packages.items()}


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def _write_wheel(folder: str, name: str, version: str) -> str:
    """Write a wheel that is only a name and a version, for the resolver.

    The index may not have this version, and need not: it is not installed again.
    """
    stem = f"{name.replace('-', '_')}-{version}"
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    path = os.path.join(folder, f"{stem}-py3-none-any.whl")
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(f"{stem}.dist-info/{file}", text)
    return path


def _write_lines(folder: str, name: str, lines: list[str]) -> str:
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in lines))
    return path
