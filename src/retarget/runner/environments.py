"""Environments on this machine: found, or built once under a lock, and shared by all jobs."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from retarget.runner.errors import Stopped, Unprepared
from retarget.runner.folder import Folder
from retarget.runner.orders import Orders
from retarget.runner.processes import descendants, end
from retarget.runner.sentences import last_line, resolver_sentence

if TYPE_CHECKING:
    from retarget.runner.images import Images

UNREACHABLE = 3  # the exit code of the conda child when no channel answers


class Environments:
    def __init__(self, node: dict[str, Any], folder: Folder, orders: Orders) -> None:
        self._node = node
        self._root = os.path.join(node["cache"], "environments")
        self._folder = folder
        self._orders = orders
        self._lock: int | None = None
        self._used: int | None = None
        self._images: Images | None = None

    def find(self, digest: str) -> dict[str, Any] | None:
        """Return what is known of a built environment, and keep it from being removed for now."""
        os.makedirs(self._root, exist_ok=True)
        lock = _lock(self._lock_file(digest), fcntl.LOCK_SH)
        if lock is None:
            return None
        ready = self._ready(digest)
        if ready is None:
            os.close(lock)
            return None
        self._used = lock  # shared
        return ready

    def find_image(self, digest: str) -> str | None:
        """Return the image of an environment that is built here, if its engine has it still."""
        ready = self.find(digest)
        if ready is None:
            return None
        if self.images().has(ready["image"]):
            return str(ready["image"])
        self.release()
        if remove(self._root, digest) == "used":
            raise Unprepared(f"environment: its image {ready['image']} was removed; try again")
        return None

    def images(self) -> Images:
        """Return the images of this machine; Unprepared where there is no engine for them."""
        from retarget.runner.containers import engine_of
        from retarget.runner.images import Images

        if self._images is None:
            engine = engine_of(self._node)
            self._images = Images(engine, self._node, self._folder, self._orders, self._run)
        return self._images

    def release(self) -> None:
        """Let it be removed again. The end of this process does that, too."""
        if self._used is not None:
            os.close(self._used)
            self._used = None

    def build(self, digest: str, wanted: dict[str, Any]) -> dict[str, Any]:
        """Build it, or wait for whoever is building it."""
        told = False
        while True:
            ready = self.find(digest)
            if ready is not None:
                return ready
            self._lock = _lock(self._lock_file(digest), fcntl.LOCK_EX)
            if self._lock is not None:
                self._build_once(digest, wanted, self._lock)
                continue
            if not told:
                self._folder.say(f"environment {digest[:12]}: another job is building it; waiting")
                told = True
            if self._orders.pause(0.1):
                raise Stopped

    def discard(self, digest: str) -> None:
        """Remove what a killed build left, unless another is at it."""
        place = os.path.join(self._root, digest)
        lock = _lock(self._lock_file(digest), fcntl.LOCK_EX) if os.path.isdir(place) else None
        if lock is not None:
            if self._ready(digest) is None:
                shutil.rmtree(place, ignore_errors=True)
            os.close(lock)

    def _build_once(self, digest: str, wanted: dict[str, Any], lock: int) -> None:
        """Build unless somebody has, and let go of the lock: whoever waits need not wait longer."""
        try:
            if self._ready(digest) is None:
                self._build(digest, wanted)
        finally:
            os.close(lock)
            self._lock = None

    def _build(self, digest: str, wanted: dict[str, Any]) -> None:
        built, began = time.time(), time.monotonic()
        place = os.path.join(self._root, digest)
        shutil.rmtree(place, ignore_errors=True)  # what a killed build left
        os.makedirs(place)
        self._folder.say(f"environment {digest[:12]}: building")
        try:
            prefix = os.path.join(place, "env")
            more = self._fill(prefix, place, wanted)
        except (Unprepared, Stopped):
            shutil.rmtree(place, ignore_errors=True)
            raise
        seconds = time.monotonic() - began
        ready = {
            "digest": digest,
            "python": os.path.join(prefix, "bin", "python"),
            "seconds": round(seconds, 3),
            "built": built,
            "wanted": wanted,
            **more,
        }
        part = os.path.join(place, "ready.part")
        with open(part, "w", encoding="utf-8") as file:
            json.dump(ready, file)
        os.rename(part, os.path.join(place, "ready.json"))
        self._folder.say(f"environment {digest[:12]}: ready after {seconds:.1f} s")

    def _fill(self, prefix: str, place: str, wanted: dict[str, Any]) -> dict[str, Any]:
        if wanted["kind"] == "image":
            made = self.images().make(f"retarget-{wanted['digest']}", place, wanted)
            return {"how": "Dockerfile" if wanted["context"] else "image", **made}
        return {"how": self._fill_prefix(prefix, place, wanted)}

    def _fill_prefix(self, prefix: str, place: str, wanted: dict[str, Any]) -> str:
        if wanted["conda"] and self._conda(prefix, place, wanted):
            self._install(prefix, place, wanted["pip"])
            return "conda"
        mapped: list[str] = wanted["pypi"] if wanted["conda"] else []
        self._venv(prefix, wanted["python"])
        self._install(prefix, place, [*mapped, *wanted["pip"]])
        return "pypi for conda" if wanted["conda"] else "pip"

    def _conda(self, prefix: str, place: str, wanted: dict[str, Any]) -> bool:
        """Build from the conda channels; False when none can be reached from here."""
        spec = os.path.join(place, "conda.json")
        with open(spec, "w", encoding="utf-8") as file:
            json.dump(wanted, file)
        why = "py-rattler is not installed here (pip install 'retarget[conda]')"
        if self._node.get("conda"):
            code, said = self._run(
                [self._node["conda"], self._node["runner"], "conda", spec, prefix]
            )
            if code == 0:
                return True
            if code != UNREACHABLE:
                raise Unprepared(f"environment: {last_line(said)}")
            why = last_line(said)
            shutil.rmtree(prefix, ignore_errors=True)
        self._folder.say(f"environment: conda channels not used: {why}")
        self._folder.say(
            f"environment: from PyPI instead: {', '.join(wanted['pypi']) or 'nothing'}"
        )
        if wanted["dropped"]:
            self._folder.say(f"environment: not on PyPI, left out: {', '.join(wanted['dropped'])}")
        return False

    def _venv(self, prefix: str, python: str | None) -> None:
        asked = python or self._node.get("python") or sys.executable
        self._uv("venv", "--quiet", "--no-project", "--no-config", "--python", asked, prefix)

    def _install(self, prefix: str, place: str, lines: list[str]) -> None:
        if not lines:
            return
        requirements = os.path.join(place, "requirements.txt")
        with open(requirements, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        python = os.path.join(prefix, "bin", "python")
        self._uv("pip", "install", "--python", python, "-r", requirements)

    def _uv(self, *arguments: str) -> None:
        uv = self._node.get("uv")
        if not uv:
            raise Unprepared("environment: there is no uv on this machine to build it with")
        code, said = self._run([uv, *arguments, "--no-progress", "--color", "never"])
        if code != 0:
            raise Unprepared(f"environment: {resolver_sentence(said)}")

    def _run(self, command: list[str]) -> tuple[int, str]:
        """Run a step of the build, with its words in the job's log, and end it at an order."""
        output = self._folder.open_stream("prepare")
        start = os.lseek(output, 0, os.SEEK_END)
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._folder.path,
                # a build that outlives its runner still holds the lock
                pass_fds=[] if self._lock is None else [self._lock],
            )
            while process.poll() is None:
                if self._orders.pause(0.02):
                    end(descendants, 0.0, process.poll)
                    raise Stopped
        finally:
            os.close(output)
        if process.returncode < 0:
            name = signal.Signals(-process.returncode).name
            raise Unprepared(f"environment: its build was killed by {name}")
        with open(os.path.join(self._folder.streams, "prepare"), "rb") as file:
            file.seek(start)
            return process.returncode, file.read().decode("utf-8", "replace")

    def _ready(self, digest: str) -> dict[str, Any] | None:
        return _read(os.path.join(self._root, digest, "ready.json"))

    def _lock_file(self, digest: str) -> str:
        return os.path.join(self._root, f"{digest}.lock")


