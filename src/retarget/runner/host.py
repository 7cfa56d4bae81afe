"""The launches on one host: their folders, and the lock in each of them.

A launch is a folder, and the lock in it shows whether its runner is alive. No pid is stored to
find a process again, so no process can be mistaken for another. The local driver uses this in its
own process; other drivers use it through an agent on the host.
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
import stat
import struct
import subprocess
import sys
import threading
import time
from typing import Any, Mapping

from retarget.runner import folder_socket, forkserver
from retarget.runner.built import list_built, remove
from retarget.runner.engine import find_engine, name_engine
from retarget.runner.epochs import Epochs
from retarget.runner.files import open_plain
from retarget.runner.folder import Folder, parse_event

# what reading a launch's file raises after its script has overwritten it
_DAMAGED = (OSError, ValueError, LookupError, TypeError, RecursionError)
_GET_FLAGS, _SET_FLAGS, _TOPDIR = 0x80086601, 0x40086602, 0x00020000  # Linux: chattr +T
_MAX_SIZE_DIGITS = 12  # of a size in mebibytes
_ENGINE_CACHE_SECONDS = 30.0
_STUCK_SECONDS = 30.0  # a runner that has not stopped this long after its grace period is killed
_OWN_FOLDERS = ("streams", "track")  # in a launch folder, what a runner needs
_OWN_FILES = ("launch.json", "runner.log", "events.jsonl", "done")
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")  # neither a path nor a hidden file
# The variables that a job inherits: those of the machine, not those of the terminal.
_INHERITED_NAMES = """
PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TMPDIR LD_LIBRARY_PATH CUDA_HOME CUDA_PATH
SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE HTTP_PROXY HTTPS_PROXY NO_PROXY
http_proxy https_proxy no_proxy XDG_RUNTIME_DIR XDG_CACHE_HOME XDG_CONFIG_HOME NETRC
NVIDIA_VISIBLE_DEVICES
"""
_INHERITED = frozenset(_INHERITED_NAMES.split())
_INHERITED_PREFIXES = ("LC_", "UV_", "PIP_", "DOCKER_", "CONTAINER")


class NoScript(Exception):
    """A command cannot run beside a script that does not run."""


class Host:
    """Arguments and results are JSON, so that an agent can pass them on."""

    def __init__(self, root: str, zipapp: str) -> None:
        self.root = root
        self.launches = os.path.join(root, "launches")
        self._zipapp = zipapp
        self._epochs = Epochs(root)

    def prepare(self) -> None:
        """Create the folders, or raise OSError."""
        for folder in (self.root, self.launches):
            os.makedirs(folder, mode=0o700, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise PermissionError(13, "not writable", folder)
        _spread_subfolders(self.launches)

    def inventory(self) -> dict[str, Any]:
        """Return what this host has."""
        return {
            "name": os.uname().nodename,
            "cpus": float(_cores()),
            "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "gpus": list_gpus(),
            "python": sys.version.split()[0],
            "machine": os.uname().machine,
            "engine": name_engine(),
            "free": shutil.disk_usage(self.root).free,
        }

    def launch(
        self, key: str, content: dict[str, Any], lease: dict[str, Any] | None = None
    ) -> None:
        """Make sure that a runner works on a launch, or has finished it.

        `content` is the new launch.json, from which the runner learns where the server is now.
        """
        folder = self.folder(key)
        with self._epochs.passing(key, lease):
            os.makedirs(folder, mode=0o700, exist_ok=True)
            restore_access(folder)
            _write(os.path.join(folder, "launch.json"), content)
            self._ensure_runner(folder, content["launch"].get("events_acked"))

    def poll(self, keys: list[str]) -> list[dict[str, Any]]:
        return [observe(self.folder(key)) for key in keys]

    def cancel(self, key: str, lease: dict[str, Any] | None = None) -> None:
        folder = self.folder(key)
        self._epochs.check(lease)
        restore_access(folder)
        if not _has(folder, "launch.json") or _has(folder, "done"):
            return
        marker = os.path.join(folder, "cancel")
        if os.path.islink(marker):  # made by the script: it may point anywhere
            _unlink(marker)
        if not os.path.exists(marker):
            _touch(marker)
        elif time.time() - os.stat(marker).st_mtime > read_grace_seconds(folder) + _STUCK_SECONDS:
            _kill_runner(folder)  # it does not react; perhaps it was stopped
            _touch(marker)  # the next runner gets the full time
        _wake_runner(os.path.join(folder, "stop"))
        self._ensure_runner(folder)  # without a live runner, a new one carries out the cancel

    def forget(self, key: str, lease: dict[str, Any] | None = None) -> None:
        folder = self.folder(key)
        trash = os.path.join(self.launches, f".{key}.gone")
        with self._epochs.passing(key, lease):
            try:
                os.rename(folder, trash)
            except FileNotFoundError:
                pass
        remove_folder(trash)

    def diagnose(self, key: str) -> str:
        """Return the end of a launch's runner.log."""
        try:
            with open_plain(os.path.join(self.folder(key), "runner.log")) as file:
                log = file.read().decode("utf-8", "replace").strip()
        except FileNotFoundError:
            return f"no trace of this launch in {self.launches}"
        except OSError as error:  # its script has replaced it
            return f"the runner's log cannot be read: {error.strerror or error}"
        return log[-2000:] or "the runner was started and logged nothing"

    def open_exec(self, key: str) -> socket.socket:
        """Connect to the runner of a launch, to run a command beside its script."""
        try:
            return folder_socket.connect(self.folder(key), "exec")
        except OSError:
            raise NoScript("the script is not running now") from None

    def environments(self) -> list[dict[str, Any]]:
        return list_built(os.path.join(self.root, "environments"))

    def remove_environment(self, digest: str) -> str:
        """Remove a built environment: `removed`, `absent`, or `used` while a job uses it."""
        return remove(os.path.join(self.root, "environments"), _checked(digest))

    def folder(self, key: str) -> str:
        return os.path.join(self.launches, _checked(key))

    def _ensure_runner(self, path: str, events_acked: int | None = None) -> None:
        """Start a runner unless one is alive. It inherits the lock, which is held throughout.

        A finished launch gets one if the server has lost events of it that it had acknowledged.
        """
        folder = Folder(path)
        if (folder.has("done") and not _has_more(folder, events_acked)) or not folder.acquire():
            return
        try:
            if folder.has("done"):
                os.rename(folder.file("done"), folder.file("events.jsonl"))
            _forkserver.start_runner(self._zipapp, path, folder.lock)
        finally:
            folder.release()


