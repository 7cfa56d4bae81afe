"""The fork server: a preloaded process that forks runners.

Starting Python and loading the runner takes longer than most of a runner's work. The driver's
process holds the other end of a socket and sends launches through it. The fork server exits when
that process does, however it ends; its runners continue. A runner whose script ended at once comes
back for the next launch, because a fork and what follows it cost more than such a launch does.
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

    LockedFolder = Tuple[str, int]  # the folder of a launch, and the descriptor of its lock

# Space in the command line, where a runner writes its own for `ps`: a path is 4096 bytes at most.
_COMMAND_LINE_SPACE = "-" * 4200
_MAX_MESSAGE_BYTES = 8192
_IDLE_SECONDS = 10.0  # how long a runner without work is kept
_START_SECONDS = 5.0  # a runner that has not begun its launch after this time is killed
_LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_CORE)
_COMMAND = [sys.executable, "-I", "-S", sys.argv[0]]
# Where the command line of this process is in memory. A fork has it at the same address.
_command_line_span: list[int] = []


def command(python: str, zipapp: str, descriptor: int) -> list[str]:
    """Return the command that starts a fork server on its end of a socket."""
    return [python, "-I", "-S", zipapp, "forkserver", str(descriptor), _COMMAND_LINE_SPACE]


def send_launch(connection: socket.socket, folder: str, lock: int) -> None:
    """Pass a folder whose lock is already held to a runner. OSError: the other end is gone.

    There is no answer. If the receiver dies before it begins, the lock is released, and that is
    how the driver notices.
    """
    descriptors = array.array("i", [lock]).tobytes()
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)]
    connection.sendmsg([os.fsencode(folder)], ancillary, socket.MSG_NOSIGNAL)


def _receive_launch(connection: socket.socket) -> LockedFolder | None:
    """Return the next launch; None when the other end has closed."""
    space = socket.CMSG_SPACE(array.array("i").itemsize)
    folder, ancillary, _, _ = connection.recvmsg(_MAX_MESSAGE_BYTES, space, socket.MSG_CMSG_CLOEXEC)
    if not folder:
        return None
    if not ancillary:  # the lock was dropped, so it is free: the driver will launch again
        raise OSError(errno.EMFILE, "too many open files")
    return os.fsdecode(folder), array.array("i", ancillary[0][2])[0]


def serve(descriptor: int) -> int:
    """Start or reuse a runner for every folder that comes through the socket, until it closes."""
    _load()
    _show_command([*_COMMAND, "forkserver"])
    # the kernel reaps the runners: nobody reads their exit codes
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()  # so that forks keep sharing what is loaded
    server = ForkServer(socket.socket(fileno=descriptor))
    while server.handle_events():
        pass
    return 0


class ForkServer:
    """Has a socket to every runner. Only the fork server knows which of them are idle."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._runners: dict[int, socket.socket] = {}  # by the descriptor of the socket
        self._pids: dict[int, int] = {}
        self._idle_since: dict[int, float] = {}  # the most recent is last
        self._launched_at: dict[int, float] = {}  # reused runners that may not have begun yet
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def handle_events(self) -> bool:
        """Wait for events and handle them; False when the driver's end has closed."""
        timeout = 1000 if self._idle_since or self._launched_at else None
        ready = [number for number, _ in self._poll.poll(timeout)]
        for number in ready:
            if number != self._connection.fileno():
                self._handle_runner(number)
        if self._connection.fileno() in ready:
            try:
                launch = _receive_launch(self._connection)
            except OSError:
                return True
            if launch is None:
                return False
            self._start(launch)
        self._end_overdue(time.monotonic())
        return True

    def _end_overdue(self, now: float) -> None:
        """End runners that were idle for too long, and those that do not begin their launch."""
        for number, since in list(self._idle_since.items()):
            if now - since > _IDLE_SECONDS:
                self._end(number)
        for number, since in list(self._launched_at.items()):
            if now - since > _START_SECONDS:
                del self._launched_at[number]
                if not _has_started(self._pids[number]):
                    self._end(number)

    def _end(self, number: int) -> None:
        """Kill a runner that has no work; SIGKILL also ends one that is stopped."""
        if _is_open(self._runners[number]):  # so the pid is still its own
            try:
                os.kill(self._pids[number], signal.SIGKILL)
            except OSError:
                pass  # it has just exited, or now runs as another user
        self._drop(number)

    def _handle_runner(self, number: int) -> None:
        try:
            is_idle = self._runners[number].recv(1)
        except OSError:
            is_idle = b""
        self._launched_at.pop(number, None)
        if is_idle:
            self._idle_since[number] = time.monotonic()
        else:
            self._drop(number)

    def _drop(self, number: int) -> None:
        self._poll.unregister(number)
        self._idle_since.pop(number, None)
        self._launched_at.pop(number, None)
        self._pids.pop(number)
        self._runners.pop(number).close()

    def _start(self, launch: LockedFolder) -> None:
        _, lock = launch
        try:
            if not self._reuse_runner(launch):
                self._fork(launch)
        except OSError as error:
            os.write(lock, f"no runner could be started: {error.strerror}\n".encode())
        os.close(lock)

    def _reuse_runner(self, launch: LockedFolder) -> bool:
        while self._idle_since:
            number, _ = self._idle_since.popitem()
            try:
                send_launch(self._runners[number], *launch)
                self._launched_at[number] = time.monotonic()
                return True
            except OSError:
                self._drop(number)  # it was killed
        return False

    def _fork(self, launch: LockedFolder) -> None:
        server_end, runner_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with runner_end:
            try:
                pid = os.fork()
            except OSError:
                server_end.close()
                raise
            if pid == 0:
                for inherited in (self._connection, server_end, *self._runners.values()):
                    inherited.close()
                _become_runner(runner_end, launch)
        self._runners[server_end.fileno()] = server_end
        self._pids[server_end.fileno()] = pid
        self._poll.register(server_end, select.POLLIN)


