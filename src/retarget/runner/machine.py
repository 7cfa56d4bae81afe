"""The launches of one machine, seen to on that machine: folders, and the lock in each of them.

A launch is a folder, and the lock in it tells whether its runner is alive. No pid is ever kept to
find a process again, so none can be mistaken for another. A driver does this in its own process,
or has an agent do it where the machine is.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import Any, Mapping

from retarget.runner import nursery
from retarget.runner.engine import find_engine, name_engine
from retarget.runner.environments import list_built, remove
from retarget.runner.folder import Folder

# what reading a file of a launch raises after a script has written something else there
_DAMAGED = (OSError, ValueError, LookupError, TypeError, RecursionError)
_GET_FLAGS, _SET_FLAGS, _UNRELATED = 0x80086601, 0x40086602, 0x00020000  # of Linux: chattr +T
_LONGEST_SIZE = 12  # digits, in mebibytes
_FRESH = 30.0  # seconds that the answer about an engine holds
_STUCK = 30.0  # seconds beyond its grace after which a runner that does not stop is killed
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")  # no path, and no hidden file
# What a job inherits from its machine's surroundings: the machine's, not the terminal's.
_INHERITED_WORDS = """
PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TMPDIR LD_LIBRARY_PATH CUDA_HOME CUDA_PATH
SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE HTTP_PROXY HTTPS_PROXY NO_PROXY
http_proxy https_proxy no_proxy XDG_RUNTIME_DIR XDG_CACHE_HOME NVIDIA_VISIBLE_DEVICES
"""
_INHERITED = frozenset(_INHERITED_WORDS.split())
_INHERITED_FAMILIES = ("LC_", "UV_", "PIP_", "DOCKER_", "CONTAINER")


class Machine:
    """What it tells and is told is JSON, so that it may be far away."""

    def __init__(self, root: str, zipapp: str) -> None:
        self.root = root
        self.launches = os.path.join(root, "launches")
        self._zipapp = zipapp

    def prepare(self) -> None:
        """Make the folders, or raise OSError."""
        for folder in (self.root, self.launches):
            os.makedirs(folder, mode=0o700, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise PermissionError(13, "it cannot be written to", folder)
        _spread(self.launches)

    def facts(self) -> dict[str, Any]:
        """Tell what this machine has."""
        return {
            "name": os.uname().nodename,
            "cpus": float(_cores()),
            "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "gpus": cards(),
            "python": sys.version.split()[0],
            "machine": os.uname().machine,
            "engine": name_engine(),
            "free": shutil.disk_usage(self.root).free,
        }

    def launch(self, key: str, told: dict[str, Any]) -> None:
        """Make sure that a runner works on a launch, or has; it is told where the server is now."""
        folder = self.folder(key)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        _write(os.path.join(folder, "launch.json"), told)
        self._ensure_runner(folder)

    def poll(self, keys: list[str]) -> list[dict[str, Any]]:
        return [observe(self.folder(key)) for key in keys]

    def cancel(self, key: str) -> None:
        folder = self.folder(key)
        if not _has(folder, "launch.json") or _has(folder, "done"):
            return
        marker = os.path.join(folder, "cancel")
        if os.path.islink(marker):  # by its script: it might lead anywhere
            _unlink(marker)
        if not os.path.exists(marker):
            _touch(marker)
        elif time.time() - os.stat(marker).st_mtime > grace_of(folder) + _STUCK:
            _kill_runner(folder)  # it hears and does nothing, stopped perhaps
            _touch(marker)  # the next one has its own time
        _poke(os.path.join(folder, "orders"))
        self._ensure_runner(folder)  # if nobody is there to hear it, a new one sees it through

    def forget(self, key: str) -> None:
        folder = self.folder(key)
        gone = os.path.join(self.launches, f".{key}.gone")
        try:
            os.rename(folder, gone)
        except FileNotFoundError:
            pass
        clear(gone)

    def diagnose(self, key: str) -> str:
        """Return the last words of a launch's runner."""
        try:
            path = os.path.join(self.folder(key), "runner.log")
            with open(path, encoding="utf-8", errors="replace") as file:
                said = file.read().strip()
        except FileNotFoundError:
            return f"there is no trace of it in {self.launches}"
        return said[-2000:] or "its runner was started and said nothing"

    def environments(self) -> list[dict[str, Any]]:
        return list_built(os.path.join(self.root, "environments"))

    def remove_environment(self, digest: str) -> str:
        """Remove a built environment: `removed`, `absent`, or `used` while a job has it."""
        return remove(os.path.join(self.root, "environments"), _checked(digest))

    def folder(self, key: str) -> str:
        return os.path.join(self.launches, _checked(key))

    def _ensure_runner(self, path: str) -> None:
        """Start a runner unless one is there. It gets the lock taken: no instant is without."""
        folder = Folder(path)
        if folder.has("done") or not folder.acquire():
            return
        try:
            _nursery.start_runner(self._zipapp, path, folder.lock)
        finally:
            folder.release()


