"""Processes of a launch: started in a session of their own, found again, and ended to the last."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

_PR_SET_CHILD_SUBREAPER = 36
# What this process, Python, or a shell that started us with `&` ignores: a script does not.
_USUAL = [
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGHUP,
]


_boot: list[str] = []  # the same as long as this process lives


class Process:
    """One process as the system knows it. Its start time tells it from a later one of that pid."""

    def __init__(self, pid: int, parent: int, session: int, started: str) -> None:
        self.pid = pid
        self.parent = parent
        self.session = session
        self.started = started


def become_subreaper() -> None:
    """Have orphans of our children become our own, so that none of them can get away."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def spawn(command: list[str], env: dict[str, str], output: int) -> int:
    """Start a process in a new session, here, with its output going to a descriptor."""
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    actions = [
        (os.POSIX_SPAWN_DUP2, nothing, 0),
        (os.POSIX_SPAWN_DUP2, output, 1),
        (os.POSIX_SPAWN_DUP2, output, 2),
    ]
    try:
        return os.posix_spawn(
            command[0],
            command,
            env,
            file_actions=actions,
            setsid=True,
            setsigmask=[],
            setsigdef=_USUAL,
        )
    finally:
        os.close(nothing)


def processes() -> list[Process]:
    """List every process of this machine that is not a zombie."""
    if not os.path.isdir("/proc/self"):
        return _processes_from_ps()
    found: list[Process] = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            process = look(int(name))
            if process is not None:
                found.append(process)
    return found


def look(pid: int) -> Process | None:
    """Return the process with this pid, or None when there is none or only its zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return Process(pid, int(fields[1]), int(fields[3]), fields[19].decode())


def boot() -> str:
    """Name the present run of this machine: pids and start times mean nothing in another."""
    if not _boot:
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                _boot.append(file.read().strip())
        except OSError:
            _boot.append("")
    return _boot[0]


def descendants() -> list[Process]:
    """List everything below this process."""
    children: dict[int, list[Process]] = {}
    for process in processes():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    todo = [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        found.extend(below)
        todo.extend(process.pid for process in below)
    return found


def leftovers(key: str, ranks: list[tuple[int, str]]) -> list[Process]:
    """List what a runner that was killed left behind.

    They carry the launch's key in their environment, or belong to the session of one of its
    ranks. While a session has members its number is not given out anew; so it is theirs, unless
    its leader is alive and started at another time.
    """
    mark = f"RETARGET_LAUNCH={key}".encode()
    sessions = {pid for pid, started in ranks if _is_theirs(pid, started)}
    return [
        process
        for process in processes()
        if process.pid != os.getpid()
        and (process.session in sessions or mark in _environment_of(process.pid))
    ]


def end(find: Callable[[], list[Process]], grace: float, reap: Callable[[], object]) -> None:
    """Stop everything `find` finds: TERM, `grace` seconds, then KILL until nothing is left.

    What comes up meanwhile is left alone while any that were told live: it helps them end well.
    """
    deadline = time.monotonic() + grace
    told: set[tuple[int, str]] = set()
    while True:
        reap()
        present = _reachable(find())
        if not present or time.monotonic() >= deadline:
            break
        if told.isdisjoint((process.pid, process.started) for process in present):
            for process in present:
                told.add((process.pid, process.started))
                _signal(process, signal.SIGTERM)
        time.sleep(0.01)
    pause = 0.005
    while present:
        # Stopped first: one that forks without end cannot run away from the killing.
        for process in present:
            _signal(process, signal.SIGSTOP)
        for process in find():
            _signal(process, signal.SIGKILL)
        reap()
        time.sleep(pause)
        pause = min(pause * 1.5, 0.5)  # one that hangs in the kernel cannot be hurried
        present = _reachable(find())


def _reachable(found: list[Process]) -> list[Process]:
    """Leave out what has become another user's: it cannot be ended from here."""
    return [process for process in found if _signal(process, 0)]


def _is_theirs(pid: int, started: str) -> bool:
    leader = look(pid)
    return pid > 1 and (leader is None or leader.started == started)  # 0 and 1 are the system's


def _environment_of(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


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
    found: list[Process] = []
    for line in listing.stdout.splitlines():
        pid, parent, session, state, started = line.split(None, 4)
        if not state.startswith("Z"):
            found.append(Process(int(pid), int(parent), int(session, 0), started))
    return found
