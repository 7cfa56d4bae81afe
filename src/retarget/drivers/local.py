"""Processes on the machine the server runs on."""

import atexit
import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from retarget.core.driver import Handle, Launch, Observation, Phase
from retarget.core.environments import Environment
from retarget.core.errors import Conflict, Invalid, LaunchRejected, TargetUnreachable
from retarget.core.targets import Facts, Gpu, Node
from retarget.core.units import show_memory
from retarget.runner import nursery
from retarget.runner.engine import find_engine
from retarget.runner.folder import Folder
from retarget.runner.package import build_zipapp

OLDEST = (3, 8)
# what reading a file of a launch raises after a script has written something else there
_DAMAGED = (OSError, ValueError, LookupError, TypeError, RecursionError)
_GET_FLAGS, _SET_FLAGS, _UNRELATED = 0x80086601, 0x40086602, 0x00020000  # of Linux: chattr +T
_LONGEST_SIZE = 12  # digits, in mebibytes
_STUCK = 30.0  # seconds beyond its grace after which a runner that does not stop is killed
# What a job inherits from the server's own surroundings: the machine's, not the terminal's.
_INHERITED_WORDS = """
PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TMPDIR LD_LIBRARY_PATH CUDA_HOME CUDA_PATH
SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE HTTP_PROXY HTTPS_PROXY NO_PROXY
http_proxy https_proxy no_proxy XDG_RUNTIME_DIR XDG_CACHE_HOME NVIDIA_VISIBLE_DEVICES
"""
_INHERITED = frozenset(_INHERITED_WORDS.split())
_INHERITED_FAMILIES = ("LC_", "UV_", "PIP_", "DOCKER_", "CONTAINER")
_NO_ENGINE = (
    "environment: image needs a container engine, and this target has none that answers; install "
    "Docker or Podman there, or see that it runs and that the server's user may use it"
)
_FRESH = 30.0  # seconds that the answer about an engine holds


class Config(BaseModel):
    model_config = ConfigDict(extra="forbid")

    root: Path = Field(description="Folder for the work of jobs, built environments and caches")
    blobs: tuple[Path, ...] = Field((), description="Folders that hold blobs already")
    cpus: float | None = Field(None, gt=0, description="Cores to give out; default: all of them")
    memory: int | None = Field(None, gt=0, description="Bytes to give out; default: all of it")
    linger: float = Field(600, ge=0, description="Seconds a runner waits for a lost server")