class _Nursery:
    """The one process that forks the runners of this one. It is only there to save time."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._door: socket.socket | None = None
        self._made_for: tuple[int, dict[str, str]] = (0, {})
        atexit.register(self._close)

    def start_runner(self, zipapp: str, folder: str, lock: int) -> None:
        with self._turn:
            now = os.getpid(), inherited(os.environ)
            if self._door is not None and self._made_for == now:
                try:
                    nursery.ask(self._door, folder, lock)
                    return
                except OSError:
                    pass  # it was killed
            self._close()
            self._door, self._made_for = self._open(zipapp, now[1]), now
            nursery.ask(self._door, folder, lock)

    def _close(self) -> None:
        if self._door is not None:
            self._door.close()

    def _open(self, zipapp: str, env: dict[str, str]) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                nursery.command(sys.executable, zipapp, theirs.fileno()),
                cwd="/",
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=[theirs.fileno()],
            )
        threading.Thread(target=process.wait, name="reap", daemon=True).start()
        return ours


_nursery = _Nursery()


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables a job gets from the machine."""
    return {
        name: value
        for name, value in environ.items()
        if name in _INHERITED or name.startswith(_INHERITED_FAMILIES)
    }


def observe(folder: str) -> dict[str, Any]:
    """Tell in which phase a launch is: gone, running, dead or exited."""
    if not os.path.exists(folder):
        return {"phase": "gone"}
    # looked at first: it is done before its runner leaves
    locked = _locked(os.path.join(folder, "runner.log"))
    try:
        with open(os.path.join(folder, "done"), "rb") as file:
            ending = json.loads(file.read().splitlines()[-1])
        code, reason = ending["exit_code"], ending["reason"]
        if not isinstance(code, (int, type(None))) or not isinstance(reason, str):
            raise TypeError
        return {"phase": "exited", "exit_code": code, "reason": reason}
    except FileNotFoundError:
        return {"phase": "running" if locked else "dead"}
    except _DAMAGED:  # by its script: no other launch may suffer from that
        return {"phase": "exited", "reason": "what it wrote of its end cannot be read"}


def grace_of(folder: str) -> float:
    """Return the seconds that a launch may take to end."""
    try:
        with open(os.path.join(folder, "launch.json"), "rb") as file:
            return float(json.loads(file.read())["launch"]["grace"])
    except _DAMAGED:
        return 0.0  # no runner can make anything of it either


def clear(folder: str) -> None:
    """Remove a folder, whatever a script has made of it."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:
        pass
    if os.path.exists(folder):  # the script has made folders read-only, or deeper than Python goes
        for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
            subprocess.run([*command, "--", folder], check=False, stderr=subprocess.DEVNULL)


_engine: list[tuple[float, str]] = []


def engine() -> str:
    """Name the container engine of this machine and its version; empty without one."""
    if not _engine or time.monotonic() - _engine[0][0] > _FRESH:
        _engine[:] = [(time.monotonic(), str(find_engine() or ""))]
    return _engine[0][1]


_cards: list[list[dict[str, Any]]] = []  # they do not change while this process lives


def cards() -> list[dict[str, Any]]:
    """Ask nvidia-smi for the GPUs of this machine; without it there are none."""
    if not _cards:
        query = ["--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits"]
        try:
            answer = subprocess.run(
                ["nvidia-smi", *query],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                check=True,
                timeout=20,
            )
            _cards.append(read_cards(answer.stdout.decode("utf-8", "replace")))
        except (OSError, subprocess.SubprocessError):
            _cards.append([])
    return _cards[0]


def read_cards(said: str) -> list[dict[str, Any]]:
    """Read what nvidia-smi says. A sentence, such as that there are none, is not a row of three."""
    rows = [[cell.strip() for cell in line.split(",")] for line in said.splitlines()]
    return [
        {"id": row[0], "name": row[1], "memory": _mebibytes(row[2])}
        for row in rows
        if len(row) == 3
    ]


def _mebibytes(text: str) -> int | None:
    # as nobody has that much, longer ones are nonsense, and the longest cannot be read at all
    return int(text) * 2**20 if text.isdecimal() and len(text) <= _LONGEST_SIZE else None


def _checked(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise ValueError(f"{key[:100]!r} is not a key")
    return key


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


def _spread(folder: str) -> None:
    """Tell ext4 that what is in a folder is not related, so that it is not crammed together.

    One without a journal walks past all that was removed there in the last minutes, for each new
    file: a good part of the time of many short launches.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        (flags,) = struct.unpack("i", fcntl.ioctl(descriptor, _GET_FLAGS, struct.pack("i", 0)))
        fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("i", flags | _UNRELATED))
    except OSError:
        pass  # another file system, or another system
    finally:
        os.close(descriptor)


def _kill_runner(folder: str) -> None:
    """Kill whoever was started for this folder. Found by its command, never by a kept pid."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            if b"run" in words and os.fsencode(folder) in words:
                os.kill(int(name), signal.SIGKILL)
        except OSError:
            pass  # gone meanwhile, or another user's


def _write(path: str, content: dict[str, Any]) -> None:
    part = f"{path}.{os.getpid()}.{os.urandom(4).hex()}.part"
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(content, file)
    os.rename(part, path)


def _locked(path: str) -> bool:
    """Tell whether a runner holds this lock."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _poke(fifo: str) -> None:
    """Wake the runner that listens there, if one does."""
    try:
        descriptor = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return  # nobody does
    try:
        os.write(descriptor, b"c")
    except OSError:
        pass  # it left just now, or it has plenty to read already
    finally:
        os.close(descriptor)


def _has(folder: str, name: str) -> bool:
    return os.path.exists(os.path.join(folder, name))


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    os.utime(path)