def list_built(root: str) -> list[dict[str, Any]]:
    names = sorted(os.listdir(root)) if os.path.isdir(root) else []
    found = [_read(os.path.join(root, name, "ready.json")) for name in names]
    return [
        dict(ready, size=ready.get("size", 0) + _size(os.path.join(root, ready["digest"])))
        for ready in found
        if ready
    ]


def remove(root: str, digest: str) -> str:
    """Remove a built environment: `removed`, `absent`, or `used` while a job has it."""
    place = os.path.join(root, digest)
    if not os.path.isdir(place):
        return "absent"
    lock = _lock(os.path.join(root, f"{digest}.lock"), fcntl.LOCK_EX)
    if lock is None:
        return "used"
    _remove_image(_read(os.path.join(place, "ready.json")) or {})
    finally_gone = f"{place}.gone"
    os.rename(place, finally_gone)
    shutil.rmtree(finally_gone, ignore_errors=True)
    os.unlink(os.path.join(root, f"{digest}.lock"))
    os.close(lock)
    return "removed"


def _remove_image(ready: dict[str, Any]) -> None:
    """Have the engine forget an image. Without that engine it does as well without us."""
    if "image" in ready:
        words = [ready["engine"], "rmi", "-f", ready["image"]]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(words, check=False, capture_output=True, timeout=60)


def _lock(path: str, kind: int) -> int | None:
    """Lock the file of this name, made if need be; None when another has it."""
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            return None
        if _is_at(lock, path):
            return lock
        os.close(lock)  # removed with its environment while this one opened it


def _is_at(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _size(folder: str) -> int:
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            total += os.lstat(os.path.join(where, name)).st_size
    return total


def _read(path: str) -> dict[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