class Driver:
    """A launch is a folder, and the lock in it tells whether its runner is alive.

    No pid is ever kept to find a process again, so none can be mistaken for another.
    """

    Config = Config

    def __init__(self, config: Config) -> None:
        self.config = config
        self.root = config.root
        self.launches = config.root / "launches"

    def check(self) -> Facts:
        for folder in (self.root, self.launches):
            _need_writable(folder)
        _spread(self.launches)
        cpus = self.config.cpus or float(len(os.sched_getaffinity(0)))
        memory = self.config.memory or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        free = shutil.disk_usage(self.root).free
        details = {"python": sys.version.split()[0], "disk free": show_memory(free)}
        details["engine"] = _engine(int(time.monotonic() / _FRESH)) or "none"
        node = Node(name=os.uname().nodename, cpus=cpus, memory=memory, gpus=_gpus())
        return Facts(nodes=(node,), details=details)

    def screen(self, environment: Environment) -> None:
        if environment.kind == "user" and environment.python:
            check_interpreter(environment.python)
        if environment.kind == "image" and not _engine(int(time.monotonic() / _FRESH)):
            raise Invalid(_NO_ENGINE, field="environment")

    def plan(self, launch: Launch) -> dict[str, Any]:
        folder = str(self.launches / launch.key)
        return {"folder": folder, "command": _runner_command("runner.pyz", folder)}

    def launch(self, launch: Launch) -> Handle:
        if not launch.command:
            raise LaunchRejected("the command is empty")
        if launch.nodes != 1:
            raise LaunchRejected(f"this target is one machine; the job wants {launch.nodes} nodes")
        folder = self.launches / launch.key
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = f"/api/attempts/{launch.key}"
        contact = {"url": launch.url, "token": launch.token, "path": path}
        told = {"launch": launch.for_runner(), "node": self._node(), "contact": contact}
        _write(folder / "launch.json", told)
        self._ensure_runner(folder)
        return Handle(launch.key)

    def poll(self, handles: Sequence[Handle]) -> list[Observation]:
        return [_observe(self.launches / handle) for handle in handles]

    def cancel(self, handle: Handle) -> None:
        folder = self.launches / handle
        if not (folder / "launch.json").exists() or (folder / "done").exists():
            return
        marker = folder / "cancel"
        if marker.is_symlink():  # by its script: it might lead anywhere
            marker.unlink(missing_ok=True)
        if not marker.exists():
            marker.touch(mode=0o600)
        elif time.time() - marker.stat().st_mtime > _grace(folder) + _STUCK:
            _kill_runner(folder)  # it hears and does nothing, stopped perhaps
            marker.touch()  # the next one has its own time
        _poke(folder / "orders")
        self._ensure_runner(folder)  # if nobody is there to hear it, a new one sees it through

    def forget(self, handle: Handle) -> None:
        folder = self.launches / handle
        gone = folder.with_name(f".{folder.name}.gone")
        with suppress(FileNotFoundError):
            folder.rename(gone)
        _remove(gone)

    def diagnose(self, handle: Handle) -> str:
        log = self.launches / handle / "runner.log"
        try:
            said = log.read_text("utf-8", "replace").strip()
        except FileNotFoundError:
            return f"there is no trace of it in {self.launches}"
        return said[-2000:] or "its runner was started and said nothing"

    def environments(self) -> list[dict[str, Any]]:
        return self._ask_runner("environments", "list", str(self.root))

    def remove_environment(self, digest: str) -> bool:
        result = self._ask_runner("environments", "remove", str(self.root), digest)["result"]
        if result == "used":
            raise Conflict(f"environment {digest[:12]} is used by a running job; try again later")
        return result == "removed"

    def _node(self) -> dict[str, Any]:
        """Return what this machine offers to a runner."""
        return {
            "cache": str(self.root),
            "blobs": [str(folder) for folder in self.config.blobs],
            "runner": str(_zipapp(self.root)),
            "python": sys.executable,
            "uv": _uv(),
            "conda": sys.executable if _has_conda() else None,
            "linger": self.config.linger,
        }

    def _ensure_runner(self, path: Path) -> None:
        """Start a runner unless one is there. It gets the lock taken: no instant is without."""
        folder = Folder(str(path))
        if folder.has("done") or not folder.acquire():
            return
        try:
            _nursery.start_runner(_zipapp(self.root), path, folder.lock)
        finally:
            folder.release()

    def _ask_runner(self, *words: str) -> Any:
        command = [sys.executable, "-I", "-S", str(_zipapp(self.root)), *words]
        answer = subprocess.run(command, capture_output=True, check=False, text=True)
        if answer.returncode != 0:
            raise TargetUnreachable(f"the runner failed: {answer.stderr.strip()[-500:]}")
        return json.loads(answer.stdout)


class _Nursery:
    """The one process that forks the runners of this one. It is only there to save time."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._door: socket.socket | None = None
        self._made_for: tuple[int, dict[str, str]] = (0, {})
        atexit.register(self._close)

    def start_runner(self, zipapp: Path, folder: Path, lock: int) -> None:
        with self._turn:
            now = os.getpid(), inherited(os.environ)
            if self._door is not None and self._made_for == now:
                with suppress(OSError):  # it was killed
                    nursery.ask(self._door, str(folder), lock)
                    return
            self._close()
            self._door, self._made_for = self._open(zipapp, now[1]), now
            nursery.ask(self._door, str(folder), lock)

    def _close(self) -> None:
        if self._door is not None:
            self._door.close()

    def _open(self, zipapp: Path, env: dict[str, str]) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                nursery.command(sys.executable, str(zipapp), theirs.fileno()),
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


def _spread(folder: Path) -> None:
    """Tell ext4 that what is in a folder is not related, so that it is not crammed together.

    One without a journal walks past all that was removed there in the last minutes, for each new
    file: a good part of the time of many short launches.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # another file system, or another system
            (flags,) = struct.unpack("i", fcntl.ioctl(descriptor, _GET_FLAGS, struct.pack("i", 0)))
            fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("i", flags | _UNRELATED))
    finally:
        os.close(descriptor)


def _grace(folder: Path) -> float:
    try:
        return float(json.loads((folder / "launch.json").read_bytes())["launch"]["grace"])
    except _DAMAGED:
        return 0.0  # no runner can make anything of it either