def _load() -> None:
    """Import what a runner may need, so that no runner has to."""
    for name in ("supervise", "relay", "report", "snapshot", "environments"):
        import_module(f"retarget.runner.{name}")
    for name in ("ctypes", "shutil", "http.client", "encodings.ascii", "encodings.idna"):
        import_module(name)


def _become_runner(connection: socket.socket, launch: LockedFolder | None) -> NoReturn:
    """Do what a runner does that was started with its own command."""
    code = 1
    try:
        os.setsid()
        devnull = os.open(os.devnull, os.O_RDONLY)
        os.dup2(devnull, 0)
        os.close(devnull)
        # one more descriptor is fine: the connection to the server is kept
        state, max_descriptors = _process_state(), _count_descriptors() + 1
        while (
            launch is not None
            and _run(*launch)
            and _process_state() == state
            and _count_descriptors() <= max_descriptors
        ):
            _show_command([*_COMMAND, "forkserver"])
            connection.send(b"f")
            launch = _receive_launch(connection)
        code = 0
    except BaseException:  # noqa: BLE001 - the edge of the process
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def _run(folder: str, lock: int) -> bool:
    """Supervise a launch. True: this process is unchanged and can run another one."""
    from retarget.runner.folder import Folder
    from retarget.runner.supervise import supervise

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        # a second descriptor, not the lock itself: child processes inherit this one
        log = Folder(folder).open_log()
    except FileNotFoundError:
        return False  # removed in the meantime
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)
    os.chdir(folder)
    _show_command([*_COMMAND, "run", folder, str(lock)])
    return supervise(folder, lock)


def _is_open(runner: socket.socket) -> bool:
    """Return whether the other end is open, given that it has sent nothing."""
    try:
        return bool(runner.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return True
    except OSError:
        return False


def _has_started(pid: int) -> bool:
    """Return whether the command line of a runner shows that it works on a launch."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().split(b"\0")[len(_COMMAND)] == b"run"
    except (OSError, IndexError):
        return True  # not Linux, or it has exited: there is nothing to end


def _process_state() -> tuple[object, ...]:
    """Return what a script could change in its runner and the next script would inherit."""
    limits = [resource.getrlimit(number) for number in _LIMITS]
    portable: tuple[object, ...] = (limits, os.getpriority(os.PRIO_PROCESS, 0))
    if sys.platform != "linux":
        return portable
    score = os.open("/proc/self/oom_score_adj", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return (*portable, os.sched_getaffinity(0), os.read(score, 16))
    finally:
        os.close(score)


def _count_descriptors() -> int:
    """Count the open files. A runner that still holds a file of its launch is not reused."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0  # not Linux


def _show_command(argv: list[str]) -> None:
    """Make `ps` show this command."""
    import ctypes

    if not _command_line_span:
        try:
            with open("/proc/self/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            return  # not Linux
        _command_line_span.extend((int(fields[45]), int(fields[46])))
        with open("/proc/self/comm", "w") as file:
            file.write("retarget-runner")
    begin, end = _command_line_span
    text = b"\0".join(os.fsencode(argument) for argument in argv)
    ctypes.memmove(begin, text.ljust(end - begin, b"\0")[: end - begin - 1] + b"\0", end - begin)
