"""Where runners come from: a process with all of a runner loaded, which forks them.

Starting Python and loading the runner takes longer than most of what a runner does. It is told of
a launch through a socket whose other end the driver's process holds, and ends when that process
does, however it does. Its runners live on. One whose script ended at once is as good as new, and
comes back for the next launch: the fork and what follows it cost more than such a launch does.
"""

from __future__ import annotations

import array
import errno
import gc
import os
import resource
import select
import signal
import socket
import sys
import time
from importlib import import_module

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from typing import NoReturn, Tuple

    Order = Tuple[str, int]  # the folder of a launch, and its lock

_ROOM = "-" * 4200  # where a runner writes what `ps` shall show of it: a path is 4096 at most
_LONGEST = 8192
_REST = 10.0  # seconds that a runner without work is kept
_HANGS = 5.0  # seconds after which one that has not begun with what it was given is killed
_LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_CORE)
_COMMAND = [sys.executable, "-I", "-S", sys.argv[0]]
# Where in memory the command of this process is; in a fork it is there, too.
_shown_at: list[int] = []


def command(python: str, zipapp: str, descriptor: int) -> list[str]:
    """Return the command that starts a nursery on its end of a socket."""
    return [python, "-I", "-S", zipapp, "nursery", str(descriptor), _ROOM]


def ask(door: socket.socket, folder: str, lock: int) -> None:
    """Have a runner work on a folder, with its lock taken already. OSError: nobody is there.

    Nothing is answered. Should whoever has been told end before it begins, the lock comes free, and
    that is how it is noticed.
    """
    descriptors = array.array("i", [lock]).tobytes()
    passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)]
    door.sendmsg([os.fsencode(folder)], passed, socket.MSG_NOSIGNAL)


def _hear(door: socket.socket) -> Order | None:
    """Return what was asked next; None when nobody is there any more."""
    room = socket.CMSG_SPACE(array.array("i").itemsize)
    folder, passed, _, _ = door.recvmsg(_LONGEST, room, socket.MSG_CMSG_CLOEXEC)
    if not folder:
        return None
    if not passed:  # the lock was dropped, and is free: it will be asked again
        raise OSError(errno.EMFILE, "too many files are open here")
    return os.fsdecode(folder), array.array("i", passed[0][2])[0]


def tend(descriptor: int) -> int:
    """Have a runner work on each folder that comes through the socket, until it closes."""
    _load()
    _show([*_COMMAND, "nursery"])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended: none is a zombie
    gc.collect()
    gc.freeze()  # what is loaded stays shared with all of them
    nursery = _Nursery(socket.socket(fileno=descriptor))
    while nursery.look():
        pass
    return 0


class _Nursery:
    """Each runner has a socket to it. Only here is it known which of them are free."""

    def __init__(self, door: socket.socket) -> None:
        self._door = door
        self._runners: dict[int, socket.socket] = {}
        self._pids: dict[int, int] = {}
        self._free: dict[int, float] = {}  # since when; the last one came back last
        self._given: dict[int, float] = {}  # to whom something was given, and when
        self._poll = select.poll()
        self._poll.register(door, select.POLLIN)

    def look(self) -> bool:
        """Wait until something happens and see to it; False when the door has closed."""
        pause = 1000 if self._free or self._given else None
        ready = [number for number, _ in self._poll.poll(pause)]
        for number in ready:
            if number != self._door.fileno():
                self._hear_from(number)
        if self._door.fileno() in ready:
            try:
                order = _hear(self._door)
            except OSError:
                return True
            if order is None:
                return False
            self._give(order)
        self._tidy(time.monotonic())
        return True

    def _tidy(self, now: float) -> None:
        """End who has rested long enough, and who does not begin with what it was given."""
        for number, since in list(self._free.items()):
            if now - since > _REST:
                self._end(number)
        for number, since in list(self._given.items()):
            if now - since > _HANGS:
                del self._given[number]
                if not _has_begun(self._pids[number]):
                    self._end(number)

    def _end(self, number: int) -> None:
        """End a runner that has no work, stopped though it may be."""
        if _is_open(self._runners[number]):  # so that pid is still its own
            try:
                os.kill(self._pids[number], signal.SIGKILL)
            except OSError:
                pass  # it has left just now, or has become another user's
        self._dismiss(number)

    def _hear_from(self, number: int) -> None:
        try:
            is_free = self._runners[number].recv(1)
        except OSError:
            is_free = b""
        self._given.pop(number, None)
        if is_free:
            self._free[number] = time.monotonic()
        else:
            self._dismiss(number)

    def _dismiss(self, number: int) -> None:
        self._poll.unregister(number)
        self._free.pop(number, None)
        self._given.pop(number, None)
        self._pids.pop(number)
        self._runners.pop(number).close()

    def _give(self, order: Order) -> None:
        _, lock = order
        try:
            if not self._give_to_a_free_one(order):
                self._fork(order)
        except OSError as error:
            os.write(lock, f"no runner could be started: {error.strerror}\n".encode())
        os.close(lock)

    def _give_to_a_free_one(self, order: Order) -> bool:
        while self._free:
            number, _ = self._free.popitem()
            try:
                ask(self._runners[number], *order)
                self._given[number] = time.monotonic()
                return True
            except OSError:
                self._dismiss(number)  # it was killed
        return False

    def _fork(self, order: Order) -> None:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            try:
                pid = os.fork()
            except OSError:
                ours.close()
                raise
            if pid == 0:
                for each in (self._door, ours, *self._runners.values()):
                    each.close()
                _become(its, order)
        self._runners[ours.fileno()] = ours
        self._pids[ours.fileno()] = pid
        self._poll.register(ours, select.POLLIN)


