"""Builds the user's own packages that are more than Python files, once per snapshot."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from typing import Any, Callable

from retarget.runner.durations import show_duration
from retarget.runner.errors import Stopped, Unprepared
from retarget.runner.package_folders import PackageFolders
from retarget.runner.snapshot import Blobs, read_entries

# a snapshot has no history, from which some build tools take the version
_VERSION_VARIABLES = ("SETUPTOOLS_SCM_PRETEND_VERSION", "PDM_BUILD_SCM_VERSION")


class PackageBuilds(PackageFolders):
    """The own packages of jobs: a folder per package, its content and its environment."""

    def ensure(self, launch: dict[str, Any], python: str, report: Callable[[], None]) -> str:
        """Return the folder with the packages of a launch, which are built if it is missing."""
        key = self._key(launch, python)
        return self._find_or_make(key, lambda built: self._make(built, launch, python), report)

    def _key(self, launch: dict[str, Any], python: str) -> str:
        """Return a digest of everything that determines what is built."""
        packages = launch["own_packages"]
        blobs = Blobs(
            os.path.join(self._node["cache"], "blobs"), self._node.get("blobs", []), self._folder
        )
        paths = [package["path"] for package in packages]
        entries = [
            entry
            for entry in read_entries(launch["snapshot"], blobs)
            if any(_contains(path, entry["path"]) for path in paths)
        ]
        content = [python, launch["environment"]["pip"], packages, entries]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]

    def _make(self, built: str, launch: dict[str, Any], python: str) -> None:
        packages = launch["own_packages"]
        names = ",".join(package["name"] for package in packages if package["build"])
        folder = os.path.dirname(built)
        shutil.rmtree(folder, ignore_errors=True)  # what a killed build left
        source, part = os.path.join(folder, "source"), os.path.join(folder, "part")
        began_at = time.monotonic()
        self._folder.log(f"packages {names}: building")
        try:
            _copy(self._folder.work, source, [package["path"] for package in packages])
            self._install_packages(source, part, launch, python)
        except (Unprepared, Stopped, OSError):
            shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(source, ignore_errors=True)
        os.rename(part, built)
        took = show_duration(time.monotonic() - began_at)
        self._folder.log(f"packages {names}: ready after {took}")

    def _install_packages(
        self, source: str, part: str, launch: dict[str, Any], python: str
    ) -> None:
        packages = launch["own_packages"]
        has_dependencies = any(package["with_dependencies"] for package in packages)
        # all of them if dependencies are resolved: no index may be asked for an own package
        chosen = [package for package in packages if has_dependencies or package["build"]]
        options = [line for line in launch["environment"]["pip"] if line.startswith("--")]
        paths = [os.path.normpath(os.path.join(source, package["path"])) for package in chosen]
        requirements = os.path.join(os.path.dirname(part), "requirements.txt")
        with open(requirements, "w", encoding="utf-8") as file:
            file.write("\n".join([*options, *paths]) + "\n")
        self.variables = {**dict.fromkeys(_VERSION_VARIABLES, "0+unknown"), **self.variables}
        extra = ["--compile-bytecode", *([] if has_dependencies else ["--no-deps"])]
        try:
            self._uv(
                "pip", "install", *extra, "--python", python, "--target", part, "-r", requirements
            )
        except Unprepared as error:
            raise Unprepared(f"packages:{str(error).partition(':')[2]}") from None


def _contains(folder: str, path: str) -> bool:
    return folder in (".", path) or path.startswith(f"{folder}/")


def _copy(work: str, source: str, paths: list[str]) -> None:
    """Copy the packages, because building writes into their folders."""
    for path in sorted(paths):
        target = os.path.normpath(os.path.join(source, path))
        origin = os.path.normpath(os.path.join(work, path))
        if os.path.lexists(target):
            continue  # in a folder that has been copied
        if os.path.isdir(origin):
            shutil.copytree(origin, target, symlinks=True)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy2(origin, target)