def _kill_runner(folder: Path) -> None:
    """Kill whoever was started for this folder. Found by its command, never by a kept pid."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if b"run" in words and os.fsencode(folder) in words:
                os.kill(int(entry.name), signal.SIGKILL)


def check_interpreter(python: str) -> None:
    """Raise Invalid unless `python` is the path of a Python that is new enough."""
    path = Path(python)
    if not path.is_absolute():
        raise Invalid(
            f"python: {python!r} is not an absolute path; write one such as /usr/bin/python3",
            field="python",
        )
    if not os.path.exists(path):  # unlike Path.exists, it takes a path of any length
        raise Invalid(f"python: there is no {python} on this machine", field="python")
    found = path.stat()
    if not path.is_file() or not os.access(path, os.X_OK):
        raise Invalid(f"python: {python} is not an executable file", field="python")
    version = _version(python, found.st_mtime_ns, found.st_size)
    if version is None:
        raise Invalid(f"python: {python} does not answer like a Python interpreter", field="python")
    if version < OLDEST:
        raise Invalid(
            f"python: {python} is Python {version[0]}.{version[1]}; 3.8 or newer is needed",
            field="python",
        )


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables a job gets from the machine."""
    return {
        name: value
        for name, value in environ.items()
        if name in _INHERITED or name.startswith(_INHERITED_FAMILIES)
    }


@lru_cache(maxsize=256)
def _version(python: str, _changed: int, _size: int) -> tuple[int, int] | None:
    code = "import sys; sys.stdout.write('%d %d' % sys.version_info[:2])"
    try:
        answer = subprocess.run(
            [python, "-c", code], capture_output=True, check=True, timeout=20, text=True
        )
        major, minor = answer.stdout.split()
        return int(major), int(minor)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


@lru_cache(maxsize=8)
def _zipapp(root: Path) -> Path:
    return build_zipapp(root / "runners")


def _runner_command(zipapp: str, folder: str) -> list[str]:
    return [sys.executable, "-I", "-S", zipapp, "run", folder]


@lru_cache(maxsize=1)
def _has_conda() -> bool:
    return find_spec("rattler") is not None


@lru_cache(maxsize=1)
def _engine(_moment: int) -> str:
    """Name the container engine of this machine and its version; empty without one."""
    return str(find_engine() or "")


@lru_cache(maxsize=1)
def _uv() -> str | None:
    from uv import find_uv_bin

    try:
        return find_uv_bin()
    except FileNotFoundError:
        return shutil.which("uv")


@lru_cache(maxsize=1)
def _gpus() -> tuple[Gpu, ...]:
    """Ask nvidia-smi for the GPUs of this machine; without it there are none."""
    query = "--query-gpu=index,name,memory.total"
    try:
        answer = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader,nounits"],
            capture_output=True,
            check=True,
            timeout=20,
            text=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return _cards(answer.stdout)


def _cards(said: str) -> tuple[Gpu, ...]:
    rows = [[cell.strip() for cell in line.split(",")] for line in said.splitlines()]
    # a sentence, such as that there are no devices, is not a row of three
    return tuple(
        Gpu(id=row[0], name=row[1], memory=_mebibytes(row[2])) for row in rows if len(row) == 3
    )


def _mebibytes(text: str) -> int | None:
    # as nobody has that much, longer ones are nonsense, and the longest cannot be read at all
    return int(text) * 2**20 if text.isdecimal() and len(text) <= _LONGEST_SIZE else None


def _write(path: Path, content: dict[str, Any]) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}.part")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(content, file)
    part.rename(path)


def _observe(folder: Path) -> Observation:
    if not folder.exists():
        return Observation(phase=Phase.GONE)
    # looked at first: it is done before its runner leaves
    locked = _locked(folder / "runner.log")
    try:
        ending = json.loads((folder / "done").read_bytes().splitlines()[-1])
        code, reason = ending["exit_code"], ending["reason"]
        return Observation(phase=Phase.EXITED, exit_code=code, reason=reason)
    except FileNotFoundError:
        return Observation(phase=Phase.RUNNING if locked else Phase.DEAD)
    except _DAMAGED:  # by its script: no other launch may suffer from that
        return Observation(phase=Phase.EXITED, reason="what it wrote of its end cannot be read")


def _locked(path: Path) -> bool:
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


def _poke(fifo: Path) -> None:
    """Wake the runner that listens there, if one does."""
    with suppress(OSError):  # nobody does, or it left just now, or it has plenty to read already
        descriptor = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(descriptor, b"c")
        finally:
            os.close(descriptor)


def _remove(folder: Path) -> None:
    with suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():  # the script has made folders read-only, or deeper than Python goes
        for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
            subprocess.run([*command, "--", folder], check=False, stderr=subprocess.DEVNULL)


def _need_writable(root: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise TargetUnreachable(f"cannot make {root}: {error.strerror}") from error
    if not os.access(root, os.W_OK):
        raise TargetUnreachable(f"cannot write to {root}: check its owner and mode")
