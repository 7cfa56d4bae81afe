"""Where runners come from: a process with all of a runner loaded, which forks one for each launch.

Starting Python and loading the runner takes longer than most of what a runner does; a fork takes
two milliseconds. It is told through a socket whose other end the driver's process holds, and ends
when that process does, however it does. The runners live on.
"""

from __future__ import annotations

import array
import gc
import os
import signal
import socket
import sys
from importlib import import_module

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from typing import NoReturn

_ROOM = "-" * 4200  # where a runner writes what `ps` shall show of it: a path is 4096 at most
_LONGEST = 8192
_COMMAND = [sys.executable, "-I", "-S", sys.argv[0]]


def command(python: str, zipapp: str, descriptor: int) -> list[str]:
    """Return the command that starts a nursery on its end of a socket."""
    return [python, "-I", "-S", zipapp, "nursery", str(descriptor), _ROOM]


def ask(door: socket.socket, folder: str, lock: int, log: int) -> None:
    """Have a runner started on a folder, with its lock taken already. OSError: nobody is there.

    Nothing is answered. Should the nursery end before it has forked, the lock comes free, and that
    is how it is noticed.
    """
    descriptors = array.array("i", [lock, log]).tobytes()
    passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)]
    door.sendmsg([os.fsencode(folder)], passed, socket.MSG_NOSIGNAL)


def tend(descriptor: int) -> int:
    """Fork a runner for each folder that comes through the socket, until its other end closes."""
    _load()
    _show([*_COMMAND, "nursery"])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended: none is a zombie
    door = socket.socket(fileno=descriptor)
    gc.collect()
    gc.freeze()  # what is loaded stays shared with all of them
    while True:
        room = socket.CMSG_SPACE(2 * array.array("i").itemsize)
        folder, passed, _, _ = door.recvmsg(_LONGEST, room, socket.MSG_CMSG_CLOEXEC)
        if not folder:
            return 0
        lock, log = array.array("i", passed[0][2])
        try:
            if os.fork() == 0:
                door.close()
                _become(os.fsdecode(folder), lock, log)
        except OSError as error:
            os.write(log, f"no runner could be started: {error.strerror}\n".encode())
        os.close(lock)
        os.close(log)


def _load() -> None:
    """Import what a runner may need, so that none of them has to."""
    for name in ("supervise", "report", "snapshot", "environments"):
        import_module(f"retarget.runner.{name}")
    for name in ("ctypes", "shutil", "http.client", "encodings.ascii", "encodings.idna"):
        import_module(name)


def _become(folder: str, lock: int, log: int) -> NoReturn:
    """Be a runner, as one that was started with a command of its own."""
    code = 1
    try:
        from retarget.runner.supervise import supervise

        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for descriptor, number in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(descriptor, number)
        os.close(nothing)
        os.close(log)
        os.chdir(folder)
        _show([*_COMMAND, "run", folder, str(lock)])
        code = supervise(folder, lock)
    except BaseException:  # noqa: BLE001 - the edge of the process
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def _show(words: list[str]) -> None:
    """Have the list of processes show this command."""
    import ctypes

    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return  # not Linux
    begin, end = int(fields[45]), int(fields[46])
    with open("/proc/self/comm", "w") as file:
        file.write("retarget-runner")
    text = b"\0".join(os.fsencode(word) for word in words)
    ctypes.memmove(begin, text.ljust(end - begin, b"\0")[: end - begin - 1] + b"\0", end - begin)