def _load() -> None:
    """Import what a runner may need, so that none of them has to."""
    for name in ("supervise", "report", "snapshot", "environments"):
        import_module(f"retarget.runner.{name}")
    for name in ("ctypes", "shutil", "http.client", "encodings.ascii", "encodings.idna"):
        import_module(name)


def _become(nursery: socket.socket, order: Order | None) -> NoReturn:
    """Be a runner, as one that was started with a command of its own."""
    code = 1
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        state, most = _state(), _opened() + 1  # the connection to the server stays
        while order is not None and _work(*order) and _state() == state and _opened() <= most:
            _show([*_COMMAND, "nursery"])
            nursery.send(b"f")
            order = _hear(nursery)
        code = 0
    except BaseException:  # noqa: BLE001 - the edge of the process
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def _work(folder: str, lock: int) -> bool:
    """See to a launch. True: this process is as it was before."""
    from retarget.runner.folder import Folder
    from retarget.runner.supervise import supervise

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        log = Folder(folder).open_log()  # not the lock itself: what is started from here gets it
    except FileNotFoundError:
        return False  # removed meanwhile
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)
    os.chdir(folder)
    _show([*_COMMAND, "run", folder, str(lock)])
    return supervise(folder, lock)


def _is_open(runner: socket.socket) -> bool:
    """Tell whether the other end is open, when nothing has come from there."""
    try:
        return bool(runner.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return True
    except OSError:
        return False


def _has_begun(pid: int) -> bool:
    """Tell whether a runner shows that it works on a launch."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().split(b"\0")[len(_COMMAND)] == b"run"
    except (OSError, IndexError):
        return True  # not Linux, or gone: there is nothing to end


def _state() -> tuple[object, ...]:
    """Tell what a script could have changed of its runner, and the next one would inherit."""
    limits = [resource.getrlimit(number) for number in _LIMITS]
    usual: tuple[object, ...] = (limits, os.getpriority(os.PRIO_PROCESS, 0))
    if sys.platform != "linux":
        return usual
    score = os.open("/proc/self/oom_score_adj", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return (*usual, os.sched_getaffinity(0), os.read(score, 16))
    finally:
        os.close(score)


def _opened() -> int:
    """Count what is open here: a runner that keeps anything of a launch does not get another."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0  # not Linux


def _show(words: list[str]) -> None:
    """Have the list of processes show this command."""
    import ctypes

    if not _shown_at:
        try:
            with open("/proc/self/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            return  # not Linux
        _shown_at.extend((int(fields[45]), int(fields[46])))
        with open("/proc/self/comm", "w") as file:
            file.write("retarget-runner")
    begin, end = _shown_at
    text = b"\0".join(os.fsencode(word) for word in words)
    ctypes.memmove(begin, text.ljust(end - begin, b"\0")[: end - begin - 1] + b"\0", end - begin)
