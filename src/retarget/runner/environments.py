"""The environments of this host: built once, under a lock, and shared by all jobs."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from retarget.runner.built import folder_names, read_record, remove, take_lock
from retarget.runner.durations import show_duration
from retarget.runner.error_lines import last_line, resolver_sentence
from retarget.runner.errors import Stopped, Unprepared
from retarget.runner.failed_builds import clear_failure, record_failure
from retarget.runner.folder import Folder
from retarget.runner.installed_pythons import search_path
from retarget.runner.locks import (
    conda_pin,
    find_lock,
    locked_lines,
    minor,
    new_lock,
    python_of,
    without_credentials,
)
from retarget.runner.processes import descendants, end
from retarget.runner.stop import StopSignal
from retarget.runner.uv_settings import uv_variables

if TYPE_CHECKING:
    from retarget.runner.images import Images

UNREACHABLE = 3  # the exit code of the conda child when no channel answers
_NO_RATTLER = "py-rattler is not installed here (pip install '.[conda]' in a clone of Retarget)"
# what uv says if an index answered, but does not have a version
_IS_GONE = re.compile(
    r"there is no version of|not found in the (?:package registry|provided package)"
)


class _ChannelsUnreachable(Exception):
    pass


class Environments:
    def __init__(self, node: dict[str, Any], folder: Folder, stop_signal: StopSignal) -> None:
        self._node = node
        self._root = os.path.join(node["cache"], "environments")
        self._folder = folder
        self._stop_signal = stop_signal
        self._lock: int | None = None
        self._used: int | None = None
        self._images: Images | None = None
        self._conda_obstacle = ""  # why the channels of this environment cannot be used
        self.variables: dict[str, str] = {}  # of the job: requirements may refer to them

    def find(self, spec: dict[str, Any]) -> dict[str, Any] | None:
        """Return the record of a built environment, and protect it from removal for now."""
        os.makedirs(self._root, exist_ok=True)
        name = self._name(spec)
        lock = take_lock(self._lock_file(name), fcntl.LOCK_SH)
        if lock is None:
            return None
        ready = self._ready(name)
        if ready is None:
            os.close(lock)
            return None
        self._used = lock  # shared
        return ready

    def find_image(self, spec: dict[str, Any]) -> str | None:
        """Return the image of a built environment, if the engine still has it."""
        ready = self.find(spec)
        if ready is None:
            return None
        if self.images().has(ready["image"]):
            return str(ready["image"])
        self.release()
        if remove(self._root, spec["digest"]) == "used":
            raise Unprepared(f"environment: its image {ready['image']} was removed; try again")
        return None

    def images(self) -> Images:
        """Return the images of this host. Unprepared: it has no container engine."""
        from retarget.runner.containers import engine_of
        from retarget.runner.images import Images

        if self._images is None:
            engine = engine_of(self._node)
            self._images = Images(engine, self._node, self._folder, self._stop_signal, self._run)
        return self._images

    def release(self) -> None:
        """Allow its removal again. The exit of this process does so too."""
        if self._used is not None:
            os.close(self._used)
            self._used = None

    def build(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Build it, or wait while another job builds it."""
        is_announced, label = False, f"environment {spec['digest'][:12]}"
        while True:
            ready = self.find(spec)
            if ready is not None:
                return ready
            name = self._name(spec)
            self._lock = take_lock(self._lock_file(name), fcntl.LOCK_EX)
            if self._lock is not None:
                with contextlib.suppress(_ChannelsUnreachable):  # the next round uses PyPI
                    self._build_once(name, spec, self._lock)
                continue
            if not is_announced:
                self._folder.log(f"{label}: another job is building it; waiting")
                is_announced = True
            if self._stop_signal.pause(0.1):
                raise Stopped

    def record_failure(self, spec: dict[str, Any], reason: str) -> None:
        """Let `environment list` show why a build failed. The next job builds again."""
        record_failure(self._root, spec["digest"], reason)

    def discard(self, digest: str) -> None:
        """Remove what a killed build left, unless another job is building."""
        for name in folder_names(self._root, digest):
            lock = take_lock(self._lock_file(name), fcntl.LOCK_EX)
            if lock is not None:
                if self._ready(name) is None:
                    shutil.rmtree(os.path.join(self._root, name), ignore_errors=True)
                os.close(lock)

    def _name(self, spec: dict[str, Any]) -> str:
        """Return the name of the folder for an environment on this host.

        That is its digest, unless what is built there is not what the server has locked: it was
        resolved here before the server knew a lock. What PyPI replaces has a separate folder, so
        that it is not used when the channels can be reached again.
        """
        name = self._folder_name(spec, self._source(spec))
        ready = self._ready(name)
        if ready is None or not ready["lock"]:
            return name
        built = ready["lock"]
        lock = find_lock(spec["locks"], built["source"], built["python"])
        if lock is None or lock == {**built, "id": lock["id"], "python": lock["python"]}:
            return name  # the patch version of Python is the machine's
        return f"{name}-{lock['id'][:12]}"

    def _folder_name(self, spec: dict[str, Any], source: str) -> str:
        return f"{spec['digest']}-pypi" if source == "pypi" else str(spec["digest"])

    def _source(self, spec: dict[str, Any]) -> str:
        """Return where the packages come from: `pip`, `conda`, or `pypi` instead of channels."""
        if not spec["conda"] or spec["kind"] == "image":
            return "pip"
        if spec["conda_from_pypi"]:
            return "pypi"
        if not self._conda_obstacle:
            self._conda_obstacle = self._find_conda_obstacle(spec)
        if not self._conda_obstacle:
            return "conda"
        if spec["pypi_refusal"]:
            reason = f"the conda channels cannot be used: {self._conda_obstacle}"
            raise Unprepared(f"environment: {reason}, and {spec['pypi_refusal']}")
        return "pypi"

    def _find_conda_obstacle(self, spec: dict[str, Any]) -> str:
        """Return why the channels cannot be used, as far as that is known before a build."""
        if not self._node.get("conda"):
            return str(self._node.get("conda_obstacle") or _NO_RATTLER)
        is_built = self._ready(self._folder_name(spec, "conda")) is not None
        if is_built or self._ready(self._folder_name(spec, "pypi")) is None:
            return ""
        command = [self._node["conda"], self._node["runner"], "channels", *spec["channels"]]
        code, output = self._run(command)
        return last_line(output) if code else ""

    def _build_once(self, name: str, spec: dict[str, Any], lock: int) -> None:
        """Build unless it is built by now, and release the lock for those who wait."""
        try:
            if self._ready(name) is None:
                self._build(name, spec)
        finally:
            os.close(lock)
            self._lock = None

    def _build(self, name: str, spec: dict[str, Any]) -> None:
        built_at, began_at, digest = time.time(), time.monotonic(), spec["digest"]
        folder = os.path.join(self._root, name)
        shutil.rmtree(folder, ignore_errors=True)  # what a killed build left
        os.makedirs(folder)
        if not self._conda_obstacle:  # else this is the second way to build it
            self._folder.log(f"environment {digest[:12]}: building")
        try:
            prefix = os.path.join(folder, "env")
            details = self._fill(prefix, folder, spec)
        except (Unprepared, Stopped, _ChannelsUnreachable):
            shutil.rmtree(folder, ignore_errors=True)
            raise
        seconds = time.monotonic() - began_at
        ready = {
            "digest": digest,
            "name": name,
            "python": os.path.join(prefix, "bin", "python"),
            "seconds": round(seconds, 3),
            "built": built_at,
            "spec": {key: spec[key] for key in spec if key != "locks"},
            **details,
        }
        part = os.path.join(folder, "ready.part")
        with open(part, "w", encoding="utf-8") as file:
            json.dump(ready, file)
        os.rename(part, os.path.join(folder, "ready.json"))
        clear_failure(self._root, digest)
        self._folder.log(f"environment {digest[:12]}: ready after {show_duration(seconds)}")

    def _fill(self, prefix: str, folder: str, spec: dict[str, Any]) -> dict[str, Any]:
        if spec["kind"] == "image":
            image = self.images().make(f"retarget-{spec['digest']}", folder, spec)
            return {"how": "Dockerfile" if spec["context"] else "image", "lock": None, **image}
        source = self._source(spec)
        if source == "conda":
            lock = find_lock(spec["locks"], "conda")
            conda = self._conda(prefix, folder, spec, lock)
            self._install(prefix, folder, spec["pip"], lock)
            self._compile(prefix)
            return {"how": "conda", "lock": new_lock(prefix, "conda", conda)}
        if source == "pypi":
            self._log_substitute(spec)
        lock = self._venv(prefix, spec, source)
        mapped: list[str] = spec["pypi"] if source == "pypi" else []
        self._install(prefix, folder, [*mapped, *spec["pip"]], lock)
        how = "built from PyPI" if source == "pypi" else "pip"
        return {"how": how, "lock": new_lock(prefix, source, [])}

    def _conda(
        self, prefix: str, folder: str, spec: dict[str, Any], lock: dict[str, Any] | None
    ) -> list[str]:
        """Build from the conda channels and return the packages."""
        spec_file = os.path.join(folder, "conda.json")
        pins = [conda_pin(package) for package in lock["conda"]] if lock else []
        with open(spec_file, "w", encoding="utf-8") as file:
            json.dump(dict(spec, pins=pins), file)
        command = [self._node["conda"], self._node["runner"], "conda", spec_file, prefix]
        code, output = self._run(command)
        if code == 0:
            with open(f"{spec_file}.lock", encoding="utf-8") as file:
                return list(json.load(file))
        if code != UNREACHABLE:
            raise Unprepared(f"environment: {last_line(output)}")
        self._conda_obstacle = last_line(output)
        raise _ChannelsUnreachable

    def _log_substitute(self, spec: dict[str, Any]) -> None:
        reason = self._conda_obstacle or "--conda-from-pypi"
        self._folder.log(f"environment: conda channels not used: {reason}")
        self._folder.log(f"environment: PyPI packages instead: {', '.join(spec['pypi']) or 'none'}")
        if spec["dropped"]:
            missing = ", ".join(spec["dropped"])
            self._folder.log(f"environment: built without {missing} because of --conda-from-pypi")

    def _venv(self, prefix: str, spec: dict[str, Any], source: str) -> dict[str, Any] | None:
        """Make a virtual environment, and return the lock for its Python if there is one."""
        python: str | None = spec["python"]
        if python and not python[0].isdigit():  # any version of a range: that of a lock if possible
            lock = find_lock(spec["locks"], source)
            if lock is not None and self._make_venv(prefix, minor(lock["python"]), optional=True):
                return lock
        self._make_venv(prefix, python or self._node.get("python") or sys.executable)
        lock = find_lock(spec["locks"], source, python_of(prefix))
        if lock is None and spec["locks"]:
            known = ", ".join(
                f"{lock['platform']}, Python {lock['python']}" for lock in spec["locks"]
            )
            self._folder.log(
                f"environment: no lock for Python {python_of(prefix)} on this machine, only "
                f"for {known}; resolving the versions"
            )
        return lock

    def _make_venv(self, prefix: str, python: str, *, optional: bool = False) -> bool:
        arguments = ("venv", "--quiet", "--no-project", "--python", python, prefix)
        try:
            self._uv(*arguments, PATH=search_path(os.environ))
        except Unprepared:
            if not optional:
                raise
            self._folder.log(f"environment: Python {python} of the lock is not available here")
            return False
        return True

    def _install(
        self, prefix: str, folder: str, lines: list[str], lock: dict[str, Any] | None
    ) -> None:
        if not lines:
            return
        python = os.path.join(prefix, "bin", "python")
        options = ("--compile-bytecode",) if lock is None else ("--compile-bytecode", "--no-deps")
        lines = lines if lock is None else locked_lines(lines, lock)
        requirements = os.path.join(folder, "requirements.txt")
        with open(requirements, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        try:
            self._uv("pip", "install", *options, "--python", python, "-r", requirements)
        except Unprepared as error:
            if lock is None or not _IS_GONE.search(str(error)):
                raise
            hint = "its versions are locked; change the definition to resolve them again"
            raise Unprepared(f"{error} ({hint})") from None

    def _compile(self, prefix: str) -> None:
        """Compile what conda installed: jobs then write nothing into the environment."""
        script = "import compileall, sysconfig as s; compileall.compile_dir(s.get_path('purelib'), "
        command = [os.path.join(prefix, "bin", "python"), "-c", script + "quiet=2, workers=0)"]
        if os.path.exists(command[0]):
            self._run(command)  # a file in the syntax of another Python is not an error

    def _uv(self, *arguments: str, **more: str) -> None:
        uv = self._node.get("uv")
        if not uv:
            raise Unprepared("environment: uv was not found on this machine; install it there")
        variables = {**os.environ, **uv_variables(os.environ), **self.variables, **more}
        command = [uv, *arguments, "--no-progress", "--color", "never"]
        code, output = self._run(command, variables)
        if code != 0:
            raise Unprepared(f"environment: {without_credentials(resolver_sentence(output))}")

    def _run(self, command: list[str], variables: dict[str, str] | None = None) -> tuple[int, str]:
        """Run a step of the build and log its output; the stop signal ends it."""
        log = self._folder.open_stream("prepare")
        start = os.lseek(log, 0, os.SEEK_END)
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder.path,
                env=variables,
                # a build that outlives its runner still holds the lock
                pass_fds=[] if self._lock is None else [self._lock],
            )
            while process.poll() is None:
                if self._stop_signal.pause(0.02):
                    end(descendants, 0.0, process.poll)
                    raise Stopped
        finally:
            os.close(log)
        if process.returncode < 0:
            name = signal.Signals(-process.returncode).name
            raise Unprepared(f"environment: the build was killed by {name}")
        with open(os.path.join(self._folder.streams, "prepare"), "rb") as file:
            file.seek(start)
            return process.returncode, file.read().decode("utf-8", "replace")

    def _ready(self, name: str) -> dict[str, Any] | None:
        ready = read_record(os.path.join(self._root, name, "ready.json"))
        return ready if ready is not None and "lock" in ready else None  # else: built long ago

    def _lock_file(self, name: str) -> str:
        return os.path.join(self._root, f"{name}.lock")