class ForkServerClient:
    """Starts runners through the fork server of this process, which only saves time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._owner: tuple[int, dict[str, str]] = (0, {})  # the pid and variables it is for
        atexit.register(self._close)

    def start_runner(self, zipapp: str, folder: str, lock: int) -> None:
        with self._lock:
            owner = os.getpid(), inherited_variables(os.environ)
            if self._connection is not None and self._owner == owner:
                try:
                    forkserver.send_launch(self._connection, folder, lock)
                    return
                except OSError:
                    pass  # it was killed
            self._close()
            self._connection, self._owner = self._open(zipapp, owner[1]), owner
            forkserver.send_launch(self._connection, folder, lock)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _open(self, zipapp: str, variables: dict[str, str]) -> socket.socket:
        client_end, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with server_end:
            process = subprocess.Popen(
                forkserver.command(sys.executable, zipapp, server_end.fileno()),
                cwd="/",
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=[server_end.fileno()],
            )
        threading.Thread(target=process.wait, name="reap", daemon=True).start()
        return client_end


_forkserver = ForkServerClient()


def inherited_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a job inherits from the machine."""
    return {
        name: value
        for name, value in environ.items()
        if name in _INHERITED or name.startswith(_INHERITED_PREFIXES)
    }


def observe(folder: str) -> dict[str, Any]:
    """Return the phase of a launch: gone, running, dead or exited."""
    if not os.path.exists(folder):
        return {"phase": "gone"}
    try:
        # checked first: a runner writes `done` before it releases the lock
        locked = _has_runner(folder)
    except OSError as error:  # damaged by its script: other launches must not suffer from that
        return {"phase": "exited", "reason": f"the runner's lock cannot be read: {error.strerror}"}
    try:
        with open_plain(os.path.join(folder, "done")) as file:
            ending = json.loads(file.read().splitlines()[-1])
        code, reason = ending["exit_code"], ending["reason"]
        if not isinstance(code, (int, type(None))) or not isinstance(reason, str):
            raise TypeError
        return {"phase": "exited", "exit_code": code, "reason": reason}
    except FileNotFoundError:
        return {"phase": "running" if locked else "dead"}
    except _DAMAGED:  # by its script: other launches must not suffer from that
        return {"phase": "exited", "reason": "the runner's record of the exit cannot be read"}


