"""The processes of a launch: starts them in their own session, finds them again, and ends them."""

from __future__ import annotations

import os
import signal
import stat
import sys
import time
from collections.abc import Callable

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from typing import Any

_PR_SET_CHILD_SUBREAPER = 36
# Signals that this process, Python, or a shell with `&` may ignore, and a script must not.
_DEFAULT_SIGNALS = [
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGHUP,
]


_SCRIPT_FOLDERS = ("work", "streams", "track")  # of a launch: what its script writes to
_boot: list[str] = []  # read once: it does not change while this process lives


class Process:
    """A process of the system. A later one with the same pid has another start time."""

    def __init__(
        self, pid: int, parent: int, session: int, started: str, *, terminal: bool = False
    ) -> None:
        self.pid = pid
        self.parent = parent
        self.session = session
        self.started = started
        self.terminal = terminal  # whether it has one: a script never does, a user's shell does


def become_subreaper() -> None:
    """Become the parent of orphaned descendants, so that none of them can escape."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def spawn(command: list[str], variables: dict[str, str], stdout: int, stderr: int) -> int:
    """Start a process in a new session and the current folder; return its pid."""
    devnull = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    actions = [
        (os.POSIX_SPAWN_DUP2, devnull, 0),
        (os.POSIX_SPAWN_DUP2, stdout, 1),
        (os.POSIX_SPAWN_DUP2, stderr, 2),
    ]
    try:
        return spawn_with(command, variables, actions)
    finally:
        os.close(devnull)


def spawn_with(command: list[str], variables: dict[str, str], actions: list[Any]) -> int:
    """Start a process like `spawn`, with these actions on its descriptors."""
    return os.posix_spawn(
        command[0],
        command,
        variables,
        file_actions=actions,
        setsid=True,
        setsigmask=[],
        setsigdef=_DEFAULT_SIGNALS,
    )


def processes() -> list[Process]:
    """List every process of this host that is not a zombie."""
    if not os.path.isdir("/proc/self"):
        return _processes_from_ps()
    listed: list[Process] = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            process = read_process(int(name))
            if process is not None:
                listed.append(process)
    return listed


def read_process(pid: int) -> Process | None:
    """Return the process with this pid; None if there is none, or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X"):
        return None
    has_terminal = fields[4] != b"0"
    return Process(pid, int(fields[1]), int(fields[3]), fields[19].decode(), terminal=has_terminal)


def boot() -> str:
    """Return the id of the current boot. Pids and start times are only valid within one."""
    if not _boot:
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                _boot.append(file.read().strip())
        except OSError:
            _boot.append("")
    return _boot[0]


def descendants() -> list[Process]:
    """List all descendants of this process."""
    children: dict[int, list[Process]] = {}
    for process in processes():
        children.setdefault(process.parent, []).append(process)
    listed: list[Process] = []
    parents = [os.getpid()]
    while parents:
        below = children.get(parents.pop(), [])
        listed.extend(below)
        parents.extend(process.pid for process in below)
    return listed


def leftovers(key: str, ranks: list[tuple[int, str]], folder: str = "") -> list[Process]:
    """List the processes that a killed runner left behind.

    They have the launch's key in their environment, belong to the session of one of its ranks, or
    use its folder. The kernel does not reuse a session id while the session has members, so the
    session is still that of the rank, unless its leader is alive and started at another time.
    """
    mark = f"RETARGET_LAUNCH={key}".encode()
    sessions = {pid for pid, started in ranks if _is_session_of(pid, started)}
    tops = tuple(os.path.join(os.path.realpath(folder), top) for top in _SCRIPT_FOLDERS)
    return [
        process
        for process in processes()
        if process.pid != os.getpid()
        and (
            process.session in sessions
            or mark in variables_of(process.pid)
            or (folder and not process.terminal and _uses(process.pid, tops))
        )
    ]


def end(
    find: Callable[[], list[Process]], grace_seconds: float, reap: Callable[[], object]
) -> None:
    """End every process that `find` returns: TERM, then KILL until none remains.

    Processes that start in between get no TERM while one that got it is alive: they may be
    helping it to end well.
    """
    deadline = time.monotonic() + grace_seconds
    signaled: set[tuple[int, str]] = set()
    while True:
        reap()
        alive = _reachable(find())
        if not alive or time.monotonic() >= deadline:
            break
        if signaled.isdisjoint((process.pid, process.started) for process in alive):
            for process in alive:
                signaled.add((process.pid, process.started))
                _signal(process, signal.SIGTERM)
        time.sleep(0.01)
    pause = 0.005
    while alive:
        # Stopped first, so that one that forks without end cannot outrun the kills.
        for process in alive:
            _signal(process, signal.SIGSTOP)
        for process in find():
            _signal(process, signal.SIGKILL)
        reap()
        time.sleep(pause)
        pause = min(pause * 1.5, 0.5)  # one that hangs in the kernel takes its time
        alive = _reachable(find())


def _reachable(listed: list[Process]) -> list[Process]:
    """Exclude processes that now belong to another user: they cannot be ended from here."""
    return [process for process in listed if _signal(process, 0)]


def _is_session_of(pid: int, started: str) -> bool:
    leader = read_process(pid)
    return pid > 1 and (leader is None or leader.started == started)  # 0 and 1 are the system's


def variables_of(pid: int) -> list[bytes]:
    """Return the variables that a process was started with, if this user may read them."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def _uses(pid: int, folders: tuple[str, ...]) -> bool:
    """Return whether a process works in one of these folders, or writes to a file in one.

    One that only reads a file may be somebody who looks at the log.
    """
    try:
        if _is_below(os.readlink(f"/proc/{pid}/cwd"), folders):
            return True
        return any(
            _is_written(f"/proc/{pid}/fd/{name}", folders) for name in os.listdir(f"/proc/{pid}/fd")
        )
    except OSError:
        return False  # it has exited, or belongs to another user


def _is_written(link: str, folders: tuple[str, ...]) -> bool:
    try:
        # the mode of the link is that of the descriptor
        is_below = _is_below(os.readlink(link), folders)
        return is_below and bool(os.lstat(link).st_mode & stat.S_IWUSR)
    except OSError:
        return False  # it has just been closed


def _is_below(path: str, folders: tuple[str, ...]) -> bool:
    return any(path == folder or path.startswith(folder + os.sep) for folder in folders)


def _signal(process: Process, number: int) -> bool:
    try:
        os.kill(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _processes_from_ps() -> list[Process]:
    import subprocess

    listing = subprocess.run(
        ["ps", "-axo", "pid=,ppid=,sess=,state=,lstart="],
        stdout=subprocess.PIPE,
        universal_newlines=True,
        check=True,
    )
    listed: list[Process] = []
    for line in listing.stdout.splitlines():
        pid, parent, session, state, started = line.split(None, 4)
        if not state.startswith("Z"):
            listed.append(Process(int(pid), int(parent), int(session, 0), started))
    return listed