def restore_access(folder: str) -> None:
    """Give the owner access again to a launch, in case its script has taken it away."""
    for name in ("", *_OWN_FOLDERS, *_OWN_FILES):
        path = os.path.join(folder, name)
        try:
            mode = os.lstat(path).st_mode
            needed = 0o700 if stat.S_ISDIR(mode) else 0o600
            if mode & needed != needed and (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                os.chmod(path, stat.S_IMODE(mode) | needed)
        except OSError:
            pass  # there is none, or it belongs to another user


def _has_more(folder: Folder, events_acked: int | None) -> bool:
    """Return whether a finished launch has more events than the server knows of."""
    if events_acked is None:
        return False
    try:
        with open_plain(folder.file("done")) as file:
            last = parse_event(file.read().splitlines()[-1])
    except (OSError, LookupError):
        return False
    return last is not None and last["seq"] > events_acked


def read_grace_seconds(folder: str) -> float:
    """Return the seconds that a launch may take to stop."""
    try:
        with open_plain(os.path.join(folder, "launch.json")) as file:
            return float(json.loads(file.read())["launch"]["grace_seconds"])
    except _DAMAGED:
        return 0.0  # no runner can read it either


def remove_folder(folder: str) -> None:
    """Remove a folder, whatever a script has done to it."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:
        pass
    if os.path.exists(folder):  # with read-only folders, or nested too deep for Python
        for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
            subprocess.run([*command, "--", folder], check=False, stderr=subprocess.DEVNULL)


_engine: list[tuple[float, str]] = []  # when it was asked, and its name


def describe_engine() -> str:
    """Return the container engine of this host and its version; empty without one."""
    if not _engine or time.monotonic() - _engine[0][0] > _ENGINE_CACHE_SECONDS:
        _engine[:] = [(time.monotonic(), str(find_engine() or ""))]
    return _engine[0][1]


_gpus: list[list[dict[str, Any]]] = []  # asked once: they do not change while this process lives


def list_gpus() -> list[dict[str, Any]]:
    """Return the GPUs that nvidia-smi lists; none without it."""
    if not _gpus:
        query = ["--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits"]
        try:
            answer = subprocess.run(
                ["nvidia-smi", *query],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                check=True,
                timeout=20,
            )
            _gpus.append(parse_gpus(answer.stdout.decode("utf-8", "replace")))
        except (OSError, subprocess.SubprocessError):
            _gpus.append([])
    return _gpus[0]


def parse_gpus(output: str) -> list[dict[str, Any]]:
    """Parse the output of nvidia-smi. Lines without three cells are messages, not GPUs."""
    rows = [[cell.strip() for cell in line.split(",")] for line in output.splitlines()]
    return [
        {"id": row[0], "name": row[1], "memory": _mebibytes(row[2])}
        for row in rows
        if len(row) == 3
    ]


def _mebibytes(text: str) -> int | None:
    # No GPU has a longer number. Python refuses to parse very long ones.
    return int(text) * 2**20 if text.isdecimal() and len(text) <= _MAX_SIZE_DIGITS else None


def _checked(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise ValueError(f"invalid key {key[:100]!r}")
    return key


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


def _spread_subfolders(folder: str) -> None:
    """Tell ext4 that the subfolders are unrelated, so that it spreads them over the disk.

    Otherwise ext4 without a journal scans everything recently removed nearby for each new file,
    which would dominate the time of short launches.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        (flags,) = struct.unpack("i", fcntl.ioctl(descriptor, _GET_FLAGS, struct.pack("i", 0)))
        fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("i", flags | _TOPDIR))
    except OSError:
        pass  # another file system, or not Linux
    finally:
        os.close(descriptor)


def _kill_runner(folder: str) -> None:
    """Kill the runner of this folder. It is found by its command, never by a stored pid."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                argv = file.read().split(b"\0")
            if b"run" in argv and os.fsencode(folder) in argv:
                os.kill(int(name), signal.SIGKILL)
        except OSError:
            pass  # it has exited, or belongs to another user


def _write(path: str, content: dict[str, Any]) -> None:
    part = f"{path}.{os.getpid()}.{os.urandom(4).hex()}.part"
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(content, file)
    os.rename(part, path)


def _has_runner(folder: str) -> bool:
    """Return whether a runner works on a launch; OSError if its script has made that unknowable."""
    path = os.path.join(folder, "runner.log")
    try:
        return _locked(path)
    except PermissionError:
        restore_access(folder)
        return _locked(path)


def _locked(path: str) -> bool:
    """Return whether a runner holds this lock."""
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


def _wake_runner(fifo: str) -> None:
    """Wake the runner that reads this FIFO, if there is one."""
    try:
        descriptor = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return  # there is none
    try:
        os.write(descriptor, b"c")
    except OSError:
        pass  # it has just exited, or the FIFO is full
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
